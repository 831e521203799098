"""A training step of a complete model: forward, backward, clipping, AdamW; on random tokens.

On a GPU blocks are compiled and products are bfloat16, as in training. Blocks are not recomputed:
the measured memory is what the attention needs. Launches may take longer than the work of a small
model: a short step is timed as a CUDA graph, too.

Legend: B batch, T tokens.
"""

import statistics
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from lmscaling import kernels, registry
from lmscaling.bench.clock import LONG_SECONDS, device_of, launched, timed
from lmscaling.bench.memory import Memory
from lmscaling.config.speed import Sweep
from lmscaling.errors import UserError
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT, Block
from lmscaling.records.timing import Outcome, Point


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Training steps of a point's model with the point's implementation.

    Raises:
        UserError: The implementation has no file, or takes no chunk and the point has one.
        torch.OutOfMemoryError: Memory does not suffice.
    """
    step = Step(sweep, point)
    vocabulary, shape = step.cell.model.vocab_size, (2, point.batch, point.context)
    x_BT, y_BT = torch.randint(vocabulary, shape, device=step.device)
    return step.timed(lambda: step.gpt.loss(x_BT, y_BT))


class Step:
    """The model and the optimizer of a point on its device, and the memory that they use."""

    def __init__(self, sweep: Sweep, point: Point) -> None:
        self.sweep, self.point, self.cell = sweep, point, sweep.cell_of(point)
        self.device, self.dtype = device_of(sweep)
        self.memory = Memory(self.device)
        with self.device:  # a core draws the weights of the largest model in 13 s
            gpt = GPT(self.cell)
        self.chunk = _set_implementation(gpt, point, self.device.type)
        self.gpt = gpt.to(self.device)
        if sweep.gpus:
            self.gpt.compile_blocks()
        self.adamw = optimizer.build(self.gpt, self.cell)
        for group in self.adamw.param_groups:
            group["capturable"] = bool(sweep.gpus)  # a CUDA graph may hold the update

    def autocast(self) -> torch.autocast:
        """The precision of the products."""
        enabled = self.dtype != torch.float32
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def __call__(self, loss_of: Callable[[], Tensor]) -> None:
        """One optimizer update on a loss."""
        self.backward(loss_of)
        self.update()
        self.adamw.zero_grad(set_to_none=True)

    def backward(self, loss_of: Callable[[], Tensor]) -> None:
        """The forward and the backward pass of a loss."""
        with self.autocast():
            loss = loss_of()
        loss.backward()

    def update(self) -> None:
        """Clip the gradients and update the weights."""
        torch.nn.utils.clip_grad_norm_(self.gpt.parameters(), self.cell.optimizer.clip_norm)
        self.adamw.step()

    def timed(self, loss_of: Callable[[], Tensor], **more: Any) -> Outcome:
        """Measure further updates on the same loss; ``more`` are columns of the outcome."""
        seconds, most = self.sweep.target_seconds, self.sweep.repeats
        timing = launched(lambda: self(loss_of), self.memory, seconds, most)
        self.backward(loss_of)
        updates = launched(self.update, self.memory, seconds / 4, most)
        self.adamw.zero_grad(set_to_none=True)
        replayed = None
        if self.sweep.gpus and statistics.median(timing.seconds) < LONG_SECONDS:
            with suppress(RuntimeError):  # memory may not suffice for a graph as well
                replayed = timed(lambda: self(loss_of), self.memory, seconds / 2, most)
        return timing.outcome(
            self.point,
            self.dtype,
            compiled=bool(self.sweep.gpus),
            chunk=self.chunk or self.point.chunk,
            params=self.gpt.params,
            flops_per_token=self.gpt.flops_per_token(),
            optimizer_seconds=statistics.median(updates.seconds),
            captured_seconds=statistics.median(replayed.seconds)
            if replayed and replayed.captured
            else None,
            **more,
        )


def _set_implementation(gpt: GPT, point: Point, device_type: str) -> int | None:
    """Choose a model's attention as a point says; the chunk size in use, if there is one."""
    if point.implementation:
        gpt.tune({"implementation": point.implementation})
    attention = next(module for module in gpt.modules() if isinstance(module, Block)).attention
    takes_chunk = _takes_chunk(attention, point.attention, device_type)
    if point.chunk and not takes_chunk:
        raise UserError(f"{point.series} takes no chunk here; leave it out of tune_chunk")
    if point.chunk:
        gpt.tune({"chunk": point.chunk})
    return attention.chunk if takes_chunk else None


def _takes_chunk(attention: Any, name: str, device_type: str) -> bool:
    implementation = getattr(attention, "implementation", "")
    if not implementation:
        return hasattr(attention, "chunk")
    # On a CPU plain PyTorch, which takes a chunk, replaces the fused kernels.
    fused = device_type == "cuda" and implementation == "chunked"
    return not fused and kernels.takes_chunk(kernels.load(registry.family(name), implementation))
