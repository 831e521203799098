"""From a study to its cells: the product of the axes without the skipped combinations.

This module checks what involves several fields: that rows exist, that contexts divide the update,
that devices can share its sequences, and that every ``skip`` matches a cell.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from lmscaling import registry
from lmscaling.config import attention_row
from lmscaling.config.attention_row import Layer
from lmscaling.config.axes import Where
from lmscaling.config.cell import Cell, Data, Model
from lmscaling.config.datasets import Corpus
from lmscaling.config.lr_law import FITTED
from lmscaling.config.places import UNKNOWN, StudyError, located
from lmscaling.config.sequences import Sequences
from lmscaling.config.study import Study
from lmscaling.config.types import Split
from lmscaling.config.validation import checked
from lmscaling.errors import choose

AXES = ("attention", "size", "context", "seed", "lr_scale")
"""Axes of a grid; cells are ordered by the first axis, then by the second, and so on."""

NODE_GPUS = 8
"""GPUs of the largest common node."""

MOST_CELLS = 10_000
"""Combinations of the axes; each is planned, and is a file."""

IMAGES = "images"
"""Kind of the datasets whose runs draw images."""

RESERVED = {"published", "measured", "readme.md"}
"""Names in ``results/``, in lower case, that are under version control and belong to no study."""


@dataclass(frozen=True)
class Grid:
    """A study with its cells by run, and the skipped cells with the reason."""

    study: Study
    cells: dict[str, Cell]
    """Trunks: runs that start at update 0."""
    branches: dict[str, Cell]
    """Decayed branches of the trunks."""
    skipped: list[tuple[Cell, str]]
    tasks: dict[str, Cell] = field(default_factory=dict)
    """Runs of the tasks. Of the properties below, texts and checks include them."""
    folder: str = "results"
    """Folder of all studies."""

    @property
    def results(self) -> str:
        """Folder of this study."""
        return f"{self.folder}/{self.study.study}"

    @property
    def runs(self) -> dict[str, Cell]:
        """Trunks, branches and runs of the tasks."""
        return self.cells | self.branches | self.tasks

    @property
    def corpora(self) -> dict[str, Corpus]:
        """Texts for training and evaluation with their tokenizer, by folder in ``tokens/``."""
        evaluate = self.study.evaluate
        names = [self.study.dataset, *(evaluate.datasets if evaluate else [])]
        corpora = [(self.study, _corpus(self.study, name)) for name in names]
        corpora += [(one, _corpus(one, one.dataset)) for one in self.variants.values()]
        found: dict[str, Corpus] = {}
        for study, corpus in corpora:
            found.setdefault(_data(study, corpus).folder, corpus)
        return found

    @property
    def variants(self) -> dict[str, Study]:
        """The study that each task is, by the name of the task."""
        return {name: task.study(self.study) for name, task in self.study.tasks.items()}

    @property
    def trained(self) -> set[str]:
        """Folders in ``tokens/`` of the texts that cells train on."""
        return {self.tokens, *(cell.data.folder for cell in self.tasks.values())}

    @property
    def tokens(self) -> str:
        """Folder in ``tokens/`` of the training text."""
        return _data(self.study, _corpus(self.study, self.study.dataset)).folder

    @property
    def vocabulary(self) -> str:
        """Name of the tokenizer's file in ``vocabulary/``; empty if it needs none."""
        return _data(self.study, _corpus(self.study, self.study.dataset)).vocabulary_file

    def n_shards(self, folder: str, split: Split) -> int:
        """Number of shards of a split to tokenize; none of ``train`` for a text only evaluated."""
        if split == "train" and folder not in self.trained:
            return 0
        return len(self.corpora[folder].source.files(split))

    @property
    def evaluated(self) -> list[str]:
        """Runs whose final weights are evaluated by position."""
        part = self.study.evaluate
        return [run for run, cell in self.cells.items() if part and part.covers(vars(cell))]

    @property
    def drawing(self) -> dict[str, Cell]:
        """Runs of the tasks that train on images, whose final weights draw some."""
        kinds = {run: cell.data.source.get("kind") for run, cell in self.tasks.items()}
        return {run: self.tasks[run] for run, kind in kinds.items() if kind == IMAGES}

    @property
    def checked(self) -> dict[str, Cell]:
        """Names of the checks of kernels, each with a cell that uses them; none on a CPU."""
        cells = [*self.cells.values(), *self.tasks.values()]
        return {cell.check: cell for cell in reversed(cells) if cell.gpus}


