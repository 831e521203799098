"""Training uses no attention and no kernel that has not passed its check.

See ``bench/checks/variant.py`` for attentions and ``bench/checks/gate.py`` for kernels.
"""

from pathlib import Path

import torch

from lmscaling.bench.checks import gate, variant
from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.model.gpt import GPT
from lmscaling.runtime import gpus
from lmscaling.train import settings


def require(cell: Cell, path: Path) -> None:
    """Check the attention of a cell where it is to be trained, unless it has passed before.

    Args:
        path: Any ``<folder>/<name>`` of the study, whose ``checks/`` keep what has passed.

    Raises:
        UserError: The attention is wrong.
    """
    device = torch.device("cuda" if cell.gpus else "cpu")
    variant.require(cell, device, gate.record_beside(path, cell))


def check(cell_path: Path, out: Path) -> str:
    """Check the attention and the kernels of a cell on this machine's GPU.

    Args:
        cell_path: ``cell.json``.
        out: ``checks/<name>.json``, which gets what is found.

    Returns:
        What had to be replaced; empty if nothing had.

    Raises:
        UserError: The cell file is not valid, the machine has no GPU, or the attention is wrong.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    with gpus.reserved(1):
        if not torch.cuda.is_available():
            raise UserError(
                f"cell {cell.name} trains on GPUs and this machine has none; run it on a machine "
                "with a GPU, or write gpus: 0"
            )
        require(cell, out)
        way = settings.guessed(cell)
        with torch.device("meta"):
            model = GPT(cell)
        device = torch.device("cuda")
        return gate.pass_or_fall_back(out, model, way.micro_batch, device, way.compiled)
