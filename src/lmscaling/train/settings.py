"""The settings that a run trains with: a measured calibration, or the plan's guess."""

from pathlib import Path

import torch

from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.model import gpt
from lmscaling.plan import estimate
from lmscaling.runtime import environment
from lmscaling.train.calibrate import memory_bytes


def read(path: Path, cell: Cell) -> Calibration:
    """The calibration of a cell, measured on a device like this machine's.

    Raises:
        UserError: It belongs to another cell, another device or another size of update.
    """
    calibration = checked(Calibration, read_json(path, "calibration"), str(path))
    device = environment.device_name(cell.gpus)
    again = f"delete {path} and run snakemake again to measure it again"
    if calibration.of != cell.calibration:
        raise UserError(
            f"calibration {path} belongs to {calibration.of}; the cell needs {cell.calibration}; "
            f"{again}"
        )
    if calibration.device != device:
        raise UserError(
            f"calibration {path} was measured on {calibration.device} and this machine has "
            f"{device}; {again}, or restrict the jobs to one kind of device"
        )
    sequences = estimate.sequences(cell)
    if sequences % calibration.micro_batch:
        raise UserError(
            f"calibration {path} has a micro-batch of {calibration.micro_batch}, which does not "
            f"divide the {sequences} sequences of an update; {again}"
        )
    return calibration


def guessed(cell: Cell) -> Calibration:
    """The plan's guess for this machine's device; nothing is measured.

    Raises:
        UserError: Not even one sequence would fit into memory.
    """
    device = torch.device("cuda" if cell.gpus else "cpu")
    layout = estimate.guess(cell, gpt.shape(cell).params_total, memory_bytes(device))
    if layout is None:
        raise UserError(
            f"cell {cell.name}: one sequence does not fit into the device's memory; write a "
            "smaller context or size, or skip the cell"
        )
    return Calibration(
        of=cell.calibration,
        device=environment.device_name(cell.gpus),
        versions=environment.versions(),
        measured=False,
        micro_batch=layout.micro_batch,
        recompute=layout.recompute,
        compiled=bool(cell.gpus),
    )