def expand(values: dict[str, Any]) -> Grid:
    """The cells of a study, in the order of its axes.

    Raises:
        UserError: The study is invalid, or a cell cannot run.
    """
    study = checked(Study, values, UNKNOWN)
    with located(values):
        return _expand(study)


def _expand(study: Study) -> Grid:
    cells, branches, skipped = _cells(study)
    return Grid(study, cells, branches, skipped, _of_tasks(study))


def _of_tasks(study: Study) -> dict[str, Cell]:
    """The cells of the tasks."""
    used = dict.fromkeys(study.axes.size, "axes")
    cells: dict[str, Cell] = {}
    for name, task in study.tasks.items():
        for i, size in enumerate(task.size):
            if size in used:
                raise StudyError(
                    f"tasks.{name} has size {size!r}, which {used[size]} uses too, and sizes tell "
                    "tasks apart; add a row with another name to sizes",
                    *("tasks", name, "size", i),
                )
            used[size] = f"tasks.{name}"
        tokenizer = study.tokenizers.get(task.tokenizer or study.tokenizer)
        if tokenizer and tokenizer.encoding != "bytes":
            raise StudyError(
                f"tasks.{name} has tokenizer {task.tokenizer or study.tokenizer!r}; allowed: a row "
                "with encoding: bytes, because the tokens of tasks are numbers below 256",
                *("tasks", name, "tokenizer"),
            )
        try:
            found, _, _ = _cells(task.study(study))
        except StudyError as error:
            path = [part for part in error.path if part != "axes"]
            sentence = error.sentence.replace("axes.", "")
            raise StudyError(f"tasks.{name}: {sentence}", "tasks", name, *path) from None
        for cell in found.values():
            own = replace(cell, task=name)
            cells[own.run] = own
    return cells


def _cells(study: Study) -> tuple[dict[str, Cell], dict[str, Cell], list[tuple[Cell, str]]]:
    """Trunks, branches and skipped cells of a grid."""
    _check_rows(study)
    _check_schedule(study)
    _check_number(study)
    cells, branches, skipped = {}, {}, []
    for combination in product(*(study.axes.values(axis) for axis in AXES)):
        point: dict[str, Any] = dict(zip(AXES, combination, strict=True))
        if point["lr_scale"] not in study.axes.rates(point["attention"]):
            continue
        trunk = cell(study, point)
        reasons = [skip.reason for skip in study.skip if skip.covers(point)]
        if reasons:
            skipped.append((trunk, reasons[0]))
            continue
        _check_shape(study, trunk)
        cells[trunk.run] = trunk
        for share in trunk.keep:
            branch = replace(trunk, branch=share, keep=())
            branches[branch.run] = branch
    for place, parts in (
        ("skip", study.skip),
        ("exceptions", study.exceptions),
        ("calibrate", [study.calibrate]),
        ("branches", [study.branches]),
        ("evaluate", [study.evaluate]),
    ):
        for i, part in enumerate(parts):
            if isinstance(part, Where):
                _check_part(study, place, i, part)
    if not cells:
        raise StudyError(
            "every cell is skipped; remove an entry of skip or add a value to an axis", "skip"
        )
    return cells, branches, skipped


