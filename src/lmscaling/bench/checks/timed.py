"""Whether the kernels that a study times compute the right numbers, at shapes of the study.

What is wrong is not timed. Legend: B sequences, T tokens, H heads, K head width.
"""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lmscaling import kernels, registry
from lmscaling.bench import layer
from lmscaling.bench.checks import exactness, gate, record
from lmscaling.bench.checks.exactness import SEGMENTED, Comparison, Shape
from lmscaling.bench.clock import device_of
from lmscaling.bench.isolation import isolated
from lmscaling.config import study_file, sweeps
from lmscaling.config.speed import Sweep
from lmscaling.errors import UserError
from lmscaling.model.gpt import PAD_VOCABULARY
from lmscaling.records.checks import Finding
from lmscaling.runtime import gpus

LOSS = "cross_entropy"
"""The name of the kernel of the loss, among ``linear/chunked`` and so on."""

ODD = ((2, 63, 3), (1, 200, 25), (1, 1000, 2))
"""Shapes [B, T, H] that are no multiples of a tile; GPT-2 XL has 25 heads."""

ODD_VOCABULARY = 257

SECONDS = 300.0
"""Time limit for a kernel; most of it is compiling."""


def check(study: Path, out: Path) -> list[Finding]:
    """Compare each kernel that a study times with exact results, in a process of its own.

    Args:
        study: ``study.json``.
        out: Gets a finding for each kernel, whose ``way`` is its name.

    Raises:
        UserError: The study is damaged, or the device cannot be used.
    """
    planned = study_file.read_record(study).grid.study
    steps = models(list(sweeps.expand(planned).values()))
    names = sweeps.kernels(planned)
    names = [n for n in names if "peer/" not in n or n.removeprefix("peer/") in layer.peers()]
    with gpus.reserved(1 if planned.gpus else 0):
        here = isolated(gate.conditions, SECONDS)
        if here.status != "done":
            raise UserError(f"the device cannot be used: {here.message}; type lmscaling doctor")
        found = [
            record.examine({"part": name, **here.value}, name, partial(_isolated, name, steps))
            for name in (*names, LOSS)
        ]
    record.write(out, found)
    return found


def _isolated(name: str, steps: list[Sweep]) -> str:
    ended = isolated(partial(fault, name, steps), SECONDS)
    return ended.message or ended.value or ""


def models(planned: list[Sweep]) -> list[Sweep]:
    """From small to large, the sweeps of steps, or all of models and layers if there are none."""
    known = [one for one in planned if one.heads]
    steps = [one for one in known if one.kind == "time_step"] or known
    return sorted(steps, key=lambda one: one.heads.n_head * one.heads.d_head if one.heads else 0)


def fault(name: str, steps: list[Sweep]) -> str | None:
    """The first wrong number of a kernel as a message; None if all are right."""
    return exactness.first_fault(_compared(name, steps))


def _compared(name: str, steps: list[Sweep]) -> Iterator[Comparison]:
    """A kernel compared with exact results, on the device and in the dtype of the speed study.

    The shapes are those of the shortest step of the smallest model and of the next one of the
    largest: exact results of longer ones do not fit into memory. Kernels of ours are compared at
    odd ones, too, and at one that is cut into segments.

    Args:
        name: ``linear/chunked``, ``peer/fla_chunk`` or ``LOSS``.
        steps: Those of ``models``.
    """
    first, last = steps[0], steps[-1]
    device, dtype = device_of(first)
    if name == LOSS:
        vocabulary = last.cell.model.vocab_size if last.cell else ODD_VOCABULARY
        for V in {math.ceil(vocabulary / PAD_VOCABULARY) * PAD_VOCABULARY, ODD_VOCABULARY}:
            yield from gate.of_losses(gate.losses, device, dtype, V)
        return
    assert first.heads
    assert last.heads
    kind, _, implementation = name.partition("/")
    attend = layer.load(kind, implementation)
    # Only these kernels lack gates of channels.
    form = ("channel",) if kind == "gated" and implementation != "chunked" else exactness.LINEAR
    odd = [*ODD, *([SEGMENTED] if kernels.takes_chunk(attend) else [])]
    odd = [] if kind in ("softmax", "peer") else odd  # others answer for their kernels
    shortest, *_ = _contexts(first)
    *_, next_one = _contexts(last)[:2]
    shapes: list[Shape] = [
        *((*shape, last.heads.d_head) for shape in odd),
        (4, shortest, first.heads.n_head, first.heads.d_head),
        (1, next_one, last.heads.n_head, last.heads.d_head),
    ]
    for shape in shapes:
        yield from exactness.every(registry.family(kind), attend, device, dtype, shape, form)


def _contexts(one: Sweep) -> list[int]:
    return sorted({point.context for point in one.points})
