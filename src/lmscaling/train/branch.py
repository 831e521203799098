"""A decayed branch of a run: where it leaves its trunk, and where its rate is zero.

The trunk keeps a checkpoint at 0.8 of each branch's end. The branch goes on from it with the same
data order while its rate falls linearly to zero. Its number of updates is fixed once, from the
trunk's measured time per update, and stands in the branch's ledger: a rate that followed a clock
would end above zero, and differ from rank to rank.

Source: Haegele et al. 2024 (arXiv:2405.18392), a cooldown of a fifth of the run.
"""

import math
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from lmscaling.config.budget import SECONDS, Spending
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import BRANCH_AT, Decay
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.train import checkpoint
from lmscaling.train.ledger import Ledger


class NoTrunk(Exception):
    """The trunk has left nothing to go on from: a result, and no mistake."""


def leave(
    cell: Cell, expected: checkpoint.Expected, scratch: Path, record: Path
) -> tuple[checkpoint.Progress, dict[str, Tensor]]:
    """The trunk's checkpoint that a branch goes on from.

    Args:
        cell: The branch.
        expected: What a checkpoint of the branch must belong to.
        scratch: The branch's; the trunk's lies beside it.
        record: The branch's; the trunk's lies beside its folder.

    Raises:
        NoTrunk: The trunk ended too early, or kept nothing for this branch.
        UserError: The checkpoint is broken.
    """
    assert cell.branch
    path = checkpoint.kept(scratch.with_name(cell.trunk), cell.branch)
    of_trunk = checkpoint.Expected(cell.trunk, expected.update_tokens, expected.reached)
    if not path.is_file():
        raise NoTrunk(_why_not(cell, path, record.parent.with_name(cell.trunk) / "run.json"))
    try:
        return checkpoint.read(path, of_trunk)
    except (SafetensorError, ValueError, OSError) as error:
        raise UserError(
            f"checkpoint {path} cannot be used: {error}; "
            f"to train its run again: python -m lmscaling rerun {cell.trunk}"
        ) from None


def _why_not(cell: Cell, path: Path, trunk: Path) -> str:
    """Why there is no checkpoint to leave from."""
    assert cell.branch
    made = read_json(trunk, "run record")
    fraction = Spending(cell.budget).fraction(
        updates=made["updates"], tokens=made["tokens"], seconds=made["train_seconds"]
    )
    if fraction < BRANCH_AT * cell.branch:
        return f"the trunk ended as {made['status']} at {fraction:.1%} of the budget"
    return (
        f"{path.name} does not exist: the branch was added to the study after its trunk had "
        "passed it, or the file was deleted"
    )


def decay(cell: Cell, trunk: checkpoint.Progress) -> Decay:
    """Where the rate falls, by the budget of a branch and the pace of its trunk."""
    assert cell.branch
    budget = Spending(cell.budget)
    amount = cell.branch * budget.amount
    if budget.unit == "updates":
        end = round(amount)
    elif budget.unit == "tokens":
        end = math.ceil(amount / cell.update_tokens)
    else:
        left = amount * SECONDS[budget.unit] - trunk.train_seconds
        end = trunk.update + round(left / trunk.update_seconds)
    # The trunk's rate is constant after the warm-up, so it does not depend on what is spent.
    peak = cell.rates.rate(trunk.update, spent=0.0)
    return Decay(peak=peak, start=trunk.update, end=max(end, trunk.update + 1))


def fixed_end(ledger: Ledger, progress: checkpoint.Progress, end: int) -> int:
    """The branch's last update as its first attempt has fixed it; this one does, if it is."""
    found = ledger.branch_end()
    if found is None:
        ledger.write("branch", progress.update, progress.train_seconds, end)
        return end
    return found
