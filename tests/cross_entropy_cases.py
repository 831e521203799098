"""What the kernel of the loss computes; run by test_fused.py, see kernel_device.py."""

# The interpreter's classes are imported only where it runs.
# pyright: reportPossiblyUnboundVariable=false
import pytest
import torch
import torch.nn.functional as F
from kernel_device import DEVICE, INTERPRETED, assert_near

from lmscaling.kernels import cross_entropy
from lmscaling.kernels.cross_entropy_triton import launch

if INTERPRETED:
    from triton.runtime.interpreter import InterpreterBuilder

SINGLE, HALF = torch.float32, torch.bfloat16


def sample(N, V, dtype, spread=3.0):
    """Logits and targets; the first target is the first entry and the last one the last."""
    seeded = torch.Generator().manual_seed(N + V)
    logits_NV = (spread * torch.randn(N, V, generator=seeded)).to(DEVICE, dtype)
    y_N = torch.randint(0, V, (N,), generator=seeded)
    y_N[0], y_N[-1] = 0, V - 1
    return logits_NV, y_N.to(DEVICE)


def exact(logits_NV, y_N):
    """Losses and the gradient of their mean, float64."""
    loss_N = F.cross_entropy(logits_NV.double(), y_N, reduction="none")
    p_NV = logits_NV.double().softmax(1)
    return loss_N, (p_NV - F.one_hot(y_N, logits_NV.shape[1])) / len(y_N)


@pytest.mark.parametrize(
    ("V", "spread", "dtype"),
    [(1, 3.0, SINGLE), (7, 1e4, HALF), pytest.param(320, 3.0, HALF, id="sample"),
     (4096, 1e4, SINGLE), (4097, 3.0, HALF),
     pytest.param(50304, 3.0, SINGLE, marks=pytest.mark.ci)],
)  # fmt: skip
def test_kernel_gives_the_loss_and_gradient_of_float64(V, spread, dtype):
    logits, y = sample(3, V, dtype, spread)
    loss, gradient = exact(logits, y)
    found = launch.cross_entropy(logits, y, 1 / 3)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), loss, rtol=1e-6, atol=1e-6)
    unit = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(logits.double(), gradient, rtol=unit + 1e-5, atol=1e-7)


def test_kernel_gives_the_gradients_of_a_head(monkeypatch):
    """Under autocast to bfloat16, by parts, those of logits and gradients rounded alike."""
    if INTERPRETED:
        monkeypatch.setattr(cross_entropy, "on_triton_device", lambda x: True)
    seeded = torch.Generator().manual_seed(0)
    leaves = [torch.randn(n, 16, generator=seeded).to(DEVICE).requires_grad_() for n in (40, 200)]
    y = torch.randint(0, 200, (40,), generator=seeded).to(DEVICE)
    with torch.autocast(DEVICE, HALF):
        loss = cross_entropy.mean(leaves[0], leaves[1], y, 13)
    h, weight = (x.detach().to(HALF) for x in leaves)
    losses, gradient = exact(h @ weight.T, y)
    h, weight, gradient = h.double(), weight.double(), gradient.to(HALF).double()
    expected = [losses.mean(), gradient @ weight, gradient.T @ h]
    assert_near([loss, *torch.autograd.grad(loss, leaves)], expected, 2**-9)


@pytest.mark.skipif(not INTERPRETED, reason="only the interpreter can count")
@pytest.mark.parametrize(("dtype", "scale"), [(SINGLE, 1.0), (HALF, None)])
def test_kernel_reads_a_logit_twice_and_writes_it_once(scale, dtype, monkeypatch):
    """And leaves the logits of a loss without gradient."""
    moved = {"load": 0, "store": 0}

    def count(name, mask_at):
        method = getattr(InterpreterBuilder, f"create_masked_{name}")

        def counted(self, *given):
            moved[name] += int(given[mask_at].data.sum())
            return method(self, *given)

        monkeypatch.setattr(InterpreterBuilder, f"create_masked_{name}", counted)

    logits, y = sample(2, 5000, dtype)
    before = logits.clone()
    count("load", 1)
    count("store", 2)
    found = launch.cross_entropy(logits, y, scale)
    reads, writes = (2, 1) if scale else (1, 0)
    n = logits.numel()  # besides, a target and its logit are read, and a loss is written
    assert moved == {"load": reads * n + 2 * len(y), "store": writes * n + len(y)}
    assert torch.equal(logits, before) == (scale is None)
    torch.testing.assert_close(found.double(), exact(before, y)[0], rtol=1e-6, atol=1e-6)
