"""The settings that a run trains with: a measured calibration, or the plan's guess."""

from dataclasses import replace
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
        UserError: It is missing, or belongs to another cell, another device or another size of
            update.
    """
    again = f"delete {path} and run snakemake again to measure it again"
    calibration = checked(Calibration, read_json(path, "calibration"), str(path))
    device = environment.device_name(cell.gpus)
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


def nearest(path: Path, measured_cell: Path, cell: Cell) -> Calibration:
    """Settings of a cell from the calibration of another one with the same attention: its choice of
    options, and what its peak says of the memory. Nothing of the cell itself is measured.

    Args:
        path: ``calibration.json``.
        measured_cell: ``cell.json`` of a cell that it belongs to.
        cell: The cell that is trained.

    Raises:
        UserError: The calibration does not belong to that cell or this machine's device, the
            attentions differ, or not even one sequence would fit into memory.
    """
    other = checked(Cell, read_json(measured_cell, "cell file"), str(measured_cell))
    if (other.mixers, other.is_masked) != (cell.mixers, cell.is_masked):
        raise UserError(
            f"calibration {path} is of attention {other.attention}; cell {cell.name} needs one of "
            f"{cell.attention}, with documents: {cell.documents}; run snakemake again"
        )
    calibration = read(path, other)
    scale = estimate.memory_scale(other, gpt.shape(other), calibration)
    found = guessed(cell, scale)
    return replace(found, choice=calibration.choice, nearest=calibration.of)


def guessed(cell: Cell, memory_scale: float = 1.0) -> Calibration:
    """The plan's guess for this machine's device; nothing is measured.

    Args:
        cell: The cell.
        memory_scale: As in ``estimate.memory_bytes``.

    Raises:
        UserError: Not even one sequence would fit into memory.
    """
    device = torch.device("cuda" if cell.gpus else "cpu")
    shape, memory = gpt.shape(cell), memory_bytes(device)
    layout = estimate.guess(cell, shape.params_total, memory, shape.kinds, memory_scale)
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
