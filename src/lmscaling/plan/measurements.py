"""What a study has measured of the times of its updates: calibrations, finished runs, and steps of
its speed study. They replace predictions, and refit the coefficients of the others."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from lmscaling.config import devices, sweeps
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.devices import Device
from lmscaling.config.grid import Grid
from lmscaling.config.validation import checked
from lmscaling.files import read_json
from lmscaling.plan import calibrations, estimate
from lmscaling.plan.calibrations import Ways
from lmscaling.plan.footprint import Shape
from lmscaling.plan.throughput import timed_steps
from lmscaling.plan.throughput.model import Coefficients, Timing, known_of, vector
from lmscaling.records import finished

REFERENCE = "NVIDIA H100"
"""Device of a plan that names none and has no measurement."""
TRAINED_BY = ("softmax flash", "linear chunked")
"""Methods of the speed study that runs compute with. Others tell of what they have in common."""

Record = Mapping[str, Any]


class Update(NamedTuple):
    """A measured update."""

    ways: Ways
    timing: Timing
    is_run: bool = False
    """Whether it is the mean of a run, not a calibration or step."""


@dataclass(frozen=True)
class Measurements:
    """What a study has measured on the device of a plan."""

    name: str
    """Of the device."""
    device: Device
    calibrations: dict[str, Calibration]
    """By name."""
    runs: dict[str, Record]
    """Records of runs that have ended after at least one update."""
    updates: list[Update]
    """What refits the coefficients."""
    unlisted: str = ""
    """A device that is not listed and whose measurements are used all the same; else empty."""
    _fitted: dict[tuple[int, ...], Coefficients] = field(default_factory=dict)

    def telling(self, target: Ways) -> tuple[int, ...]:
        """The updates that tell of cells with some attentions."""
        told = enumerate(self.updates)
        return tuple(i for i, update in told if calibrations.tells(target, update.ways))

    def fitted(self, target: Ways) -> Coefficients:
        """The coefficients for cells with some attentions."""
        telling = self.telling(target)
        if telling not in self._fitted:
            these = [self.updates[i] for i in telling]
            known = known_of(self.device).measured([u.timing for u in these if not u.is_run])
            self._fitted[telling] = known.trained_on([u.timing for u in these if u.is_run])
        return self._fitted[telling]


def read(grid: Grid, shapes: Mapping[str, Shape], device: str, results: Path) -> Measurements:
    """What ``results/<study>`` has of the cells of a study.

    Args:
        grid: The study.
        shapes: Size of the model of each cell, by run.
        device: Name of the device of the plan; empty for that of the measurements, or an H100.
        results: ``results/<study>``.

    Raises:
        UserError: The device is unknown, or a calibration is damaged.
    """
    own = grid.study.own_devices
    measured = {
        path.stem: checked(Calibration, read_json(path, "calibration"), str(path))
        for path in sorted(results.glob("calibrations/*.json"))
    }
    runs = dict(_runs(grid, results))
    names = Counter([c.device for c in measured.values()])
    names.update(record["environment"]["device"] for record in runs.values())
    on_gpus = {name for name in names if any(cell.gpus for cell in grid.cells.values())}
    listed = sorted(on_gpus & {n for n in names if devices.find(n, own)}, key=lambda n: -names[n])
    name = device or next(iter(listed), REFERENCE)
    kind = devices.required(name, own)

    def counts(of: str, cell: Cell) -> bool:
        found = devices.find(of, own)
        return not cell.gpus or found == kind or (not device and found is None)

    cells = {cell.calibration: cell for cell in grid.cells.values()}
    measured = {n: c for n, c in measured.items() if n in cells and counts(c.device, cells[n])}
    runs = {
        run: record
        for run, record in runs.items()
        if counts(record["environment"]["device"], grid.cells[run])
    }
    used = {c.device for c in measured.values()}
    used |= {record["environment"]["device"] for record in runs.values()}
    unlisted = min((n for n in used & on_gpus if devices.find(n, own) is None), default="")
    updates = [
        *_of_cells(grid, shapes, kind, measured, runs),
        *_of_steps(grid, kind, results),
    ]
    return Measurements(name, kind, measured, runs, updates, unlisted)


def _runs(grid: Grid, results: Path) -> Iterator[tuple[str, Record]]:
    for run in grid.cells:
        path = results / "runs" / run / "run.json"
        if path.is_file() and (record := finished.look(path))["updates"]:
            yield run, record


def _of_cells(
    grid: Grid,
    shapes: Mapping[str, Shape],
    kind: Device,
    measured: Mapping[str, Calibration],
    runs: Mapping[str, Record],
) -> Iterator[Update]:
    """Calibrations, which are made on one device and reduce no gradient, and runs."""
    of = {cell.calibration: run for run, cell in grid.cells.items()}
    found: list[tuple[Any, ...]] = [
        (of[name], c.device, c.micro_batch, c.recompute, 1, c.update_seconds, False)
        for name, c in measured.items()
    ]
    for run, record in runs.items():
        settings, device = record["calibration"], record["environment"]["device"]
        layout = settings["micro_batch"], settings.get("recompute", False), grid.cells[run].gpus
        found.append((run, device, *layout, record["train_seconds"] / record["updates"], True))
    for run, device, micro_batch, recompute, gpus, seconds, is_run in found:
        cell = grid.cells[run]
        if cell.gpus and seconds and devices.find(device, grid.study.own_devices):
            of_cell = estimate.work(cell, shapes[run], micro_batch, recompute, gpus)
            yield Update(calibrations.ways(cell), Timing(vector(of_cell, kind), seconds), is_run)


def _of_steps(grid: Grid, kind: Device, results: Path) -> Iterator[Update]:
    """Points of ``time_step`` whose implementation the model knows, also those that were measured
    by ``lmscaling gpu``."""
    own = grid.study.own_devices
    folders = [results, *sorted(results.parent.glob("measured/*"))]
    for folder, sweep in sweeps.expand(grid.study).items():
        # The copy task has a model so small that its times are those of launches.
        is_step = sweep.kind == "time_step" and sweep.name != "copy"
        points = sweep.points if is_step and sweep.gpus else []
        for place, point in product(folders, points):
            path = place / "speed" / folder / f"{point.name}.json"
            method = f"{point.attention} {point.implementation}"
            way = timed_steps.METHODS.get(method)
            is_known = way or not point.implementation
            row = read_json(path, "measurement") if is_known and path.is_file() else {}
            if not row.get("median_seconds") or devices.find(row["device"], own) != kind:
                continue
            tokens = point.context * row["batch"]
            cell = replace(sweep.cell_of(point), update_tokens=tokens, gpus=1)
            label = cell.attention if method in TRAINED_BY else method
            ways = {label: way} if way else calibrations.ways(cell)
            kinds = {way: cell.model.n_layer} if way else calibrations.shape(cell, ways).kinds
            size = replace(calibrations.shape(cell, calibrations.ways(cell)), kinds=kinds)
            of_step = estimate.work(cell, size, row["batch"], False, 1)
            yield Update(ways, Timing(vector(of_step, kind), row["median_seconds"]))
