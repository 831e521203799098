"""From a study to its cells: the product of the axes without the skipped combinations.

``checks.py`` checks what involves several fields.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from lmscaling.config import checks, settings
from lmscaling.config.attention_row import Layer
from lmscaling.config.axes import AXES
from lmscaling.config.budget import Counts, parse_budget
from lmscaling.config.cell import Cell, Data, Model
from lmscaling.config.places import UNKNOWN, StudyError, located
from lmscaling.config.study import Study
from lmscaling.config.tasks import Task
from lmscaling.config.validation import checked
from lmscaling.data.rows import Corpus
from lmscaling.types import Split, dump, less

IMAGES = "images"
"""Kind of the datasets whose runs draw images."""

AS_IN_STUDY = (
    "gpus", "update_tokens", "epochs", "clock", "position", "documents", "block", "width_rule",
    "initial", "optimizer", "schedule", "budget", "validation",
)  # fmt: skip
"""Fields that a cell has from its study; exceptions can replace the first three, and ``lr``."""


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
        corpora = [_corpus(self.study, name) for name in names]
        corpora += [_corpus(one, one.dataset) for one in self.variants.values()]
        found: dict[str, Corpus] = {}
        for corpus in corpora:
            found.setdefault(_data(corpus).folder, corpus)
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
        return _data(_corpus(self.study, self.study.dataset)).folder

    @property
    def vocabulary(self) -> str:
        """Name of the tokenizer's file in ``vocabulary/``; empty if it needs none."""
        return _data(_corpus(self.study, self.study.dataset)).vocabulary_file

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
    own, varied = settings.apart(values)
    study = checked(Study, own, UNKNOWN)
    with located(values):
        usual = dump(study) if varied or study.ablate else {}
        several = [*settings.combined(usual, varied)] if usual else []
        cells, branches, skipped = _cells(study)
        for setting in several:
            variant = checked(Study, settings.laid_over(own, usual, setting), UNKNOWN)
            more, their_branches, left_out = _cells(variant)
            for made, found in ((cells, more), (branches, their_branches)):
                named = (settings.labelled(one, usual, setting) for one in found.values())
                made |= {one.run: one for one in named if one}
            left = ((settings.labelled(one, usual, setting), why) for one, why in left_out)
            skipped += [(one, why) for one, why in left if one]
        return Grid(study, cells, branches, skipped, _of_tasks(study))


def _of_tasks(study: Study) -> dict[str, Cell]:
    """The cells of the tasks."""
    used = dict.fromkeys(study.axes.size, "axes")
    cells: dict[str, Cell] = {}
    for name, task in study.tasks.items():
        with of_task(name):
            for i, size in enumerate(task.size):
                problem = (
                    f"{size!r} is used by {used.get(size)} too, and sizes tell tasks apart; add a "
                    "row with another name to sizes"
                )
                checks.check([(("size", i), size not in used, problem)])
                used[size] = f"tasks.{name}"
            own = task.study(study)
            row = study.tokenizers.get(own.tokenizer)
            problem = (
                f"{own.tokenizer!r} is not for tasks, whose tokens are numbers below 256; allowed: "
                "a row with encoding: bytes"
            )
            checks.check([("tokenizer", not row or row.encoding == "bytes", problem)])
            found = _cells(own)[0].values()
        cells |= {one.run: one for one in (replace(cell, task=name) for cell in found)}
    return cells


@contextmanager
def of_task(name: str) -> Iterator[None]:
    """Let mistakes in the study that a task is name the key of the task."""
    try:
        yield
    except StudyError as error:
        path = tuple(part for part in error.path if part != "axes")
        if path and path[0] not in {key.name for key in fields(Task)}:
            raise
        problem = error.problem.replace("--set ", f"--set tasks.{name}.")
        raise StudyError(("tasks", name, *path), problem) from None


def _cells(study: Study) -> tuple[dict[str, Cell], dict[str, Cell], list[tuple[Cell, str]]]:
    """Trunks, branches and skipped cells of a grid."""
    checks.check(checks.of_study(study))
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
        checks.check(checks.of_cell(study, trunk))
        cells[trunk.run] = trunk
        for share in trunk.keep:
            branch = replace(trunk, branch=share, keep=())
            branches[branch.run] = branch
    checks.check(checks.of_parts(study))
    checks.check([("skip", cells, "leaves no cell; remove an entry or add a value to an axis")])
    return cells, branches, skipped


def cell(study: Study, point: dict[str, Any]) -> Cell:
    """The cell at a point of the axes."""
    size = study.sizes[point["size"]]
    corpus = _corpus(study, study.dataset)
    own = study.axes.layers.get(point["attention"], ())
    named = {layer.attention for layer in own} or {point["attention"]}
    branches = study.branches
    common = {name: getattr(study, name) for name in AS_IN_STUDY}
    common["lr"] = size.rate(point["attention"])
    for exempt in study.exceptions:
        if exempt.covers(point):
            common |= exempt.overrides
    common["lr"] *= point["lr_scale"]
    made = Cell(
        **point,
        **common,
        layers=own,
        match=_matched(study, point["attention"]),
        base_width=study.base_width if study.width_rule else None,
        model=Model(vocab_size=corpus.encoding.n_vocab, **less(dump(size), "lr")),
        data=_data(corpus),
        block_tokens=corpus.source.blocks(study.protocol.get("all", 1), point["context"]),
        protocol={k: v for k, v in study.protocol.items() if k in {"all", *named} and v != 1},
        keep=tuple(sorted(branches.shares)) if branches and branches.covers(point) else (),
    )
    return _resolved(made, study.counts.get(made.computation) if study.counts else None)


def _resolved(cell: Cell, counts: Counts | None) -> Cell:
    """A cell with its budget in updates, if the budget depends on the model and this is counted."""
    budget = parse_budget(cell.budget)
    if not budget.is_of_model or counts is None:
        return cell
    updates = round(budget.updates(cell.update_tokens, counts))
    problem = (
        f"{cell.budget} is less than one update of {cell.update_tokens} tokens at size {cell.size};"
        " write a larger budget, or fewer update_tokens"
    )
    checks.check([("budget", updates >= 1, problem)])
    return replace(cell, budget=f"{updates} updates", rung=cell.budget)


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


def _data(corpus: Corpus) -> Data:
    row = corpus.encoding
    return Data(
        dataset=corpus.dataset,
        source=corpus.source.identity(),
        tokenizer=corpus.tokenizer,
        encoding=row.name,
        vocabulary={"sha256": row.sha256} if row.file else {},
    )
