"""The loss of a linear head, whose gradients are made in the forward pass.

What its kernel computes is tested by cross_entropy_cases.py, in a process of its own.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_fused import WITH_TRITON, run_cases
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from lmscaling.config.cell import Model
from lmscaling.kernels import cross_entropy
from lmscaling.model.gpt import GPT

CASES = Path(__file__).with_name("cross_entropy_cases.py")
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


def in_checkpoints(h: Tensor, weight: Tensor, y: Tensor, rows: int) -> Tensor:
    """The way with checkpoints that this loss replaces."""

    def part(h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(h, weight).float(), y, reduction="sum")

    parts = zip(h.split(rows), y.split(rows), strict=True)
    made = [checkpoint(part, h, y, use_reentrant=False) for h, y in parts]
    return torch.stack(made).sum() / len(y)


def outcome(loss: Callable[..., Tensor], leaves: list[Tensor], *rest: Any) -> list[Tensor]:
    """The loss and its gradients."""
    value = loss(*leaves, *rest)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


@pytest.mark.parametrize("rows", [1, 7, 39, 40, 1000])
def test_loss_and_gradients_are_those_of_the_definition(rows: int) -> None:
    leaves, y = head()
    found, expected = outcome(cross_entropy.mean, leaves, y, rows), outcome(plain, leaves, y)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    parts = cross_entropy.token_losses(leaves[0], leaves[1], y, rows)
    torch.testing.assert_close(parts.mean(), expected[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("rows", [7, 40])
@pytest.mark.parametrize("autocast", [True, False])
def test_numbers_are_as_near_to_float64_as_those_of_autograd(rows: int, autocast: bool) -> None:
    exact = outcome(plain, *head())
    leaves, y = head(torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = outcome(cross_entropy.mean, leaves, y, rows)
        before = outcome(in_checkpoints, leaves, y, rows)
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


def test_parts_have_nearly_the_same_size() -> None:
    assert [len(x) for (x,) in cross_entropy._parts(39, torch.empty(N, 1))] == [20, 20]


def distance(x: Tensor, y: Tensor) -> float:
    return torch.linalg.vector_norm(x.double() - y.double()).item()


def test_gradients_scale_with_that_of_the_loss_and_add_over_micro_batches() -> None:
    leaves, y = head()
    for part in range(2):
        half = slice(20 * part, 20 * part + 20)
        (cross_entropy.mean(leaves[0][half], leaves[1], y[half], 7) / 2).backward()
    expected = outcome(plain, leaves, y)[1:]
    torch.testing.assert_close([x.grad for x in leaves], expected, rtol=1e-12, atol=1e-14)


def test_a_weight_that_is_also_the_embedding_gets_both_gradients(cell: Any) -> None:
    shape = Model(n_layer=1, n_head=2, d_model=16, vocab_size=257)
    gpt = GPT(replace(cell, model=shape, context=8, attention="softmax")).double()
    x, y = torch.randint(0, 257, (2, 2, 8))
    expected = F.cross_entropy(gpt(x).flatten(0, 1), y.flatten())
    weights = list(gpt.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(gpt.loss(x, y), weights),
        torch.autograd.grad(expected, weights),
        rtol=1e-10,
        atol=1e-14,
    )


def test_a_second_backward_pass_is_refused() -> None:
    leaves, y = head()
    loss = cross_entropy.mean(leaves[0], leaves[1], y, 7)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="were used; allowed: one backward pass"):
        loss.backward()
    loss = cross_entropy.mean(leaves[0], leaves[1], y, 7)
    (gradient,) = torch.autograd.grad(loss.square(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


class Moved(TorchDispatchMode):
    """Counts the bytes of logits, ``rows`` at a time, that operations read and write."""

    one_per_row = (torch.ops.aten.nll_loss_forward, torch.ops.aten.nll_loss_backward)
    """Operations that read no more of the logits than those of the targets."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.size, self.bytes, self.products, self.largest = rows * V, 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        self.products += func.overloadpacket == torch.ops.aten.mm
        if not func.is_view:
            reads = [] if func.overloadpacket in self.one_per_row else list(tensors(args))
            writes = list(tensors([made]))
            large = [x for x in reads + writes if x.numel() == self.size]
            self.bytes += sum(x.numel() * x.itemsize for x in large)
            self.largest = max([self.largest, *(x.numel() for x in writes)])
        return made


def tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors(value)


@contextmanager
def kernel(moved: Moved) -> Iterator[None]:
    """In place of the elementwise part its kernel: two reads and a write of a logit.

    cross_entropy_cases.py counts these in the interpreter.
    """
    losses = cross_entropy._losses

    def counted(logits_NV: Tensor, y_N: Tensor, scale: float | None) -> Tensor:
        before = moved.bytes
        made = losses(logits_NV, y_N, scale)
        moved.bytes = before + (3 if scale else 1) * logits_NV.numel() * logits_NV.itemsize
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "_losses", counted)
        yield


def bytes_per_logit(loss: Callable[..., Tensor], rows: int) -> float:
    leaves, y = head(torch.float32)
    with torch.autocast("cpu", torch.bfloat16), Moved(rows) as moved, kernel(moved):
        outcome(loss, leaves, y, rows)
    return moved.bytes / (N * V)


def test_at_most_20_bytes_are_moved_per_token_and_vocabulary_entry() -> None:
    """Counted on a CPU in bfloat16, with the kernel's own bytes. In checkpoints it was 58.

    Every operation is taken to read its inputs once and write its results once.
    """
    assert bytes_per_logit(cross_entropy.mean, 20) == 12
    assert bytes_per_logit(in_checkpoints, 20) == 58


@pytest.mark.parametrize("rows", [7, 20])
def test_no_more_logits_than_allowed_are_in_memory_and_none_after_the_forward_pass(
    rows: int,
) -> None:
    leaves, y = head()
    with Moved(rows) as moved:
        loss = cross_entropy.mean(leaves[0], leaves[1], y, rows)
    assert moved.largest == max(rows, D) * V  # the gradient of the weight has D x V
    gc.collect()
    kept = [x for x in gc.get_objects() if type(x) is Tensor and x.numel() in (rows * V, N * V)]
    assert kept == []
    assert loss.requires_grad


def test_a_loss_without_gradient_does_one_product_for_each_part() -> None:
    leaves, y = head()
    with torch.no_grad(), Moved(20) as moved:
        loss = cross_entropy.mean(leaves[0], leaves[1], y, 20)
    assert moved.products == 2
    assert not loss.requires_grad
    torch.testing.assert_close(loss, plain(leaves[0], leaves[1], y).detach(), rtol=1e-12, atol=0)


@WITH_TRITON
def test_the_kernel_is_right_in_the_interpreter() -> None:
    run_cases("kernel", interpret=True, cases=CASES)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_kernel_is_right_on_a_device() -> None:
    run_cases("kernel", interpret=False, cases=CASES)
