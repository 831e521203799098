"""flash-linear-attention in Triton's interpreter; test_fla.py runs this in a process of its own.

The interpreter has no device to time launch options on, so the first are taken. It counts loops in
numbers of Python, which lack the method ``to`` that these kernels call.
"""

import sys
from typing import Any, cast

import interpreter  # noqa: F401  # mends bfloat16
import pytest
import torch
import triton
from torch import nn


class Driver:
    def get_benchmarker(self):
        return lambda call, quantiles: [0.0] * len(quantiles)


triton.runtime.driver.set_active(cast("Any", Driver()))

import fla.layers  # noqa: E402

from lmscaling import attention, kernels  # noqa: E402
from lmscaling.bench.checks import exactness, variant  # noqa: E402
from lmscaling.errors import UserError  # noqa: E402
from lmscaling.kernels import peer  # noqa: E402

CPU = torch.device("cpu")


class Count(int):
    def to(self, dtype):
        return self


for name, module in [*sys.modules.items()]:
    if name.startswith("fla.ops"):
        vars(module)["range"] = lambda *bounds: map(Count, range(*map(int, bounds)))


def check(layer):
    given = variant.Variant(name="fla", d_model=32, n_head=1, context=70, options={"layer": layer})
    variant.check(given, CPU)


@pytest.mark.parametrize("layer", ["GatedLinearAttention", "GatedDeltaNet"])
def test_a_layer_passes_the_check_of_every_variant(layer):
    check(layer)


def test_a_layer_that_looks_ahead_is_refused(monkeypatch):
    class Ahead(nn.Module):
        def __init__(self, hidden_size):
            super().__init__()
            self.o_proj = nn.Linear(hidden_size, hidden_size)

        def forward(self, x_BTD):
            return self.o_proj(x_BTD + x_BTD.mean(1, keepdim=True)), None, None

    monkeypatch.setattr(fla.layers, "Ahead", Ahead, raising=False)
    monkeypatch.setattr(fla.layers, "__all__", ["Ahead"])
    with pytest.raises(UserError, match="looks ahead"):
        check("Ahead")


@pytest.mark.parametrize(("kind", "form"), [("gated", ("channel",)), ("gated_delta", ())])
def test_its_kernels_compute_our_variants(monkeypatch, kind, form):
    monkeypatch.setattr(peer, "takes", lambda v: v.dtype == torch.bfloat16)
    given = (kernels.load(kind, "fla"), CPU, torch.bfloat16, (1, 100, 1, 64), form)
    assert exactness.first_fault(exactness.every(kind, *given)) is None
    q, k, v = torch.randn(3, 1, 80, 1, 32).bfloat16()
    gates = {"gated": [-torch.rand(1, 80, 1, 32)], "gated_delta": [0.5 * torch.rand(1, 80, 1)] * 2}
    tokens = [q, torch.nn.functional.normalize(k, dim=-1), v, *gates[kind]]
    tokens[-1] = -tokens[-1].abs()
    before = torch.randn(1, 1, 32, 32)
    found, exact = (kernels.load(kind, name)(*tokens, before) for name in ("fla", "plain"))
    for x, true in zip(found, exact, strict=True):
        assert (x - true).norm() <= 0.02 * true.norm()


def test_its_flops_are_products_with_weights_and_a_state():
    layer = attention.build("fla", 64, 2, layer="GatedLinearAttention", use_output_gate=False)
    weights = sum(p.numel() for p in layer.parameters() if p.dim() > 1)
    assert layer.flops_per_token(1024) == 2 * weights + 4 * 2 * 16 * 32
