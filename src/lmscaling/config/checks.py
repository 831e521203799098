"""What must fit together in a study, as rules; grid.py asks for them.

A rule is the path of a value, whether the value is right, and the end of the sentence if it is not,
which follows the path. Rules are asked in their order until one is broken, so a later rule can rely
on an earlier one.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from lmscaling import registry
from lmscaling.config.axes import AXES, Where
from lmscaling.config.cell import Cell
from lmscaling.config.places import KeyPath, StudyError
from lmscaling.config.study import Study
from lmscaling.data.sequences import Sequences
from lmscaling.errors import choose

NODE_GPUS = 8
"""GPUs of the largest common node."""

MOST_CELLS = 10_000
"""Combinations of the axes; each is planned, and is a file."""

RESERVED = {"published", "measured", "readme.md"}
"""Names in ``results/``, in lower case, that are under version control and belong to no study."""

Rule = tuple[KeyPath | str, object, str]


def check(rules: Iterable[Rule]) -> None:
    """Ask rules in their order.

    Raises:
        StudyError: The first one that is broken.
    """
    for path, holds, problem in rules:
        if not holds:
            raise StudyError(path, problem)


def of_study(study: Study) -> Iterator[Rule]:
    """Every name has its row or its file, and the rows suit each other."""
    yield (
        "study",
        study.study.lower() not in RESERVED,
        f"{study.study!r} is the name of a folder of results/ that is under version control, or of "
        "its README; choose another name",
    )
    for path, names, rows in _names(study):
        known = getattr(study, rows)
        for i, name in enumerate(names):
            problem = f"{name!r} has no row under {rows}; {choose(name, known)}"
            yield (*path, i), name in known, problem
    files = ["all", *registry.attentions()]
    for name in study.protocol:
        problem = f"{name!r} has no file in attention/; {choose(name, files)}"
        yield ("protocol", name), name in files, problem
    yield from _of_rates(study)
    yield from _of_widths(study)
    yield from _of_texts(study)
    yield (
        "schedule",
        not study.branches or study.schedule.kind == "constant",  # a branch has its own decay
        f"{study.schedule.kind} has no constant rate, which branches need; write branches: null or "
        "schedule: constant",
    )
    n = math.prod(len(study.axes.values(axis)) for axis in AXES)
    yield (
        "axes",
        n <= MOST_CELLS,
        f"would have {n:,} combinations; allowed: up to {MOST_CELLS:,} in one study",
    )


def _names(study: Study) -> Iterator[tuple[KeyPath, Sequence[str], str]]:
    """Names of rows with their path and the section that must have them."""
    speed = study.speed
    yield ("dataset",), [study.dataset], "datasets"
    yield ("tokenizer",), [study.tokenizer], "tokenizers"
    yield ("axes", "size"), study.axes.size, "sizes"
    if study.evaluate:
        yield ("evaluate", "datasets"), study.evaluate.datasets, "datasets"
    if speed and speed.time_decode:
        yield ("speed", "time_decode", "sizes"), speed.time_decode.sizes, "sizes"
    for i, step in enumerate((speed and speed.time_step) or ()):
        yield ("speed", "time_step", i, "sizes"), step.sizes, "sizes"


def _of_rates(study: Study) -> Iterator[Rule]:
    """Factors are of attentions of the study, and every cell has a learning rate."""
    attentions, scales = study.axes.values("attention"), study.axes.lr_scale
    for name in scales if isinstance(scales, dict) else ():
        yield (
            ("axes", "lr_scale", name),
            name in attentions,
            f"is of no attention of the study; {choose(name, attentions)}",
        )
    for name in study.axes.size:
        rates = study.sizes[name].lr
        if not isinstance(rates, dict):
            continue
        for attention in attentions:
            point = {"attention": attention, "size": name}
            is_skipped = any(s.axes.keys() <= point.keys() and s.covers(point) for s in study.skip)
            yield (
                ("sizes", name, "lr"),
                is_skipped or attention in rates,
                f"has no rate of attention {attention!r}, only of {', '.join(rates)}; write "
                f"lr: {{{attention}: <rate>, ...}}",
            )


def _of_widths(study: Study) -> Iterator[Rule]:
    """A rule of widths has a base, AdamW, and sizes that differ in width by their heads."""
    if study.width_rule is None:
        return
    sizes = {name: study.sizes[name] for name in study.axes.size}
    yield (
        "width_rule",
        study.base_width,
        f"{study.width_rule} needs the width that learning rates are for; write base_width: "
        f"{min(size.d_model for size in sizes.values())}",
    )
    yield (
        "width_rule",
        study.optimizer.kind == "adamw",
        f"{study.width_rule} has learning rates for AdamW, not for {study.optimizer.kind}; write "
        "width_rule: null or optimizer: {kind: adamw}",
    )
    width = min(size.d_model // size.n_head for size in sizes.values())
    for name, size in sizes.items():
        d_model = _multiple(size.d_model, width)
        yield (
            ("sizes", name),
            size.d_model == size.n_head * width,
            f"has heads of {size.d_model // size.n_head} channels, those of another size have "
            f"{width}, and width_rule: {study.width_rule} needs heads of one width; write n_head: "
            f"{d_model // width} and d_model: {d_model}",
        )


def _of_texts(study: Study) -> Iterator[Rule]:
    """Sequences keep their tokens, and no text is evaluated that is none."""
    is_text = {name: not isinstance(row, Sequences) for name, row in study.datasets.items()}
    yield (
        "tokenizer",
        is_text[study.dataset] or study.tokenizers[study.tokenizer].encoding == "bytes",
        f"{study.tokenizer!r} is not for dataset {study.dataset}, whose tokens are numbers below "
        "256; allowed: a row with encoding: bytes",
    )
    for i, name in enumerate(study.evaluate.datasets if study.evaluate else ()):
        texts = [text for text in is_text if is_text[text]]
        yield (
            ("evaluate", "datasets", i),
            is_text[name],
            f"{name!r} has sequences, of which not every target counts; {choose(name, texts)}",
        )


def of_parts(study: Study) -> Iterator[Rule]:
    """Every value of a part of the grid is on its axis."""
    for place in ("skip", "exceptions", "calibrate", "branches", "evaluate"):
        given = getattr(study, place)
        is_list = isinstance(given, list)
        off = "[]" if is_list else "null"
        parts = {(place, i): part for i, part in enumerate(given)} if is_list else {(place,): given}
        for path, part in parts.items():
            for axis, values in part.axes.items() if isinstance(part, Where) else ():
                known = study.axes.values(axis)
                for i, value in enumerate(values):
                    yield (
                        (*path, axis, i),
                        value in known,
                        f"{value} of {{{part.describe()}}} occurs in no cell; "
                        f"{choose(value, known)}; correct it, or write {place}: {off} in your "
                        f"study file or --set {place}={off}",
                    )


@cache
def _divisors(n: int) -> list[int]:
    """Divisors of a number up to a million, and those that they leave."""
    small = [d for d in range(1, min(math.isqrt(n), 10**6) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _multiple(n: int, of: int) -> int:
    """The multiple of a number that is nearest to another."""
    return max(1, round(n / of)) * of


def of_block(cell: Cell, attentions: Iterable[str]) -> Iterator[Rule]:
    """Attentions can be computed with the heads of a block."""
    n_head, shared = cell.model.n_head, cell.block.n_kv_head or 1
    yield (
        ("block", "n_kv_head"),
        n_head % shared == 0,
        f"{shared} does not divide the {n_head} heads of size {cell.size}; nearest is "
        f"{min(_divisors(n_head), key=lambda d: abs(d - shared))}",
    )
    for key, off in (("n_kv_head", "null"), ("qk_norm", "false")):
        for name in attentions:
            yield (
                ("block", key),
                not getattr(cell.block, key) or registry.takes(name, key),
                f"is a value that attention {name} has no parameter for; write {key}: {off}, or "
                "leave the attention out",
            )


def of_cell(study: Study, cell: Cell) -> Iterator[Rule]:
    """A context divides the update and the validation set and occupies every device."""
    yield from of_block(cell, cell.variants)
    every, update, context = cell.validation.every_tokens, cell.update_tokens, cell.context
    of_context = ("axes", "context", study.axes.context.index(context))
    yield (
        "initial",
        cell.position != "learned" or not cell.initial or cell.initial.context == context,
        f"has weights of another context than {context}, and learned positions end with theirs; "
        "write position: rope or none, in both studies",
    )
    yield (
        "validation.every_tokens",
        every % update == 0,
        f"{every} is not a multiple of update_tokens {update}; nearest is "
        f"{_multiple(every, update)}",
    )
    nearest = min(_divisors(update), key=lambda d: abs(d - context))
    problem = f"{context} does not divide update_tokens {update}; nearest is {nearest}"
    yield of_context, update % context == 0, problem
    tokens = cell.validation.tokens
    yield (
        "validation.tokens",
        tokens % context == 0,
        f"{tokens} is not a multiple of context {context}; nearest is {_multiple(tokens, context)}",
    )
    block = cell.block_tokens or 0
    yield (
        of_context,
        not cell.is_masked or block % context == 0,
        f"{context} does not divide block_tokens {block} of datasets.{cell.data.dataset}, and a "
        "masked document must not go on in another block; write block_tokens: "
        f"{_multiple(block, context)} or documents: mixed",
    )
    yield (
        "gpus",
        cell.gpus <= NODE_GPUS,
        f"{cell.gpus} is more than one node has, and a cell runs on one node; allowed: up to "
        f"{NODE_GPUS}",
    )
    yield (
        "clock",
        not cell.gpus or cell.clock == "wall",
        f"processor counts no time of the {cell.gpus} gpus; write clock: wall or gpus: 0",
    )
    sequences, gpus = update // context, max(1, cell.gpus)
    fewer = max(n for n in range(1, gpus + 1) if sequences % n == 0)
    yield (
        of_context,
        sequences % gpus == 0,
        f"{context} gives {sequences} sequences per update of {update} tokens, which {gpus} gpus "
        f"cannot share evenly; write gpus: {fewer} or update_tokens: "
        f"{math.lcm(sequences, gpus) * context} under exceptions, or skip it with skip: "
        f"[{{context: {context}, reason: ...}}]",
    )
    width = cell.model.d_model // cell.model.n_head
    yield (
        "position",
        cell.position != "rope" or width % 2 == 0,
        f"rope rotates pairs of channels, but heads of size {cell.size} have {width} channels; "
        "allowed: an even number",
    )
