"""What the kernel of the loss computes, in Triton's interpreter or, without it, on a CUDA device.

Run by test_cross_entropy.py in processes of their own, since the interpreter must be chosen before
triton is imported.
"""

import os

# The interpreter's classes are imported only where it runs.
# pyright: reportPossiblyUnboundVariable=false
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling.kernels import cross_entropy
from lmscaling.kernels.cross_entropy_triton import launch

DEVICE = "cuda"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    import interpreter  # mends bfloat16
    from triton.runtime.interpreter import InterpreterBuilder

    assert interpreter
    DEVICE = "cpu"

DTYPES = [torch.float32, torch.bfloat16]


def sample(N: int, V: int, dtype: torch.dtype, spread: float = 3.0) -> tuple[Tensor, Tensor]:
    """Logits and targets; the first target is the first entry and the last one the last."""
    seeded = torch.Generator().manual_seed(N + V)
    logits_NV = (spread * torch.randn(N, V, generator=seeded)).to(DEVICE, dtype)
    y_N = torch.randint(0, V, (N,), generator=seeded)
    y_N[0], y_N[-1] = 0, V - 1
    return logits_NV, y_N.to(DEVICE)


def exact(logits_NV: Tensor, y_N: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and the gradient of their mean, float64."""
    loss_N = F.cross_entropy(logits_NV.double(), y_N, reduction="none")
    p_NV = logits_NV.double().softmax(1)
    return loss_N, (p_NV - F.one_hot(y_N, logits_NV.shape[1])) / len(y_N)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [3.0, 1e4])
@pytest.mark.parametrize("V", [1, 7, 320, 4096, 5000, 50304])
def test_kernel_gives_the_loss_and_gradient_of_float64(
    V: int, spread: float, dtype: torch.dtype
) -> None:
    logits, y = sample(3, V, dtype, spread)
    loss, gradient = exact(logits, y)
    found = launch.cross_entropy(logits, y, 1 / 3)
    torch.testing.assert_close(found.double(), loss, rtol=1e-6, atol=1e-6)
    unit = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(logits.double(), gradient, rtol=unit + 1e-5, atol=1e-7)
    assert found.dtype == torch.float32


def test_kernel_leaves_the_logits_of_a_loss_without_gradient() -> None:
    logits, y = sample(5, 5000, torch.bfloat16)
    before = logits.clone()
    without = launch.cross_entropy(logits, y, None)
    assert torch.equal(logits, before)
    assert torch.equal(without, launch.cross_entropy(logits, y, 1.0))


@pytest.mark.parametrize("rows", [3, 40])
def test_kernel_gives_the_gradients_of_a_head_that_plain_pytorch_gives(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under autocast to bfloat16, where the gradients of both are rounded alike."""
    seeded = torch.Generator().manual_seed(0)
    h, weight = (torch.randn(n, 16, generator=seeded).to(DEVICE) for n in (40, 500))
    y = torch.randint(0, 500, (40,), generator=seeded).to(DEVICE)
    found = []
    for losses in (plain_losses, kernel_losses):
        monkeypatch.setattr(cross_entropy, "_losses", losses)
        leaves = [h.clone().requires_grad_(), weight.clone().requires_grad_()]
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = cross_entropy.mean(leaves[0], leaves[1], y, rows)
        found.append([loss, *torch.autograd.grad(loss, leaves)])
    for one, other in zip(*found, strict=True):
        assert torch.linalg.vector_norm(one - other) <= 2**-9 * torch.linalg.vector_norm(one)


def kernel_losses(logits_NV: Tensor, y_N: Tensor, scale: float | None) -> Tensor:
    return launch.cross_entropy(logits_NV, y_N.contiguous(), scale)


def plain_losses(logits_NV: Tensor, y_N: Tensor, scale: float | None) -> Tensor:
    loss_N, gradient = exact(logits_NV, y_N)
    if scale is not None:
        logits_NV.copy_(gradient * len(y_N) * scale)
    return loss_N.float()


@pytest.mark.skipif(not INTERPRETED, reason="only the interpreter can count")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, None])
def test_kernel_reads_a_logit_twice_and_writes_it_once(
    scale: float | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = {"load": 0, "store": 0}

    def counting(name: str) -> None:
        method = getattr(InterpreterBuilder, f"create_masked_{name}")

        def counted(self: Any, pointer: Any, *rest: Any) -> Any:
            mask = rest[0] if name == "load" else rest[1]
            moved[name] += int(mask.data.sum())
            return method(self, pointer, *rest)

        monkeypatch.setattr(InterpreterBuilder, f"create_masked_{name}", counted)

    logits, y = sample(4, 10_000, dtype)
    counting("load")
    counting("store")
    launch.cross_entropy(logits, y, scale)
    reads, writes = (2, 1) if scale else (1, 0)
    others = 2 * len(y), len(y)  # a target and its logit; a loss
    assert moved == {"load": reads * logits.numel() + others[0],
                     "store": writes * logits.numel() + others[1]}  # fmt: skip
