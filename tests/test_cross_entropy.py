"""The loss of a linear head, with gradients made forward; its kernel: quadratic_cases.py."""

import gc

import pytest
import torch
import torch.nn.functional as F
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st
from kernel_device import distance
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lmscaling.kernels import cross_entropy

N, D, V = 40, 16, 320
close = torch.testing.assert_close


def head(dtype=torch.float64, N=N):
    """Input and weight of a head as leaves, and targets."""
    seeded = torch.Generator().manual_seed(0)
    h, weight = (torch.randn(n, D, generator=seeded, dtype=torch.float64) for n in (N, V))
    y_N = torch.randint(0, V, (N,), generator=seeded)
    h, weight = (x.to(dtype).requires_grad_() for x in (h, weight / 2))
    return h, weight, y_N


def plain(h, weight, y, rows=N):
    """The definition, ``rows`` at a time; its logits are float32 at least."""
    made = []
    for part, targets in zip(h.split(rows), y.split(rows), strict=True):
        logits = F.linear(part, weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        made.append(F.cross_entropy(logits, targets, reduction="sum"))
    return torch.stack(made).sum() / len(y)


def outcome(loss, h, weight, *rest):
    value = loss(h, weight, *rest)
    return [value.detach(), *torch.autograd.grad(value, (h, weight))]


@given(rows=st.integers(1, 60), N=st.integers(1, 40))
def test_loss_and_gradients_are_those_of_the_definition(rows, N):
    leaves = head(N=N)
    expected = outcome(plain, *leaves)
    close(outcome(cross_entropy.mean, *leaves, rows), expected, rtol=1e-12, atol=1e-14)
    parts = cross_entropy.token_losses(*leaves, rows)
    close(parts.mean(), expected[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("autocast", [True, False])
def test_numbers_are_as_near_to_float64_as_those_of_autograd(autocast):
    """In bfloat16 a sum over many parts would be further off than one product."""
    leaves, exact, made = head(torch.float32), outcome(plain, *head()), []
    for rows in (7, N):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found, before = (outcome(f, *leaves, rows) for f in (cross_entropy.mean, plain))
        for x, other, true in zip(found, before, exact, strict=True):
            assert x.dtype == torch.float32
            limit = 1.02 * distance(other, true) + 2e-7 * true.norm().item()
            assert distance(x, true) <= limit
        made.append(distance(found[2], exact[2]))
    assert not autocast or made[0] <= 1.1 * made[1]


class Products(TorchDispatchMode):
    """Sizes of the results of matrix products, and bytes of logits that products move."""

    def __init__(self, rows):
        super().__init__()
        self.size, self.made, self.bytes = rows * V, [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        if func.overloadpacket == torch.ops.aten.mm:
            self.made.append(made.numel())
            large = [x for x in (*args, made) if x.numel() == self.size]
            self.bytes += sum(x.numel() * x.itemsize for x in large)
        return made


@pytest.mark.parametrize(("rows", "largest", "dtype", "itemsize"),
    [(7, 7, torch.float64, 8), (39, 20, torch.float32, 2), (20, 20, torch.float64, 8)])  # fmt: skip
def test_no_more_logits_than_allowed_are_in_memory_and_none_after_the_forward_pass(
    rows, largest, dtype, itemsize
):
    """Parts have nearly the same size; three products read and write their logits: in bfloat16
    6 bytes per token and vocabulary entry."""
    h, weight, y = head(dtype)
    with torch.autocast("cpu", torch.bfloat16), Products(largest) as products:
        loss = cross_entropy.mean(h, weight, y, rows)
    gc.collect()
    sizes = (largest * V, N * V)
    assert [x for x in gc.get_objects() if type(x) is Tensor and x.numel() in sizes] == []
    with products:  # the backward pass makes none
        loss.backward()
    assert max(products.made) == max(largest, D) * V  # the gradient of the weight has D x V
    assert len(products.made) == 3 * -(-N // rows)
    assert products.bytes == 3 * itemsize * V * (N // largest * largest)
    with torch.no_grad(), products:
        alone = cross_entropy.mean(h, weight, y, rows)
    assert len(products.made) == 4 * -(-N // rows)  # one more for each part
    assert not alone.requires_grad
    rtol = 1e-12 if dtype == torch.float64 else 1e-6
    close(alone, plain(h, weight, y).detach(), rtol=rtol, atol=0)


def test_gradients_scale_and_add_over_micro_batches_and_a_second_backward_pass_is_refused():
    h, weight, y = leaves = head()
    for half in (slice(20), slice(20, 40)):
        (cross_entropy.mean(h[half], weight, y[half], 7) / 2).backward()
    close([h.grad, weight.grad], outcome(plain, h, weight, y)[1:], rtol=1e-12, atol=1e-14)
    loss = cross_entropy.mean(*leaves, 7)
    loss.backward(retain_graph=True)
    with refused(RuntimeError, "one backward pass"):
        loss.backward()
    square = cross_entropy.mean(*leaves, 7).square()
    (gradient,) = torch.autograd.grad(square, leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
