"""A training step of a complete model: forward, backward, clipping, AdamW; on random tokens.

On a GPU blocks are compiled and products are bfloat16, as in training. Blocks are not recomputed:
the measured memory is what the attention needs. Launches may take longer than the work of a small
model: a short step is timed as a CUDA graph, too.

Legend: B batch, T tokens.
"""

import statistics
from contextlib import suppress
from typing import Any

import torch

from lmscaling import registry
from lmscaling.bench.clock import LONG_SECONDS, device_of, launched, timed
from lmscaling.bench.memory import Memory
from lmscaling.config.speed import Sweep
from lmscaling.model import optimizer
from lmscaling.model.block import Block
from lmscaling.model.gpt import GPT
from lmscaling.records.timing import Outcome, Point


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Training steps of a point's model with the point's implementation, on the same tokens.

    Raises:
        UserError: The implementation has no file.
        torch.OutOfMemoryError: Memory does not suffice.
    """
    step, seconds, most = Step(sweep, point), sweep.target_seconds, sweep.repeats
    timing = launched(step, step.memory, seconds, most)
    step.backward()
    updates = launched(step.update, step.memory, seconds / 4, most)
    step.adamw.zero_grad(set_to_none=True)
    replayed = None
    if sweep.gpus and statistics.median(timing.seconds) < LONG_SECONDS:
        with suppress(RuntimeError):  # memory may not suffice for a graph as well
            replayed = timed(step, step.memory, seconds / 2, most)
    return timing.outcome(
        point,
        step.dtype,
        compiled=bool(sweep.gpus),
        chunk=step.chunk or point.chunk,
        params=step.gpt.params,
        flops_per_token=step.gpt.flops_per_token(),
        optimizer_seconds=statistics.median(updates.seconds),
        captured_seconds=statistics.median(replayed.seconds)
        if replayed and replayed.captured
        else None,
    )


class Step:
    """The model, the optimizer and the tokens of a point on its device, and their memory."""

    def __init__(self, sweep: Sweep, point: Point) -> None:
        self.cell = sweep.cell_of(point)
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
        vocabulary, shape = self.cell.model.vocab_size, (2, point.batch, point.context)
        self.x_BT, self.y_BT = torch.randint(vocabulary, shape, device=self.device)

    def __call__(self) -> None:
        """One optimizer update."""
        self.backward()
        self.update()
        self.adamw.zero_grad(set_to_none=True)

    def backward(self) -> None:
        """The forward and the backward pass."""
        enabled = self.dtype != torch.float32
        with torch.autocast(self.device.type, torch.bfloat16, enabled=enabled):
            loss = self.gpt.loss(self.x_BT, self.y_BT)
        loss.backward()

    def update(self) -> None:
        """Clip the gradients and update the weights."""
        torch.nn.utils.clip_grad_norm_(self.gpt.parameters(), self.cell.optimizer.clip_norm)
        self.adamw.step()


def _set_implementation(gpt: GPT, point: Point, device_type: str) -> int | None:
    """Choose a model's attention as a point says; the chunk size in use, if there is one."""
    if point.implementation:
        gpt.tune({"implementation": point.implementation})
    if point.chunk:
        gpt.tune({"chunk": point.chunk})
    attention = next(module for module in gpt.modules() if isinstance(module, Block)).attention
    return attention.chunk if _takes_chunk(attention, point.attention, device_type) else None


def _takes_chunk(attention: Any, name: str, device_type: str) -> bool:
    implementation = getattr(attention, "implementation", "")
    if not implementation:
        return hasattr(attention, "chunk")
    # On a CPU plain PyTorch, which takes a chunk, replaces the fused kernels.
    family = getattr(attention, "FAMILY", name)
    fused = device_type == "cuda" and implementation == "chunked"
    return not fused and registry.takes_chunk(f"{family}/{implementation}")
