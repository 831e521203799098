"""The fused kernels; what they compute is tested by fused_cases.py, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from lmscaling.kernels import feature_maps
from lmscaling.kernels.linear import chunked

CASES = Path(__file__).with_name("fused_cases.py")
PARTS = ["numbers_are and not two_kernels", "operator"]
SLOW_PARTS = ["same and not two_kernels", "numbers_are and two_kernels", "same and two_kernels"]
"""The same numbers from other calls, and the backward pass in two kernels, which devices before
Hopper use."""
WITH_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from lmscaling.kernels.linear import chunked
x = torch.ones(1, 3, 1, 4)
assert torch.equal(chunked.attend(x, x, x, "softplus", True), x)
"""


def run_cases(
    part: str,
    interpret: bool,
    cases: Path = CASES,
    environment: Mapping[str, str] = os.environ,
) -> None:
    given = {name: x for name, x in environment.items() if not name.startswith("PYTEST_")}
    chosen = {"TRITON_INTERPRET": str(int(interpret)), "TRITON_DEFAULT_FP_FUSION": "1"}
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", part]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(cases)],
        env=given | chosen,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_case_belongs_to_a_part() -> None:
    names = [line for line in CASES.read_text().splitlines() if line.startswith("def test_")]
    kinds = [part.split()[0] for part in [*PARTS, *SLOW_PARTS]]
    assert [line for line in names if not any(kind in line for kind in kinds)] == []


@WITH_TRITON
@pytest.mark.parametrize(
    "part", [*PARTS, *(pytest.param(part, marks=pytest.mark.ci) for part in SLOW_PARTS)]
)
def test_kernels_are_right_in_the_interpreter(part: str) -> None:
    run_cases(part, interpret=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("part", [*PARTS, *SLOW_PARTS])
def test_kernels_are_right_on_a_device(part: str) -> None:
    run_cases(part, interpret=False)


def test_plain_pytorch_needs_no_triton() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TRITON], check=True)


@pytest.mark.parametrize("phi", feature_maps.FEATURE_MAPS)
@pytest.mark.parametrize("normalize", [True, False])
def test_tensors_of_a_processor_are_computed_in_plain_pytorch(phi: str, normalize: bool) -> None:
    q, k, v = torch.rand(3, 2, 70, 2, 8, dtype=torch.float64)
    f = feature_maps.find(phi)
    a_BHTS = torch.einsum("bthk,bshk->bhts", f.of(q), f.of(k)).tril()
    if normalize:
        a_BHTS = a_BHTS / (a_BHTS.sum(-1, keepdim=True) + f.epsilon)
    expected = torch.einsum("bhts,bshv->bthv", a_BHTS, v)
    torch.testing.assert_close(chunked.attend(q, k, v, phi, normalize), expected)


@pytest.mark.parametrize("leading", [(2, 5), (1, 5), (2, 1)])
@pytest.mark.parametrize("heads", [1, 3])
def test_views_of_a_projection_are_not_copied(leading: tuple[int, int], heads: int) -> None:
    qkv_BTW = torch.randn(*leading, 3 * heads * 4)
    q, k, v = qkv_BTW.unflatten(-1, (3, heads, -1)).unbind(2)
    row_BTW = chunked.packed(q, k, v)
    assert torch.equal(row_BTW, qkv_BTW)
    assert row_BTW.data_ptr() == qkv_BTW.data_ptr()


def test_other_tensors_are_packed_in_order() -> None:
    qkv_BTW = torch.randn(2, 5, 3 * 2 * 4)
    q, k, v = qkv_BTW.unflatten(-1, (3, 2, -1)).unbind(2)
    for x, y, z in ((k, q, v), (q, k, v + 1), (q, q, v), (q.flip(1), k.flip(1), v.flip(1))):
        parts = [part.flatten(2) for part in (x, y, z)]
        assert torch.equal(chunked.packed(x, y, z), torch.cat(parts, -1))
