"""Which cells are calibrated, and whose calibration the others use.

With ``calibrate: auto`` these are the few cells that tell the times of all. How well updates are
known once some are measured does not depend on their times, so this is settled before anything
runs: of each attention those cells are picked, one after another, that leave the least mean
variance, until the time of every cell is known within a factor of ``NARROW``. A calibration that
exists counts as measured. The choice is that for an H100, whatever device trains.

In the published steps, up to six measured ones lower the error of the others, to a median of 3 %;
more of them only make intervals narrower, to a factor of 1.15 with twelve.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmscaling.config import devices
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.plan import estimate
from lmscaling.plan.estimate import Shape
from lmscaling.plan.throughput.coefficients import shipped
from lmscaling.plan.throughput.model import QUANTILES, Coefficients, vector
from lmscaling.plan.throughput.terms import UNKNOWN, kind_of

AUTO = "auto"
NARROW = 1.15
"""Factor within which the time of a step is to be known with a probability of 95 %. Repeats and
what the terms leave out are a factor of 1.10."""
NEAR = 65536
"""Longest context that is measured for the sake of others, tokens."""
REFERENCE_NAME = "NVIDIA H100"
REFERENCE = devices.DEVICES[REFERENCE_NAME]

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


def chosen(grid: Grid, finished: Collection[str] = ()) -> dict[str, Cell]:
    """Names of the calibrations of a study, each with a cell that uses it.

    With ``auto`` the choice stays the same while these are made, one after another or at once: no
    calibration that exists is dropped, and the others are dropped in a fixed order.

    Args:
        grid: The study.
        finished: Names of calibrations that exist.
    """
    part = grid.study.calibrate
    cells = {cell.calibration: cell for cell in reversed(grid.cells.values())}
    if part != AUTO:
        return {name: c for name, c in cells.items() if part and part.covers(vars(c))}
    computed = {cell.attention: cell for cell in cells.values()}
    computed = {label: ways(cell) for label, cell in computed.items()}
    points = {name: _Point.of(cell, computed[cell.attention]) for name, cell in cells.items()}
    attentions: dict[str, list[str]] = {}
    for name, cell in sorted(cells.items()):
        attentions.setdefault(cell.attention, []).append(name)
    picked: list[str] = []
    for own in attentions.values():
        _pick(points, own, picked)
    kept: set[str] = set()
    for existing in (set(), set(finished) & cells.keys()):
        kept = existing | set(picked)
        for name in reversed(picked):
            fewer = kept - {name}
            if name not in existing and all(_enough(points, o, fewer) for o in attentions.values()):
                kept = fewer
        picked = [name for name in picked if name in kept]
    return {name: cell for name, cell in cells.items() if name in kept}


def nearest(cell: Cell, calibrated: Mapping[str, Cell]) -> str:
    """The calibration that a cell uses: its own, or that of the same attention with the same size
    and the nearest context; empty if there is none."""
    if cell.calibration in calibrated:
        return cell.calibration
    same = [
        name
        for name, other in calibrated.items()
        if (other.attention, bool(other.gpus)) == (cell.attention, bool(cell.gpus))
    ]
    return min(same, key=lambda name: (*_distance(cell, calibrated[name]), name), default="")


def _distance(cell: Cell, other: Cell) -> tuple[bool, float, float]:
    sizes = [c.model.n_layer * c.model.d_model**2 for c in (cell, other)]
    return (
        cell.model != other.model,
        abs(math.log(cell.context / other.context)),
        abs(math.log(sizes[0] / sizes[1])),
    )


@dataclass(frozen=True)
class _Point:
    """A cell as the throughput model sees it on the device that is calibrated."""

    ways: Ways
    part: str
    """Of the cells that share it, one has to be measured."""
    context: int
    x_K: NDArray

    @classmethod
    def of(cls, cell: Cell, own: Ways) -> "_Point":
        part = cell.size if UNKNOWN in own.values() else ""
        size = shape(cell, own)
        layout = estimate.guess(cell, size.params_total, REFERENCE.memory_bytes, size.kinds)
        layout = layout or estimate.SMALLEST
        work = estimate.work(cell, size, layout.micro_batch, layout.recompute, 1)
        return cls(own, part, cell.context, vector(work, REFERENCE))


Points = Mapping[str, _Point]


def _known(points: Points, own: Sequence[str], measured: Collection[str]) -> Coefficients:
    """What will be known of the cells of an attention once some cells are measured."""
    telling = [
        points[n].x_K for n in sorted(measured) if tells(points[own[0]].ways, points[n].ways)
    ]
    return shipped().once_measured(np.array(telling)) if telling else shipped()


def _wide(points: Points, names: Sequence[str], known: Coefficients) -> list[str]:
    """Cells whose time is not known well enough."""
    sds = known.sds(np.array([points[name].x_K for name in names])) if names else []
    return [n for n, sd in zip(names, sds, strict=True) if QUANTILES[0.95] * sd > math.log(NARROW)]


def _lacking(points: Points, own: Sequence[str], measured: Collection[str]) -> set[str]:
    """Parts of the cells of an attention of which none is measured: its options need one
    calibration, and if nobody knows how it is computed, one of each size."""
    return {points[n].part for n in own} - {points[n].part for n in own if n in measured}


def _enough(points: Points, own: Sequence[str], measured: Collection[str]) -> bool:
    """Whether some measurements are enough for an attention."""
    lacking = _lacking(points, own, measured)
    return not lacking and not _wide(points, own, _known(points, own, measured))


def _pick(points: Points, own: Sequence[str], picked: list[str]) -> None:
    """Add the cells of an attention that are to be measured, the most telling first. A cell with a
    longer context than ``NEAR`` is only measured for itself."""
    near = [name for name in own if points[name].context <= NEAR]
    targets = [points[name].x_K for name in own]
    while not _enough(points, own, picked):
        known, lacking = _known(points, own, picked), _lacking(points, own, picked)
        pool = near if _wide(points, near, known) else _wide(points, own, known)
        pool = pool or [n for n in near or own if points[n].part in lacking] or own
        pool = [name for name in pool if name not in picked]
        picked.append(pool[known.to_measure([points[n].x_K for n in pool], targets, 1)[0]])
