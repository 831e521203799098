"""The sampling of one token after a context."""

from dataclasses import replace

import torch
from torch import Tensor

from lmscaling.bench.clock import device_of, timed
from lmscaling.bench.memory import Memory
from lmscaling.config.speed import Sweep
from lmscaling.model.gpt import GPT, States
from lmscaling.records.timing import Outcome, Point


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Sample the next token of ``point.batch`` sequences of ``point.context`` tokens.

    The cache is that of a real forward pass. The same step is repeated, always at the same length,
    so that a cache never outgrows its memory and a CUDA graph can hold the step; the state of
    linear attention adds the same token repeatedly, which changes no time. Sampling is greedy.
    Weights are bfloat16 on a GPU; the measured memory is that of weights, cache and step.
    """
    device, dtype = device_of(sweep)
    memory = Memory(device)
    # The position table has a row for the token that is sampled.
    with device:
        gpt = GPT(replace(sweep.cell_of(point), context=point.context + 1)).to(device, dtype)
    if point.implementation:
        gpt.tune({"implementation": point.implementation})
    x_B, states = filled(gpt, point.batch, point.context)
    memory.reset()

    def sample() -> Tensor:
        logits_BV, _ = gpt.decode_step(x_B, states)
        return logits_BV.argmax(-1)

    timing = timed(sample, memory, sweep.target_seconds, sweep.repeats)
    return timing.outcome(point, dtype, params=gpt.params)


def filled(gpt: GPT, batch: int, context: int) -> tuple[Tensor, States]:
    """A next token ``[B]`` for each sequence, and the states after random tokens before it."""
    x_BT = torch.randint(gpt.vocab_size, (batch, context), device=gpt.wte.weight.device)
    logits_BV, states = gpt.prefill(x_BT, gpt.init_states(batch, context + 1))
    return logits_BV.argmax(-1), states
