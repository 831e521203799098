"""Read a finished run: the cell in its record, and its final weights."""

from pathlib import Path

from safetensors import SafetensorError

from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.model import tensor_file
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
        UserError: The run is not finished, left no weights, or its weights are damaged.
    """
    gpt = GPT(cell(run))
    if not weights(run).is_file():
        raise UserError(
            f"{weights(run)} does not exist, for the run ended before its first update; "
            f"to train the run again, type lmscaling reset {run.name}"
        )
    try:
        gpt.load_state_dict(tensor_file.read(weights(run)).tensors)
    except (SafetensorError, ValueError) as error:
        raise UserError(
            f"{weights(run)} cannot be used: {error}; "
            f"to train the run again, type lmscaling reset {run.name}"
        ) from None
    return gpt
