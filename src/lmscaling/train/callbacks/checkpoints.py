"""Checkpoints between updates: now and then, when a run is asked to stop, and for its branches."""

# Hooks of callbacks that know which module they belong to.
# pyright: reportIncompatibleMethodOverride=false

import sys
import time
from pathlib import Path

from lightning.pytorch import Trainer

from lmscaling.config.cell import branch_checkpoint
from lmscaling.config.schedule import BRANCH_AT
from lmscaling.errors import TRY_AGAIN
from lmscaling.train import checkpoint
from lmscaling.train.callbacks.between import Between, of_rank_0
from lmscaling.train.callbacks.budget import Budget
from lmscaling.train.callbacks.ledger import Ledger
from lmscaling.train.callbacks.log import Log
from lmscaling.train.checkpoint import SafetensorsIO
from lmscaling.train.module import Training
from lmscaling.train.requests import Requests

CHECKPOINT_SECONDS = 900.0
"""Time between two checkpoints, and so the most that a kill can cost. Writing one is not
productive time."""


class Checkpoints(Between):
    """Saves a run, and ends the process with exit code 75 after a request to stop.

    Args:
        scratch: Folder of the checkpoints.
        io: The plugin of the Trainer that writes them.
        budget: The budget of the run, which comes before this callback.
        requests: Requests to stop.
        log: The log, which is on the disk before a checkpoint of its rows; None on other ranks.
        ledger: Gets an entry for each checkpoint on the disk; None on other ranks.
    """

    def __init__(
        self,
        scratch: Path,
        io: SafetensorsIO,
        budget: Budget,
        requests: Requests,
        log: Log | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.scratch, self.io, self.budget = scratch, io, budget
        self.requests, self.own_log, self.ledger = requests, log, ledger
        self._saved = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: Training) -> None:
        """Requests wait from now on for the end of an update."""
        self.requests.wait_for_updates()
        self._saved = time.monotonic()

    def between(self, trainer: Trainer, pl_module: Training) -> None:
        """Save what is due."""
        self.io.check()
        is_due = time.monotonic() - self._saved >= CHECKPOINT_SECONDS
        due, asked = of_rank_0(trainer, is_due, self.requests.has_come())
        if self.budget.status or not (due or asked):
            return
        update, seconds = trainer.global_step, self.budget.seconds

        def written() -> None:
            if self.ledger:
                self.ledger.write("checkpoint", update, train_seconds=seconds)
            checkpoint.prune(self.scratch)

        with self.budget.clock.excluded():
            if self.own_log:
                self.own_log.sync()
            path = checkpoint.path_of(self.scratch, update)
            trainer.save_checkpoint(path, storage_options=written)
        self._saved = time.monotonic()
        if asked:
            self.io.wait()
            sys.exit(TRY_AGAIN)

    def on_train_end(self, trainer: Trainer, pl_module: Training) -> None:
        """Wait for the last file."""
        self.io.wait()


class Branches(Between):
    """Keeps a checkpoint for each branch that leaves the trunk within the last update.

    Args:
        scratch: Folder of the checkpoints.
        budget: The budget of the trunk, which comes before this callback.
    """

    def __init__(self, scratch: Path, budget: Budget) -> None:
        self.scratch, self.budget = scratch, budget

    def between(self, trainer: Trainer, pl_module: Training) -> None:
        """Save the trunk for each branch that begins here."""
        budget, update = self.budget, trainer.global_step
        previous = budget.fraction(update - 1, budget.before)
        current = budget.fraction(update, budget.seconds)
        for share in budget.cell.keep:
            if previous < BRANCH_AT * share <= current:
                with budget.clock.excluded():
                    trainer.save_checkpoint(self.scratch / branch_checkpoint(share))
