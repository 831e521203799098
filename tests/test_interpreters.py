"""The kernels compute the same in the interpreter of every Triton that a PyTorch asks for."""

from pathlib import Path

import offline
import pytest
from test_fused import run_cases

CROSS_ENTROPY = Path(__file__).with_name("cross_entropy_cases.py")
VERSIONS = offline.others()  # test_fused.py and others use the installed one
pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not VERSIONS, reason="no versions of Triton in .triton/: make compilers"),
    pytest.mark.parametrize("triton", VERSIONS),
]


def test_the_chunked_kernels_are_right(triton: str) -> None:
    part = "(numbers_are_as and softplus-True-1-63) or (numbers_are_near and token and 0.3)"
    run_cases(part, interpret=True, environment=offline.environment(triton))


def test_the_cross_entropy_kernel_is_right(triton: str) -> None:
    part = "float64 and 320"
    run_cases(part, True, CROSS_ENTROPY, offline.environment(triton))


def test_the_quadratic_kernels_keep_their_bounds(triton: str) -> None:
    run_cases("sample", True, environment=offline.environment(triton))
