"""From a study to its cells: the product of the axes, less the combinations skipped.

What no single field can know is checked here: that rows exist, that contexts divide, that the
sequences of an update can be shared among the devices, and that every ``skip`` leaves something
out. Nothing is trained, opened or imported for it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from lmscaling import registry
from lmscaling.config.axes import Where
from lmscaling.config.cell import Cell, Data, Model
from lmscaling.config.datasets import Corpus
from lmscaling.config.study import Study
from lmscaling.config.types import Split
from lmscaling.config.validation import checked
from lmscaling.errors import UserError, choose

AXES = ("attention", "size", "context", "seed", "lr_scale")
"""Axes of a grid, in the order in which cells are numbered."""

NODE_GPUS = 8
"""Devices of the largest usual node."""

RESERVED = {"published", "measured"}
"""Folders of ``results/`` that are no study: they are in git."""


@dataclass(frozen=True)
class Grid:
    """A study with its cells by run, and what was left out of it with the reason."""

    study: Study
    cells: dict[str, Cell]
    """Trunks: runs that begin at update 0."""
    branches: dict[str, Cell]
    """Decayed branches of them."""
    skipped: list[tuple[Cell, str]]

    @property
    def corpora(self) -> dict[str, Corpus]:
        """What is tokenized, by its folder below ``tokens/``: to train on and to evaluate on."""
        evaluate = self.study.evaluate
        names = [self.study.dataset, *(evaluate.datasets if evaluate else [])]
        corpora = [_corpus(self.study, name) for name in names]
        return {_data(corpus).folder: corpus for corpus in corpora}

    @property
    def tokens(self) -> str:
        """Folder below ``tokens/`` of what the cells train on."""
        return _data(_corpus(self.study, self.study.dataset)).folder

    def n_shards(self, folder: str, split: Split) -> int:
        """Shards of a split to tokenize; training text is for training only."""
        if split == "train" and folder != self.tokens:
            return 0
        return len(self.corpora[folder].source.files(split))

    @property
    def evaluated(self) -> list[str]:
        """Runs whose final weights are evaluated by position."""
        part = self.study.evaluate
        return [run for run, cell in self.cells.items() if part and part.covers(vars(cell))]

    @property
    def calibrated(self) -> dict[str, Cell]:
        """Calibrations that are measured, each with a cell that it serves."""
        part = self.study.calibrate
        found = [cell for cell in self.cells.values() if part and part.covers(vars(cell))]
        return {cell.calibration: cell for cell in reversed(found)}


def expand(values: dict[str, Any]) -> Grid:
    """The cells of a study, in the order of its axes.

    Raises:
        UserError: Something in the study cannot be run; one sentence says what and what would.
    """
    study = checked(Study, values, "study file")
    _check_rows(study)
    cells, branches, skipped = {}, {}, []
    for chosen in product(*(getattr(study.axes, axis) for axis in AXES)):
        point: dict[str, Any] = dict(zip(AXES, chosen, strict=True))
        made = cell(study, point)
        reasons = [skip.reason for skip in study.skip if skip.covers(point)]
        if reasons:
            skipped.append((made, reasons[0]))
            continue
        _check_shape(made)
        cells[made.run] = made
        for share in made.keep:
            branch = replace(made, branch=share, keep=())
            branches[branch.run] = branch
    for place, parts in (
        ("skip", study.skip),
        ("exceptions", study.exceptions),
        ("calibrate", [study.calibrate]),
        ("branches", [study.branches]),
        ("evaluate", [study.evaluate]),
    ):
        for part in parts:
            if part is not None:
                _check_part(study, place, part)
    if not cells:
        raise UserError("study file: skip leaves no cell; remove an entry or add to an axis")
    return Grid(study, cells, branches, skipped)


def cell(study: Study, point: dict[str, Any]) -> Cell:
    """The cell at a point of the axes."""
    size = study.sizes[point["size"]]
    corpus = _corpus(study, study.dataset)
    concerned = ("all", point["attention"])
    branches = study.branches
    common = {name: getattr(study, name) for name in ("gpus", "update_tokens", "epochs")}
    for exempt in study.exceptions:
        if exempt.covers(point):
            common |= exempt.instead
    return Cell(
        **point,
        **common,
        lr=size.lr * point["lr_scale"],
        model=Model(
            n_layer=size.n_layer,
            n_head=size.n_head,
            d_model=size.d_model,
            vocab_size=corpus.encoding.vocab_size,
        ),
        position=study.position,
        data=_data(corpus),
        optimizer=study.optimizer,
        budget=study.budget,
        validation=study.validation,
        protocol={k: v for k, v in study.protocol.items() if k in concerned and v != 1},
        keep=tuple(sorted(branches.shares)) if branches and branches.covers(point) else (),
    )


def _corpus(study: Study, dataset: str) -> Corpus:
    return Corpus(
        dataset=dataset,
        source=study.datasets[dataset],
        tokenizer=study.tokenizer,
        encoding=study.tokenizers[study.tokenizer],
    )


def _data(corpus: Corpus) -> Data:
    return Data(
        dataset=corpus.dataset,
        source=corpus.source.identity(),
        tokenizer=corpus.tokenizer,
        encoding=corpus.encoding.encoding,
    )


def _check_rows(study: Study) -> None:
    """Every name used has its row or its file."""
    if study.study in RESERVED:
        raise UserError(
            f"study file: study {study.study!r} is a folder of results/ in git; rename it"
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
        ("axes.attention", study.axes.attention, registry.attentions(), "file in attention/"),
        ("protocol", study.protocol, ["all", *registry.attentions()], "file in attention/"),
    ]
    for place, names, known, what in uses:
        for name in names:
            if name not in known:
                raise UserError(
                    f"study file: {place} {name!r} has no {what}; {choose(name, known)}"
                )


def _speed_uses(study: Study) -> list[tuple[str, list[str], Iterable[str], str]]:
    sections: dict[str, Any] = {k: getattr(study.speed, k, None) for k in registry.kinds()}
    return [
        (f"speed.{kind}.sizes", section.sizes, study.sizes, "row under sizes")
        for kind, section in sections.items()
        if hasattr(section, "sizes")
    ]


def _check_shape(cell: Cell) -> None:
    """A context must cut the update and the validation set evenly, and feed every device."""
    every, update, context = cell.validation.every_tokens, cell.update_tokens, cell.context
    if every % update:
        nearest = max(1, round(every / update)) * update
        raise UserError(
            f"study file: validation.every_tokens {every} is not a multiple of "
            f"update_tokens {update}; nearest is {nearest}"
        )
    for place, tokens in (("update_tokens", update), ("validation.tokens", cell.validation.tokens)):
        if tokens % context:
            divisors = [d for d in range(1, tokens + 1) if tokens % d == 0]
            nearest = min(divisors, key=lambda d: abs(d - context))
            raise UserError(
                f"study file: axes.context {context} does not divide {place} {tokens}; "
                f"nearest is {nearest}"
            )
    if cell.gpus > NODE_GPUS:
        raise UserError(
            f"study file: gpus {cell.gpus} is more than one node has; the ranks of a cell share "
            f"one node, for train starts them itself under one clock; allowed: up to {NODE_GPUS}"
        )
    sequences = update // context
    if cell.gpus and sequences % cell.gpus:
        fewer = max(d for d in range(1, cell.gpus + 1) if sequences % d == 0)
        larger = math.lcm(sequences, cell.gpus) * context
        raise UserError(
            f"study file: axes.context {context} makes {sequences} sequences an update of {update} "
            f"tokens, which {cell.gpus} gpus cannot share evenly; give it gpus: {fewer} or "
            f"update_tokens: {larger} under exceptions, or leave it out with "
            f"skip: [{{context: {context}, reason: ...}}]"
        )
    width = cell.model.d_model // cell.model.n_head
    if cell.position == "rope" and width % 2:
        raise UserError(
            f"study file: position rope turns pairs, and heads of size {cell.size} are {width} "
            "wide; allowed: an even width"
        )


def _check_part(study: Study, place: str, part: Where) -> None:
    """A part that names a value which is not on its axis is a slip, and so is an empty one."""
    for axis, values in part.axes.items():
        known = getattr(study.axes, axis)
        for value in values:
            if value not in known:
                raise UserError(
                    f"study file: {place} {{{part.words}}} matches no cell; "
                    f"{axis} {choose(value, known)}"
                )
