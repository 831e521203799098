"""Read a finished run: the cell in its record, and its final weights."""

from pathlib import Path

from safetensors.torch import load_file

from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.model.gpt import GPT


def cell(run: Path) -> Cell:
    """The cell of ``results/<study>/runs/<run>``.

    Raises:
        UserError: The run is not finished.
    """
    return checked(Cell, read_json(run / "run.json", "run record")["cell"], "run record")


def weights(run: Path) -> Path:
    """Path of its final weights, which do not exist if it ended before its first update."""
    return run / "model.safetensors"


def model(run: Path) -> GPT:
    """Its model with the final weights, on the CPU.

    Raises:
        UserError: The run is not finished or left no weights.
    """
    gpt = GPT(cell(run))
    if not weights(run).is_file():
        raise UserError(f"{weights(run)} does not exist; the run ended before its first update")
    gpt.load_state_dict(load_file(weights(run)))
    return gpt
