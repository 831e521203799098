"""The table ``cells``: every cell and branch of a study, planned or skipped, and published runs."""

from collections.abc import Iterator
from dataclasses import dataclass

from lmscaling.config import code
from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """One row of ``cells``."""

    source: str
    """``measured``, or ``published`` for a run that others trained."""
    run: str
    """Cell name and hash."""
    name: str
    """Name of the cell, for people."""
    attention: str
    """File stem in ``attention/``, or the label of a row of ``axes.attention``; with ``(code ...)``
    if its runs were trained by several versions of its code and this one not by the newest."""
    baseline: str
    """The attention that the others of its study are compared with."""
    size: str
    """Row under ``sizes:``."""
    context: int
    """Tokens of a sequence."""
    seed: int
    """Seed of weights and data order."""
    lr_scale: float
    """Factor of the size's learning rate."""
    lr: float
    """Peak learning rate."""
    branch: float | None
    """Share of the budget at which a decayed branch ends; null of a trunk."""
    trunk: str
    """Run that a branch starts from; of a trunk its own run."""
    d_model: int
    """Width of the model."""
    n_layer: int
    """Blocks of the model."""
    positions: str
    """How the model gets positions: ``learned``, ``rope`` or ``none``."""
    masked: bool
    """Whether attention does not cross documents."""
    task: str | None
    """Row under ``tasks:``; null of a cell of the grid."""
    dataset: str
    """Row under ``datasets:``."""
    kind: str | None
    """Kind of the dataset; null of published runs."""
    encoding: str
    """Name of the encoding of its tokens."""
    schedule: str
    """Kind of the learning-rate schedule, such as ``constant``; ``unknown`` of published runs."""
    update_tokens: int
    """Tokens per optimizer update, over all devices."""
    budget: str
    """What the run may spend, as the study file says it."""
    budget_amount: float
    """The same as a number, in ``budget_unit``."""
    budget_unit: str
    """``hours``, ``minutes`` or ``seconds`` of productive time, ``updates`` or ``tokens``."""
    skipped: str | None
    """Why the cell is not trained; null if it is."""
    present_code: str | None
    """Fingerprint of the present source of the attention; null of published runs."""
    place: int | None
    """Number of the cell in the study's order, from 0; null of published runs."""


def rows(grid: Grid) -> Iterator[CellRow]:
    """The cells of a study in its order: trunks, branches, skipped ones, those of tasks."""
    cells = [(cell, None) for cell in [*grid.cells.values(), *grid.branches.values()]]
    tasks = [(cell, None) for cell in grid.tasks.values()]
    for place, (cell, skipped) in enumerate([*cells, *grid.skipped, *tasks]):
        yield _row(cell, skipped, place, grid.study.compared_with)


def _row(cell: Cell, skipped: str | None, place: int, baseline: str) -> CellRow:
    budget = parse_budget(cell.budget)
    return CellRow(
        source="measured",
        run=cell.run,
        name=cell.name,
        attention=cell.attention,
        baseline=baseline,
        size=cell.size,
        context=cell.context,
        seed=cell.seed,
        lr_scale=cell.lr_scale,
        lr=cell.lr,
        branch=cell.branch,
        trunk=cell.trunk,
        d_model=cell.model.d_model,
        n_layer=cell.model.n_layer,
        positions=cell.position,
        masked=cell.is_masked,
        task=cell.task,
        dataset=cell.data.dataset,
        kind=str(cell.data.source.get("kind", "")) or None,
        encoding=cell.data.encoding,
        schedule=cell.schedule.kind,
        update_tokens=cell.update_tokens,
        budget=cell.budget,
        budget_amount=budget.amount,
        budget_unit=budget.unit,
        skipped=skipped,
        present_code=code.present(cell),
        place=place,
    )
