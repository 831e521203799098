"""The loss of a linear head, whose gradients are made in the forward pass.

What its kernel computes is tested by cross_entropy_cases.py.
"""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lmscaling.kernels import cross_entropy

N, D, V = 40, 16, 320


def head(dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    """Input and weight of a head as leaves, and targets."""
    seeded = torch.Generator().manual_seed(0)
    h, weight = (torch.randn(n, D, generator=seeded, dtype=torch.float64) for n in (N, V))
    y_N = torch.randint(0, V, (N,), generator=seeded)
    return [x.to(dtype).requires_grad_() for x in (h, weight / 2)], y_N


def plain(h: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    """The definition; its logits are float32 at least."""
    logits = F.linear(h, weight)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y)


def in_parts(h: Tensor, weight: Tensor, y: Tensor, rows: int) -> Tensor:
    """The definition by autograd, ``rows`` at a time."""
    made = [
        F.cross_entropy(F.linear(part, weight).float(), targets, reduction="sum")
        for part, targets in zip(h.split(rows), y.split(rows), strict=True)
    ]
    return torch.stack(made).sum() / len(y)


def outcome(loss: Callable[..., Tensor], leaves: list[Tensor], *rest: Any) -> list[Tensor]:
    """The loss and its gradients."""
    value = loss(*leaves, *rest)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


@given(rows=st.integers(1, 60), N=st.integers(1, 40))
def test_loss_and_gradients_are_those_of_the_definition(rows: int, N: int) -> None:
    leaves, y = head()
    leaves[0], y = leaves[0][:N].detach().requires_grad_(), y[:N]
    found, expected = outcome(cross_entropy.mean, leaves, y, rows), outcome(plain, leaves, y)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    parts = cross_entropy.token_losses(leaves[0], leaves[1], y, rows)
    torch.testing.assert_close(parts.mean(), expected[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("rows", [7, N])
@pytest.mark.parametrize("autocast", [True, False])
def test_numbers_are_as_near_to_float64_as_those_of_autograd(rows: int, autocast: bool) -> None:
    exact = outcome(plain, *head())
    leaves, y = head(torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = outcome(cross_entropy.mean, leaves, y, rows)
        before = outcome(in_parts, leaves, y, rows)
    for x, other, true in zip(found, before, exact, strict=True):
        assert x.dtype == torch.float32
        limit = 1.02 * distance(other, true) + 2e-7 * true.norm().item()
        assert distance(x, true) <= limit


def test_many_parts_are_no_further_from_float64_than_one() -> None:
    """In bfloat16 a sum over many parts would be."""
    true = outcome(plain, *head())[2]
    leaves, y = head(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        many, one = (outcome(cross_entropy.mean, leaves, y, rows)[2] for rows in (1, N))
    assert distance(many, true) <= 1.1 * distance(one, true)


def distance(x: Tensor, y: Tensor) -> float:
    return torch.linalg.vector_norm(x.double() - y.double()).item()


def test_gradients_scale_with_that_of_the_loss_and_add_over_micro_batches() -> None:
    leaves, y = head()
    for part in range(2):
        half = slice(20 * part, 20 * part + 20)
        (cross_entropy.mean(leaves[0][half], leaves[1], y[half], 7) / 2).backward()
    expected = outcome(plain, leaves, y)[1:]
    torch.testing.assert_close([x.grad for x in leaves], expected, rtol=1e-12, atol=1e-14)


class Products(TorchDispatchMode):
    """Sizes of the results of matrix products, and bytes of logits that products move."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.size, self.made, self.bytes = rows * V, [], 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        if func.overloadpacket == torch.ops.aten.mm:
            self.made.append(made.numel())
            large = [x for x in (*args, made) if x.numel() == self.size]
            self.bytes += sum(x.numel() * x.itemsize for x in large)
        return made


@pytest.mark.parametrize(("rows", "largest"), [(7, 7), (39, 20), (20, 20)])
def test_no_more_logits_than_allowed_are_in_memory_and_none_after_the_forward_pass(
    rows: int, largest: int
) -> None:
    """Parts have nearly the same size; three products read and write their logits."""
    leaves, y = head()
    with torch.autocast("cpu", torch.bfloat16), Products(largest) as products:
        loss = cross_entropy.mean(leaves[0], leaves[1], y, rows)
    assert max(products.made) == max(largest, D) * V  # the gradient of the weight has D x V
    assert len(products.made) == 3 * -(-N // rows)
    assert products.bytes == 3 * 8 * V * (N if N % largest == 0 else N // largest * largest)
    gc.collect()
    sizes = (largest * V, N * V)
    assert [x for x in gc.get_objects() if type(x) is Tensor and x.numel() in sizes] == []
    assert loss.requires_grad


def test_in_bfloat16_products_move_6_bytes_per_token_and_vocabulary_entry() -> None:
    """The kernel of the loss moves 6 more: cross_entropy_cases.py counts them."""
    leaves, y = head(torch.float32)
    with torch.autocast("cpu", torch.bfloat16), Products(20) as products:
        outcome(cross_entropy.mean, leaves, y, 20)
    assert products.bytes == 6 * N * V


def test_a_loss_without_gradient_does_one_product_for_each_part() -> None:
    leaves, y = head()
    with torch.no_grad(), Products(20) as products:
        loss = cross_entropy.mean(leaves[0], leaves[1], y, 20)
    assert len(products.made) == 2
    assert not loss.requires_grad
    torch.testing.assert_close(loss, plain(leaves[0], leaves[1], y).detach(), rtol=1e-12, atol=0)


def test_a_second_backward_pass_is_refused() -> None:
    leaves, y = head()
    loss = cross_entropy.mean(leaves[0], leaves[1], y, 7)
    loss.backward(retain_graph=True)
    with refused(RuntimeError, "one backward pass"):
        loss.backward()
    loss = cross_entropy.mean(leaves[0], leaves[1], y, 7)
    (gradient,) = torch.autograd.grad(loss.square(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
