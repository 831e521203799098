"""The mean update of a finished run beside its prediction, for ``lmscaling why-slow``."""

from pathlib import Path

from lmscaling.config import devices
from lmscaling.errors import UserError, choose
from lmscaling.files import read_json
from lmscaling.model import finished_run, gpt
from lmscaling.plan import estimate
from lmscaling.plan.throughput import coefficients, why


def explain(run: Path) -> str:
    """The terms of an update of a run, predicted and as measured.

    Raises:
        UserError: The run was trained on a CPU or on a device that is not listed, or has no update.
    """
    cell = finished_run.cell(run)
    record = read_json(run / "run.json", "run record")
    name = record["environment"]["device"]
    device = devices.find(name) if cell.gpus else None
    if device is None:
        raise UserError(
            f"run {run.name} was trained on {name}, whose times are not predicted; "
            f"{choose(name, devices.DEVICES)}"
        )
    if not record["updates"]:
        raise UserError(f"run {run.name} has no update; see lmscaling status --failed")
    settings = record["calibration"]
    work = estimate.work(
        cell, gpt.shape(cell), settings["micro_batch"], settings.get("recompute", False), cell.gpus
    )
    seconds = record["train_seconds"] / record["updates"]
    return why.explain(work, device, seconds, coefficients.shipped())