def cell(study: Study, point: dict[str, Any]) -> Cell:
    """The cell at a point of the axes."""
    size = study.sizes[point["size"]]
    corpus = _corpus(study, study.dataset)
    layers = study.axes.layers
    own = layers.get(point["attention"], ())
    protocols = {
        "all",
        *(layer.attention for layer in own or (Layer(attention=point["attention"]),)),
    }
    branches = study.branches
    common = {name: getattr(study, name) for name in ("gpus", "update_tokens", "epochs")}
    for exempt in study.exceptions:
        if exempt.covers(point):
            common |= exempt.overrides
    return Cell(
        **point,
        **common,
        layers=own,
        match=_matched(study, point["attention"]),
        lr=size.rate(point["attention"]) * point["lr_scale"],
        model=Model(
            n_layer=size.n_layer,
            n_head=size.n_head,
            d_model=size.d_model,
            vocab_size=corpus.encoding.n_vocab,
            token_shift=size.token_shift,
            init_std=size.init_std,
        ),
        clock=study.clock,
        position=study.position,
        documents=study.documents,
        data=_data(study, corpus),
        block_tokens=corpus.source.blocks(study.protocol.get("all", 1), point["context"]),
        optimizer=study.optimizer,
        schedule=study.schedule,
        budget=study.budget,
        validation=study.validation,
        protocol={k: v for k, v in study.protocol.items() if k in protocols and v != 1},
        keep=tuple(sorted(branches.shares)) if branches and branches.covers(point) else (),
    )


def _matched(study: Study, attention: str) -> tuple[Layer, ...]:
    """Layers of the baseline whose parameters a model of this attention has; none for itself."""
    baseline = study.compared_with
    if study.match is None or attention == baseline:
        return ()
    return study.axes.layers[baseline] or (Layer(attention=baseline),)


def _corpus(study: Study, dataset: str) -> Corpus:
    return Corpus(
        dataset=dataset,
        source=study.datasets[dataset],
        tokenizer=study.tokenizer,
        encoding=study.tokenizers[study.tokenizer],
    )


def _data(study: Study, corpus: Corpus) -> Data:
    row = corpus.encoding
    return Data(
        dataset=corpus.dataset,
        source=corpus.source.identity(),
        tokenizer=corpus.tokenizer,
        encoding=row.name,
        vocabulary={"sha256": row.sha256} if row.file else {},
    )


def _check_rows(study: Study) -> None:
    """Check that every name has its row or its file."""
    attention_row.check(study.axes.attention)
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
                raise StudyError(sentence, *place.split("."), name if place == "protocol" else i)
    _check_sequences(study)


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
        if rates == FITTED:
            raise StudyError(
                f"sizes.{name}.lr is fitted, but lr_law names no file; write "
                "lr_law: results/<study of rates>/lr_law.json, which lmscaling fit-rates "
                "writes",
                *("sizes", name, "lr"),
            )
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


def _check_number(study: Study) -> None:
    """Check that the axes have not so many combinations that planning them would not end."""
    n = math.prod(len(study.axes.values(axis)) for axis in AXES)
    if n > MOST_CELLS:
        raise StudyError(
            f"the axes have {n:,} combinations; allowed: up to {MOST_CELLS:,} in one study", "axes"
        )


def _check_schedule(study: Study) -> None:
    """A branch has a decay of its own, so its trunk must not have one."""
    if study.branches and study.schedule.kind != "constant":
        raise StudyError(
            f"branches need trunks at a constant rate, and schedule is "
            f"{study.schedule.kind}; write branches: null or schedule: constant",
            "schedule",
        )


def _speed_uses(study: Study) -> list[tuple[str, list[str], Iterable[str], str]]:
    sections: dict[str, Any] = {k: getattr(study.speed, k, None) for k in registry.kinds()}
    return [
        (f"speed.{kind}.sizes", section.sizes, study.sizes, "row under sizes")
        for kind, section in sections.items()
        if hasattr(section, "sizes")
    ]


def _divisors(n: int) -> list[int]:
    """Divisors of a number up to a million, and those that they leave."""
    small = [d for d in range(1, min(math.isqrt(n), 10**6) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _check_shape(study: Study, cell: Cell) -> None:
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


def _check_part(study: Study, place: str, i: int, part: Where) -> None:
    """Check that every value of a part is on its axis."""
    for axis, values in part.axes.items():
        known = study.axes.values(axis)
        for k, value in enumerate(values):
            if value not in known:
                raise StudyError(
                    f"{place} {{{part.describe()}}} matches no cell; {axis} {choose(value, known)}",
                    *(place, i, axis, k),
                )
