"""Sampling one token behind so many others: a cache of keys and values, or a state.

The cache is that of a real forward pass over random tokens. The same step is repeated, always at
the same length, so that a cache never outgrows its room and a CUDA graph can hold the step; the
state of linear attention adds the same token again and again, which changes no time. Sampling is
greedy. Weights are bfloat16 on a GPU, and memory is that of weights, cache and step.

Legend: B batch, T tokens.
"""

from dataclasses import replace

import torch
from torch import Tensor

from lmscaling.bench import device as place
from lmscaling.bench.clock import timed
from lmscaling.bench.memory import Memory
from lmscaling.bench.result import Outcome
from lmscaling.config.sweeps import Point, Sweep
from lmscaling.model.gpt import GPT, States


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Steps of ``point.batch`` sequences behind ``point.context`` tokens.

    Raises:
        UserError: The implementation has no file.
        torch.OutOfMemoryError: Memory does not suffice.
    """
    device, dtype = place.of(sweep)
    memory = Memory(device)
    # The position table has a row for the token that is sampled.
    gpt = GPT(replace(sweep.of(point), context=point.context + 1)).to(device, dtype)
    if point.implementation:
        gpt.tune({"implementation": point.implementation})
    x_B, states = filled(gpt, point.batch, point.context)
    memory.reset()
    timing = timed(lambda: _sample(gpt, x_B, states), memory, sweep.point_seconds, sweep.repeats)
    return replace(Outcome.of(timing, dtype), params=gpt.params)


def filled(gpt: GPT, batch: int, context: int) -> tuple[Tensor, States]:
    """A token of each sequence to go on with, and the states behind random tokens before it."""
    x_BT = torch.randint(gpt.vocab_size, (batch, context), device=gpt.wte.weight.device)
    logits_BV, states = gpt.prefill(x_BT, gpt.init_states(batch, context + 1))
    return logits_BV.argmax(-1), states


def _sample(gpt: GPT, x_B: Tensor, states: States) -> Tensor:
    logits_BV, _ = gpt.decode_step(x_B, states)
    return logits_BV.argmax(-1)
