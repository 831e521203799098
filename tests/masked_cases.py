"""Masked documents by the kernels, in Triton's interpreter or, without it, on a CUDA device.

Run by test_masked.py in a process of its own, since the interpreter must be chosen before triton is
imported.
"""

import os

import pytest
import torch
from torch import Tensor

from lmscaling import attention, kernels
from lmscaling.attention import Documents
from lmscaling.kernels import functional
from lmscaling.kernels.rotary import Rotary, Rotate, unrotated

DEVICE = "cuda"
if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreter  # noqa: F401  # mends bfloat16 and products

    DEVICE = "cpu"

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

LENGTHS = ((33, 1, 31, 5), (64, 6))
"""Documents of two rows."""
KERNELS = [
    ("linear", unrotated),
    ("retention", Rotary(16)),
    ("mamba2", unrotated),
    ("gated_delta", unrotated),
]


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels also run where there is only the interpreter."""
    monkeypatch.setattr(kernels, "on_triton_device", lambda x: True)
    monkeypatch.setattr(functional, "_runs_gates", lambda device: True)


def documents() -> Documents:
    starts_BT = torch.zeros(len(LENGTHS), sum(LENGTHS[0]), dtype=torch.bool)
    for b, lengths in enumerate(LENGTHS):
        starts_BT[b, torch.tensor(lengths).cumsum(0)[:-1]] = True
    return Documents(starts_BT.to(DEVICE))


@pytest.mark.parametrize(("name", "rotate"), KERNELS, ids=[name for name, _ in KERNELS])
def test_documents_of_a_row_are_computed_as_each_alone(
    name: str, rotate: Rotate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and all gradients, within 1e-4 of the largest number."""
    torch.manual_seed(0)
    attend = attention.build(name, 32, 2, rotate, context=70).to(DEVICE)
    x_BTD = torch.randn(len(LENGTHS), 70, 32, device=DEVICE, requires_grad=True)
    dy_BTD = torch.randn(x_BTD.shape, device=DEVICE)
    inputs = [x_BTD, *attend.parameters()]

    def outcome(y_BTD: Tensor) -> list[Tensor]:
        return [y_BTD, *torch.autograd.grad(y_BTD, inputs, dy_BTD)]

    rows = [
        torch.cat([attend(x) for x in x_TD[None].split(lengths, 1)], 1)
        for x_TD, lengths in zip(x_BTD, LENGTHS, strict=True)
    ]
    expected = outcome(torch.cat(rows))
    # Without the kernels, documents would become rows of padded batches.
    monkeypatch.setattr(Documents, "each", None)
    for found, right in zip(
        outcome(attend.forward_documents(x_BTD, documents())), expected, strict=True
    ):
        assert (found - right).abs().max() <= 1e-4 * right.abs().max()
