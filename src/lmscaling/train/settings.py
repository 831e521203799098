"""The settings that a run trains with: a measured calibration, or the plan's guess."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.model import sizing
from lmscaling.plan import footprint
from lmscaling.runtime import environment


def device_of(cell: Cell) -> torch.device:
    """Where a cell trains."""
    return torch.device("cuda" if cell.gpus else "cpu")


def memory_bytes(device: torch.device) -> int | None:
    """All memory of a GPU, also that in use; None for the CPU."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def read(path: Path, cell: Cell) -> Calibration:
    """The calibration of a cell; UserError if it is missing, or was measured for another cell, kind
    of device or size of update."""
    found = checked(Calibration, read_json(path, "calibration"), str(path))
    device, sequences = environment.device_name(cell.gpus), footprint.sequences(cell)
    remedy = f"delete {path} and run snakemake again to measure it again"
    if found.of != cell.calibration:
        wrong = f"belongs to {found.of}; the cell needs {cell.calibration}"
    elif found.device != device:
        wrong = f"was measured on {found.device} and this machine has {device}"
        remedy += ", or restrict the jobs to one kind of device"
    elif sequences % found.micro_batch:
        wrong = f"has a micro-batch of {found.micro_batch}, which does not divide the {sequences} "
        wrong += "sequences of an update"
    else:
        return found
    raise UserError(f"calibration {path} {wrong}; {remedy}")


def nearest(path: Path, measured_cell: Path, cell: Cell) -> Calibration:
    """The plan's guess, with options and peak of another cell that has the same attention.

    UserError if the attentions differ, or as of ``read`` and ``guessed``.
    """
    other = checked(Cell, read_json(measured_cell, "cell file"), str(measured_cell))
    if (other.mixers, other.is_masked) != (cell.mixers, cell.is_masked):
        raise UserError(
            f"calibration {path} is of attention {other.attention}; cell {cell.name} needs one of "
            f"{cell.attention}, with documents: {cell.documents}; run snakemake again"
        )
    measured = read(path, other)
    found = guessed(cell, footprint.memory_scale(other, sizing.shape(other), measured))
    return replace(found, choice=measured.choice, nearest=measured.of)


def guessed(cell: Cell, scale: float = 1.0) -> Calibration:
    """The plan's guess for this machine's device, with ``scale`` as in ``footprint.memory_bytes``;
    UserError if not even one sequence would fit into memory."""
    shape, memory = sizing.shape(cell), memory_bytes(device_of(cell))
    layout = footprint.guess(cell, shape.params_total, memory, shape.kinds, scale)
    if layout is None:
        raise too_large(cell)
    return made(cell, measured=False, micro_batch=layout.micro_batch, recompute=layout.recompute)


def made(cell: Cell, **values: Any) -> Calibration:
    """A calibration made on this machine; ``values`` are its further fields."""
    device, versions = environment.device_name(cell.gpus), environment.versions()
    own = {"of": cell.calibration, "device": device, "versions": versions}
    return Calibration(**own, compiled=bool(cell.gpus), **values)


def too_large(cell: Cell) -> UserError:
    """Refuses a cell of which no sequence fits into memory."""
    return UserError(
        f"cell {cell.name}: not even one sequence with recomputed blocks fits into the memory of "
        f"{environment.device_name(cell.gpus)}; write a smaller context or size, or skip the cell"
    )
