"""The weights of a finished run, with which a model begins in place of drawn ones.

Moments of the optimizer, the learning rate and the position in the text begin anew.
"""

from collections.abc import Iterator
from pathlib import Path

from lmscaling.config.cell import Cell
from lmscaling.errors import UserError
from lmscaling.files import sha256_of
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT
from lmscaling.records import finished


def load(model: GPT, cell: Cell, record: Path) -> None:
    """Set the weights of the model of a cell.

    Args:
        model: Gets the weights.
        cell: A cell with ``initial``.
        record: ``results/<study>/runs/<run>/run.json`` of the cell.

    Raises:
        UserError: There is not one such run, or its weights are damaged or of another shape.
    """
    run = _run(cell, record.absolute().parents[3])
    try:
        model.load_state_dict(finished_run.model(run).state_dict())
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise UserError(
            f"initial: the weights of {run} are of another model than cell {cell.name}: "
            f"{lines[-1].strip().rstrip('.')}; give both studies the same sizes, position and block"
        ) from None


def remark(cell: Cell, scratch: Path) -> Iterator[str]:
    """Says in the record of a run which weights it began with."""
    if cell.initial and not cell.branch:
        weights = finished_run.weights(_run(cell, scratch.absolute().parents[2]))
        yield f"begins with {weights.parent.name}, SHA-256 {sha256_of(weights)}"


def _run(cell: Cell, results: Path) -> Path:
    """The run whose weights a cell begins with.

    Raises:
        UserError: None such is done, or several are.
    """
    wanted = cell.initial
    assert wanted
    seed = cell.seed if wanted.seed is None else wanted.seed
    point = {"attention": cell.attention, "size": cell.size, "context": wanted.context,
             "seed": seed, "branch": None, "task": None}  # fmt: skip
    name = f"{cell.attention}-{cell.size}-ctx{wanted.context}-s{seed}"  # others need no look
    records = map(finished.look, sorted((results / wanted.study).glob(f"runs/{name}-*/run.json")))
    found = [
        record["run"]
        for record in records
        if record["status"] == "done" and point.items() <= record["cell"].items()
    ]
    if len(found) == 1:
        return results / wanted.study / "runs" / found[0]
    said = ", ".join(f"{key} {value}" for key, value in point.items() if value is not None)
    raise UserError(
        f"initial: {len(found) or 'no'} finished runs of study {wanted.study} have {said}, and "
        "cells begin with the weights of one; run that study first, with one learning rate"
    )
