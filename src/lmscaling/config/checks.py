"""What must fit together in a study: names and their rows, parts of the grid and axes, shapes."""

import math
from collections.abc import Iterable

from lmscaling import registry
from lmscaling.config.axes import AXES, Where
from lmscaling.config.cell import Cell
from lmscaling.config.places import StudyError
from lmscaling.config.study import Study
from lmscaling.data.sequences import Sequences
from lmscaling.errors import choose

NODE_GPUS = 8
"""GPUs of the largest common node."""

MOST_CELLS = 10_000
"""Combinations of the axes; each is planned, and is a file."""

RESERVED = {"published", "measured", "readme.md"}
"""Names in ``results/``, in lower case, that are under version control and belong to no study."""


def check_rows(study: Study) -> None:
    """Check that every name has its row or its file."""
    rates, known = study.axes.lr_scale, study.axes.values("attention")
    for name in rates if isinstance(rates, dict) else ():
        if name not in known:
            raise StudyError(
                f"axes.lr_scale {name!r} is no attention of the study; {choose(name, known)}",
                *("axes", "lr_scale", name),
            )
    _check_sizes(study)
    if study.study.lower() in RESERVED:
        raise StudyError(
            f"study {study.study!r} is the name of a folder of results/ that is under "
            "version control, or of its README; choose another name",
            "study",
        )
    uses = [
        ("dataset", [study.dataset], study.datasets, "row under datasets"),
        (
            "evaluate.datasets",
            study.evaluate.datasets if study.evaluate else [],
            study.datasets,
            "row under datasets",
        ),
        *_speed_uses(study),
        ("tokenizer", [study.tokenizer], study.tokenizers, "row under tokenizers"),
        ("axes.size", study.axes.size, study.sizes, "row under sizes"),
        ("protocol", study.protocol, ["all", *registry.attentions()], "file in attention/"),
    ]
    for place, names, known, what in uses:
        for i, name in enumerate(names):
            if name not in known:
                sentence = f"{place} {name!r} has no {what}; {choose(name, known)}"
                path = (int(part) if part.isdigit() else part for part in place.split("."))
                raise StudyError(sentence, *path, name if place == "protocol" else i)
    _check_sequences(study)
    if study.branches and study.schedule.kind != "constant":  # a branch has a decay of its own
        raise StudyError(
            f"branches need trunks at a constant rate, and schedule is "
            f"{study.schedule.kind}; write branches: null or schedule: constant",
            "schedule",
        )


def _check_sequences(study: Study) -> None:
    """Check that sequences keep their tokens, and that no text is evaluated that is none."""
    source, row = study.datasets[study.dataset], study.tokenizers[study.tokenizer]
    if isinstance(source, Sequences) and row.encoding != "bytes":
        raise StudyError(
            f"tokenizer {study.tokenizer!r} is not for dataset {study.dataset}, whose tokens are "
            "numbers below 256; allowed: a row with encoding: bytes",
            "tokenizer",
        )
    for i, name in enumerate(study.evaluate.datasets if study.evaluate else []):
        if isinstance(study.datasets[name], Sequences):
            texts = [n for n, row in study.datasets.items() if not isinstance(row, Sequences)]
            raise StudyError(
                f"evaluate.datasets {name!r} has sequences, of which not every target counts; "
                f"{choose(name, texts)}",
                *("evaluate", "datasets", i),
            )


def _check_sizes(study: Study) -> None:
    """Check that every size has a learning rate for every attention."""
    for name in study.axes.size:
        rates = study.sizes[name].lr if name in study.sizes else 0.0
        for attention in study.axes.values("attention"):
            point = {"attention": attention, "size": name}
            if any(skip.axes.keys() <= point.keys() and skip.covers(point) for skip in study.skip):
                continue
            if isinstance(rates, dict) and attention not in rates:
                raise StudyError(
                    f"sizes.{name}.lr has no rate of attention {attention!r}, only of "
                    f"{', '.join(rates)}; write lr: {{{attention}: <rate>, ...}}",
                    *("sizes", name, "lr"),
                )


def check_axes(study: Study) -> None:
    """Check that the axes have not so many combinations that planning them would not end."""
    n = math.prod(len(study.axes.values(axis)) for axis in AXES)
    if n > MOST_CELLS:
        raise StudyError(
            f"the axes have {n:,} combinations; allowed: up to {MOST_CELLS:,} in one study", "axes"
        )


