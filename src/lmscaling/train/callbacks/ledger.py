"""What attempts spend, noted while they train: a kill loses ten seconds of the account."""

import time

from lightning.pytorch import Trainer

from lmscaling.train.callbacks.between import Between
from lmscaling.train.callbacks.budget import Budget
from lmscaling.train.ledger import Ledger
from lmscaling.train.module import Training

BEAT_SECONDS = 10.0
"""Time between two entries of a running attempt: the most that a kill can lose."""


class Beats(Between):
    """Writes into the ledger of a run when an attempt begins, and every few seconds. Only for
    rank 0.

    Args:
        ledger: The ledger.
        budget: The budget of the run, which comes before this callback.
    """

    def __init__(self, ledger: Ledger, budget: Budget) -> None:
        self.ledger, self.budget = ledger, budget
        self._last = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: Training) -> None:
        """The attempt begins."""
        self._write(trainer, "begin")

    def between(self, trainer: Trainer, pl_module: Training) -> None:
        """Note the time that has been spent, if the last note is old."""
        if time.monotonic() - self._last >= BEAT_SECONDS:
            self._write(trainer, "beat")

    def _write(self, trainer: Trainer, kind: str) -> None:
        self.ledger.write(kind, trainer.global_step, self.budget.seconds)
        self._last = time.monotonic()
