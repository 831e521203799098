"""Which cells are calibrated, and whose calibration the others use.

With ``calibrate: auto`` these are a few cells of each attention, far from each other in size and
context. Of the published steps, six chosen so predict the others with a median error of 3 %.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.plan.footprint import Shape
from lmscaling.plan.throughput.terms import UNKNOWN, kind_of

AUTO = "auto"
FEW = 3
"""Calibrations of an attention. One that does not say how it is computed has one of each size."""
NEAR = 65536
"""Longest context that is measured for the sake of others, tokens. A longer one is only measured
for a size that has no other."""

Ways = Mapping[str, str]
"""How attentions are computed, by the label of their layers."""


def ways(cell: Cell) -> dict[str, str]:
    """How the attentions of a cell are computed, as their files say."""
    return {layer.label: kind_of(layer.attention) for layer in cell.mixers}


def tells(target: Ways, measured: Ways) -> bool:
    """Whether an update with some attentions tells of one with others: two attentions that are
    computed in one way have kernels of their own, and so coefficients of their own."""
    return not any(
        kind in target.values() and label not in target for label, kind in measured.items()
    )


def shape(cell: Cell, of: Ways) -> Shape:
    """The size of a cell's model, counted without the model; its FLOPs are not."""
    model, labels = cell.model, [layer.label for layer in cell.mixers]
    kinds: dict[str, int] = {}
    for i in range(model.n_layer):
        kind = of[labels[i % len(labels)]]
        kinds[kind] = kinds.get(kind, 0) + 1
    params = 12 * model.n_layer * model.d_model**2
    params += (model.vocab_size + cell.context) * model.d_model
    return Shape(params, 0.0, kinds=kinds)


class Place(NamedTuple):
    """Where an update is in the grid of sizes and contexts."""

    layers: int
    heads: int
    width: int
    context: int

    @property
    def size(self) -> tuple[int, ...]:
        return self[:3]

    @property
    def logarithms(self) -> tuple[float, float]:
        """Of the parameters of all blocks, up to a constant, and of the context."""
        return math.log(self.layers * self.width**2), math.log(self.context)

    def apart(self, other: "Place") -> tuple[bool, float]:
        """How far two updates are from each other: another size is farther than any context."""
        return self.size != other.size, math.dist(self.logarithms, other.logarithms)


def spread(places: Sequence[Place], n: int) -> list[int]:
    """Indices of up to ``n`` places: the smallest, and one after another the farthest from all
    that are picked."""
    picked = [min(range(len(places)), key=lambda i: places[i].logarithms)]
    while len(picked) < min(n, len(places)):
        rest = (i for i in range(len(places)) if i not in picked)
        picked.append(max(rest, key=lambda i: min(places[i].apart(places[j]) for j in picked)))
    return picked


def chosen(grid: Grid, finished: Collection[str] = ()) -> dict[str, Cell]:
    """Names of the calibrations of a study, each with a cell that uses it.

    With ``auto`` every calibration that exists is kept, and takes the place of the nearest of the
    few. So the choice stays the same while these are made, one after another or at once.

    Args:
        grid: The study.
        finished: Names of calibrations that exist.
    """
    part = grid.study.calibrate
    cells = {cell.calibration: cell for cell in reversed(grid.cells.values())}
    if part != AUTO:
        return {name: c for name, c in cells.items() if part and part.covers(vars(c))}
    groups: dict[tuple[str, bool], dict[str, Cell]] = {}
    for name, cell in sorted(cells.items()):
        groups.setdefault((cell.attention, bool(cell.gpus)), {})[name] = cell
    kept = set(finished) & cells.keys()
    for own in groups.values():
        few = _few(own)
        others = own.keys() & kept - few.keys()
        kept |= few.keys() - {nearest(own[name], few) for name in others}
    return {name: cell for name, cell in cells.items() if name in kept}


def _few(own: Mapping[str, Cell]) -> dict[str, Cell]:
    """The cells of an attention that are calibrated if no calibration exists."""
    places = {name: _place(cell) for name, cell in own.items()}
    sizes, short = ({p.size for p in places.values() if p.context <= c} for c in (math.inf, NEAR))
    names = [n for n, p in places.items() if p.context <= NEAR or p.size not in short]
    is_known = UNKNOWN not in ways(next(iter(own.values()))).values()
    picked = spread([places[n] for n in names], FEW if is_known else max(FEW, len(sizes)))
    return {names[i]: own[names[i]] for i in picked}


def _place(cell: Cell) -> Place:
    return Place(cell.model.n_layer, cell.model.n_head, cell.model.d_model, cell.context)


def nearest(cell: Cell, calibrated: Mapping[str, Cell]) -> str:
    """The calibration that a cell uses: its own, or the nearest of the same attention, of the same
    size if there is one; empty if there is none."""
    if cell.calibration in calibrated:
        return cell.calibration
    same = [
        name
        for name, other in calibrated.items()
        if (other.attention, bool(other.gpus)) == (cell.attention, bool(cell.gpus))
    ]
    return min(same, key=lambda n: (_place(cell).apart(_place(calibrated[n])), n), default="")
