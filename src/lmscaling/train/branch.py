"""A decayed branch of a run: where it leaves its trunk, and where its learning rate is zero.

The trunk keeps a checkpoint at 0.8 of each branch's end. The branch continues from it with the
same data order while its rate decays linearly to zero. Its number of updates is computed once,
from the trunk's measured time per update, and recorded in the branch's ledger.

Source: Haegele et al. 2024 (arXiv:2405.18392), a cooldown of a fifth of the run.
"""

import math
from functools import partial
from pathlib import Path

from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell, branch_checkpoint
from lmscaling.config.schedule import BRANCH_AT, Decay
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.train import checkpoint
from lmscaling.train.data import Text


class NoTrunk(Exception):
    """The trunk left no checkpoint for this branch: a result of the run, not an error."""


def trunk_checkpoint(text: Text, scratch: Path, record: Path) -> checkpoint.Checkpoint:
    """The trunk's checkpoint that a branch with this text, scratch folder and ``run.json`` starts
    from; both folders of the trunk are beside those of the branch.

    Raises:
        NoTrunk: The trunk ended too early, or kept no checkpoint for this branch.
        UserError: The checkpoint is damaged.
    """
    cell = text.cell
    assert cell.branch
    path = scratch.with_name(cell.trunk) / branch_checkpoint(cell.branch)
    if not path.is_file():
        ended = read_json(record.parent.with_name(cell.trunk) / "run.json", "run record")
        fraction = parse_budget(cell.budget).fraction(
            updates=ended["updates"], tokens=ended["tokens"], seconds=ended["train_seconds"]
        )
        if fraction < BRANCH_AT * cell.branch:
            raise NoTrunk(f"the trunk ended as {ended['status']} at {fraction:.1%} of the budget")
        raise NoTrunk(
            f"{path.name} does not exist: the branch was added to the study after its trunk had "
            "passed that share of the budget, or the file was deleted"
        )
    try:
        return checkpoint.load(path, partial(text.check, run=cell.trunk))
    except checkpoint.UNUSABLE as error:
        raise UserError(
            f"checkpoint {path} cannot be used: {error}; "
            f"to train its run again, type lmscaling reset {cell.trunk}"
        ) from None


def decay(cell: Cell, trunk: checkpoint.Progress) -> Decay:
    """The learning rates of a branch, from its budget and the trunk's time per update."""
    assert cell.branch
    budget = parse_budget(cell.budget)
    if budget.seconds:
        left = cell.branch * budget.seconds - trunk.train_seconds
        end = trunk.update + round(left / trunk.update_seconds)
    elif budget.unit == "updates":
        end = round(cell.branch * budget.amount)
    else:
        end = math.ceil(cell.branch * budget.amount / cell.update_tokens)
    # The trunk's rate is constant after the warm-up, so it does not depend on what is spent.
    peak = cell.rates.rate(trunk.update, spent=0.0)
    return Decay(peak=peak, start=trunk.update, end=max(end, trunk.update + 1))
