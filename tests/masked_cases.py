"""Masked documents by the kernels; run by test_fused.py, see kernel_device.py."""

import pytest
import torch
from kernel_device import DEVICE, INTERPRETED

from lmscaling import attention, kernels
from lmscaling.attention import Documents
from lmscaling.kernels import functional
from lmscaling.kernels.rotary import Rotary, unrotated

LENGTHS = ((33, 1, 6), (32, 8))
"""Documents of two rows."""


@pytest.mark.parametrize(
    ("name", "rotate"),
    [("linear", unrotated), ("mamba2", unrotated),
     pytest.param("retention", Rotary(16), marks=pytest.mark.ci),
     pytest.param("gated_delta", unrotated, marks=pytest.mark.ci)],
)  # fmt: skip
def test_documents_of_a_row_are_computed_as_each_alone(name, rotate, monkeypatch):
    """Outputs and all gradients, within 1e-4 of the largest number."""
    if INTERPRETED:
        monkeypatch.setattr(kernels, "on_triton_device", lambda x: True)
        monkeypatch.setattr(functional, "_runs_gates", lambda device: True)
    torch.manual_seed(0)
    attend = attention.build(name, 32, 2, rotate, context=40).to(DEVICE)
    x_BTD = torch.randn(len(LENGTHS), 40, 32, device=DEVICE, requires_grad=True)
    dy_BTD = torch.randn(x_BTD.shape, device=DEVICE)
    inputs = [x_BTD, *attend.parameters()]

    def outcome(y_BTD):
        return [y_BTD, *torch.autograd.grad(y_BTD, inputs, dy_BTD)]

    exact = attend.double()
    rows = [
        torch.cat([exact(x) for x in x_TD[None].double().split(lengths, 1)], 1)
        for x_TD, lengths in zip(x_BTD, LENGTHS, strict=True)
    ]
    expected = outcome(torch.cat(rows).float())
    attend.float()
    starts_BT = torch.zeros(len(LENGTHS), 40, dtype=torch.bool)
    for b, lengths in enumerate(LENGTHS):
        starts_BT[b, torch.tensor(lengths).cumsum(0)[:-1]] = True
    documents = Documents(starts_BT.to(DEVICE))
    # Without the kernels, documents would become rows of padded batches.
    monkeypatch.setattr(Documents, "each", None)
    found = outcome(attend.forward_documents(x_BTD, documents))
    for one, right in zip(found, expected, strict=True):
        assert (one - right).abs().max() <= 1e-4 * right.abs().max()
