"""Whether a kernel that a study times computes the right numbers, at shapes of the study.

Legend: B sequences, T tokens, H heads, K head width.
"""

import math
from collections.abc import Iterator
from typing import Any

from lmscaling import kernels, registry
from lmscaling.bench import layer
from lmscaling.bench.checks import exactness, gate
from lmscaling.bench.checks.exactness import SEGMENTED, Comparison, Shape
from lmscaling.bench.clock import device_of
from lmscaling.config.speed import Sweep
from lmscaling.model.gpt import PAD_VOCABULARY

LOSS = "cross_entropy"
"""The name of the kernel of the loss, among ``linear/chunked`` and so on."""

ODD = ((2, 63, 3), (1, 200, 25), (1, 1000, 2))
"""Shapes [B, T, H] that are no multiples of a tile; GPT-2 XL has 25 heads."""

ODD_VOCABULARY = 257


def compared(name: str, steps: list[Sweep]) -> Iterator[Comparison]:
    """A kernel compared with exact results, on the device and in the dtype of the speed study.

    The shapes are those of the shortest step of the smallest model and of the next one of the
    largest: exact results of longer ones do not fit into memory. Kernels of ours are compared at
    odd ones, too, and at one that is cut into segments.

    Args:
        name: ``linear/chunked``, ``peer/fla_chunk`` or ``LOSS``.
        steps: Sweeps of ``time_step`` in order of size.
    """
    device, dtype = device_of(steps[0])
    first, last = (one.cell_of(one.points[0]).model for one in (steps[0], steps[-1]))
    if name == LOSS:
        padded = math.ceil(first.vocab_size / PAD_VOCABULARY) * PAD_VOCABULARY
        for V in (padded, ODD_VOCABULARY):
            yield from gate.of_losses(gate.losses, device, dtype, V)
        return
    kind, _, implementation = name.partition("/")
    attend = layer.load(kind, implementation)
    T = sorted({point.context for one in steps for point in one.points})[:2]
    odd = [*ODD, *([SEGMENTED] if kernels.takes_chunk(attend) else [])]
    odd = [] if kind in ("softmax", "peer") else odd  # others answer for their kernels
    shapes: list[Shape] = [
        *((*shape, first.d_model // first.n_head) for shape in odd),
        (4, T[0], first.n_head, first.d_model // first.n_head),
        (1, T[-1], last.n_head, last.d_model // last.n_head),
    ]
    for shape in shapes:
        yield from exactness.every(registry.family(kind), attend, device, dtype, shape)


def fault(line: dict[str, Any] | None) -> str:
    """What is wrong with a kernel, by the values of its comparisons or the message of their end;
    empty if nothing is, or if it was not compared."""
    if line is None:
        return ""
    found = (Comparison(**values) for values in line["value"] or [])
    return line["message"] or exactness.first_fault(found) or ""