def _speed_uses(study: Study) -> list[tuple[str, list[str], Iterable[str], str]]:
    speed = study.speed
    used = {"speed.time_decode": speed.time_decode} if speed and speed.time_decode else {}
    used |= {f"speed.time_step.{i}": x for i, x in enumerate((speed and speed.time_step) or ())}
    return [
        (f"{place}.sizes", section.sizes, study.sizes, "row under sizes")
        for place, section in used.items()
    ]


def _divisors(n: int) -> list[int]:
    """Divisors of a number up to a million, and those that they leave."""
    small = [d for d in range(1, min(math.isqrt(n), 10**6) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def check_shape(study: Study, cell: Cell) -> None:
    """Check that a context divides the update and the validation set and occupies every device."""
    every, update, context = cell.validation.every_tokens, cell.update_tokens, cell.context
    where = ("axes", "context", study.axes.context.index(context))
    if cell.model.token_shift and cell.is_masked:
        raise StudyError(
            f"sizes.{cell.size}.token_shift reads the token before a document, which documents: "
            "masked forbids; write token_shift: false or documents: mixed",
            *("sizes", cell.size, "token_shift"),
        )
    if every % update:
        nearest = max(1, round(every / update)) * update
        raise StudyError(
            f"validation.every_tokens {every} is not a multiple of "
            f"update_tokens {update}; nearest is {nearest}",
            *("validation", "every_tokens"),
        )
    for place, tokens in (("update_tokens", update), ("validation.tokens", cell.validation.tokens)):
        if tokens % context:
            nearest = min(_divisors(tokens), key=lambda d: abs(d - context))
            raise StudyError(
                f"axes.context {context} does not divide {place} {tokens}; nearest is {nearest}",
                *where,
            )
    if cell.is_masked and cell.block_tokens and cell.block_tokens % context:
        nearest = max(1, round(cell.block_tokens / context)) * context
        raise StudyError(
            f"axes.context {context} does not divide block_tokens {cell.block_tokens} "
            f"of datasets.{cell.data.dataset}, and a masked document must not go on in another "
            f"block; write block_tokens: {nearest} or documents: mixed",
            *where,
        )
    if cell.gpus > NODE_GPUS:
        raise StudyError(
            f"gpus {cell.gpus} is more than one node has, and a cell runs on one node; "
            f"allowed: up to {NODE_GPUS}",
            "gpus",
        )
    if cell.gpus and cell.clock == "processor":
        raise StudyError(
            f"clock processor counts no time of the {cell.gpus} gpus; write clock: wall or gpus: 0",
            "clock",
        )
    sequences = update // context
    if cell.gpus and sequences % cell.gpus:
        fewer = max(d for d in range(1, cell.gpus + 1) if sequences % d == 0)
        larger = math.lcm(sequences, cell.gpus) * context
        raise StudyError(
            f"axes.context {context} gives {sequences} sequences per update of "
            f"{update} tokens, which {cell.gpus} gpus cannot share evenly; write gpus: {fewer} or "
            f"update_tokens: {larger} under exceptions, or skip it with "
            f"skip: [{{context: {context}, reason: ...}}]",
            *where,
        )
    width = cell.model.d_model // cell.model.n_head
    if cell.position == "rope" and width % 2:
        raise StudyError(
            f"position rope rotates pairs of channels, but heads of size {cell.size} "
            f"have {width} channels; allowed: an even number",
            "position",
        )


def check_parts(study: Study) -> None:
    """Check that every value of a part of the grid is on its axis."""
    for place in ("skip", "exceptions", "calibrate", "branches", "evaluate"):
        given = getattr(study, place)
        off = f"{place}: []" if isinstance(given, list) else f"{place}: null"
        for i, part in enumerate(given if isinstance(given, list) else [given]):
            for axis, values in part.axes.items() if isinstance(part, Where) else ():
                known = study.axes.values(axis)
                for k, value in enumerate(values):
                    if value not in known:
                        raise StudyError(
                            f"{place} {{{part.describe()}}} has {axis} {value}, which no cell has; "
                            f"{choose(value, known)}; correct it, or write {off} in your "
                            f"study file or --set {off.replace(': ', '=')}",
                            *(place, i, axis, k),
                        )
