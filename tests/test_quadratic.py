"""The quadratic kernels, run by Triton's interpreter in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from test_fused import WITH_TRITON

from lmscaling import kernels
from lmscaling.bench.checks import exactness
from lmscaling.kernels import feature_maps
from lmscaling.kernels.linear import attention_parallel

CASES = Path(__file__).with_name("interpreted_quadratic.py")


def check_bounds(cases: str, environment: Mapping[str, str] = os.environ) -> None:
    done = subprocess.run(
        [sys.executable, CASES, cases],
        env={**environment, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    findings = json.loads(done.stdout)
    assert len(findings) >= 20
    # Written so that a result that is no number is beyond any bound.
    assert not [(what, found, most) for what, found, most in findings if not found <= most]


@pytest.mark.ci
@WITH_TRITON
@pytest.mark.parametrize("cases", ["float32", "bfloat16", "windows", "properties", "operators"])
def test_kernels_keep_their_bounds(cases: str) -> None:
    check_bounds(cases)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 24, 64, 128])
def test_kernels_are_right_on_this_gpu(width: int, dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    assert exactness.fault("linear", attention_parallel.attend, device, dtype, width) is None


@pytest.mark.parametrize("feature_map", feature_maps.FEATURE_MAPS)
@pytest.mark.parametrize("normalize", [True, False])
def test_without_a_gpu_it_is_a_masked_product(feature_map: str, normalize: bool) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 9, 3, 4, dtype=torch.float64)
    phi = feature_maps.find(feature_map)
    y = kernels.load("linear", "attention_parallel")(q, k, v, feature_map, normalize)
    for t in range(9):
        a = torch.einsum("bhk,bshk->bhs", phi.of(q[:, t]), phi.of(k[:, : t + 1]))
        expected = torch.einsum("bhs,bshv->bhv", a, v[:, : t + 1])
        if normalize:
            expected /= a.sum(-1, keepdim=True) + phi.epsilon
        torch.testing.assert_close(y[:, t], expected)


@pytest.mark.parametrize("window", [1, 3, 9, 20])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_without_a_gpu_a_window_and_groups_are_a_masked_product(groups: int, window: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.rand(3, 2, 9, 4, 5, dtype=torch.float64)
    k, v = k[:, :, : 4 // groups], v[:, :, : 4 // groups]
    y = attention_parallel.attend(q, k, v, "identity", True, window)
    for t in range(9):
        seen = slice(max(0, t - window + 1), t + 1)
        for h in range(4):
            a = torch.einsum("bk,bsk->bs", q[:, t, h], k[:, seen, h // groups])
            expected = torch.einsum("bs,bsv->bv", a, v[:, seen, h // groups])
            torch.testing.assert_close(y[:, t, h], expected / a.sum(1, keepdim=True))


def test_it_needs_no_triton_without_a_gpu() -> None:
    code = """
import sys
sys.modules["triton"] = None
import torch
from lmscaling import kernels
x = torch.ones(1, 1, 1, 4)
assert kernels.load("linear", "attention_parallel")(x, x, x, "relu", False).equal(4 * x)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x = torch.zeros(1, 2, 3, 16)
    with pytest.raises(ValueError, match="allowed: equal shapes"):
        attention_parallel.attend(x, x[:, :1], x, "relu", True)
    with pytest.raises(ValueError, match="k has 2 heads; allowed: a divisor of the 3 of q"):
        attention_parallel.attend(x, x[:, :, :2], x[:, :, :2], "relu", True)
    with pytest.raises(ValueError, match="window is 0; allowed: at least 1"):
        attention_parallel.attend(x, x, x, "relu", True, 0)
    with pytest.raises(ValueError, match="nearest is 'softplus'"):
        attention_parallel.attend(x, x, x, "softplux", True)
