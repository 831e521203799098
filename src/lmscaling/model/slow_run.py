"""The mean update of a finished run beside its prediction, for ``lmscaling why-slow``."""

from pathlib import Path

from lmscaling.config import devices, study_file
from lmscaling.config.cell import Cell
from lmscaling.config.devices import Device
from lmscaling.errors import UserError, choose
from lmscaling.files import read_json
from lmscaling.model import finished_run, sizing
from lmscaling.plan import calibrations, estimate, measurements
from lmscaling.plan.throughput import coefficients, why
from lmscaling.plan.throughput.model import Coefficients


def explain(run: Path) -> str:
    """The terms of an update of a run, as what else its study has measured predicts them, and as
    measured.

    Raises:
        UserError: The run was trained on a CPU or on a device that is not listed, or has no update.
    """
    cell = finished_run.cell(run)
    record = read_json(run / "run.json", "run record")
    name = record["environment"]["device"]
    if not cell.gpus:
        raise UserError(
            f"run {run.name} was trained on a CPU, {name}, whose times are not predicted; name one "
            "of a GPU"
        )
    device, known = _known(run, cell, name)
    if device is None:
        raise UserError(
            f"run {run.name} was trained on {name}, whose times are not predicted; "
            f"{choose(name, devices.DEVICES)}"
        )
    if not record["updates"]:
        raise UserError(f"run {run.name} has no update; type lmscaling status --failed")
    settings = record["calibration"]
    shape, recompute = sizing.shape(cell), settings.get("recompute", False)
    work = estimate.work(cell, shape, settings["micro_batch"], recompute, cell.gpus)
    seconds = record["train_seconds"] / record["updates"]
    return why.explain(work, device, seconds, known)


def _known(run: Path, cell: Cell, name: str) -> tuple[Device | None, Coefficients]:
    """The device of a run, and the coefficients from what its study has measured besides."""
    study = run.absolute().parents[1]
    record = study / "study.json"
    grid = study_file.read_record(record).grid if record.is_file() else None
    device = devices.find(name, grid and grid.study.own_devices)
    if device is None:
        return None, coefficients.shipped()
    if grid is None:
        return device, coefficients.known_of(device)
    shapes = {r: calibrations.shape(c, calibrations.ways(c)) for r, c in grid.cells.items()}
    found = measurements.read(grid, shapes, name, study, without=run.name)
    return device, found.fitted(calibrations.ways(cell))
