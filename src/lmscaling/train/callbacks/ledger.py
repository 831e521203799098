"""The ledger of a run: what its attempts spend, noted while they train.

An entry is written when an attempt begins, every few seconds, at every checkpoint and at the end. A
kill loses a few seconds of the account.
"""

import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lmscaling.records import ledger
from lmscaling.train.callbacks.between import Between
from lmscaling.train.callbacks.budget import Budget

BEAT_SECONDS = 10.0
"""Time between two entries of a running attempt: the most that a kill can lose."""


class Ledger(Between):
    """Writes the entries of an attempt; several threads may. Only for rank 0.

    Args:
        scratch: Scratch folder of the run.
        attempt: Number of the attempt.
        budget: The budget of the run, which comes before this callback.
    """

    def __init__(self, scratch: Path, attempt: int, budget: Budget) -> None:
        self.path, self.attempt, self.budget = scratch / ledger.NAME, attempt, budget
        self._start = self._last = time.monotonic()

    @property
    def entries(self) -> list[ledger.Entry]:
        """Those of all attempts so far."""
        return ledger.entries(self.path)

    def write(self, kind: ledger.Kind, update: int, **values: Any) -> None:
        """Append an entry of this moment and wait until it is on disk."""
        self._last = time.monotonic()
        spent = {"train_seconds": self.budget.seconds, "attempt_seconds": self._last - self._start}
        entry = ledger.Entry(kind=kind, attempt=self.attempt, update=update, **{**spent, **values})
        ledger.append(self.path, entry)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The attempt begins."""
        self.write("begin", trainer.global_step)

    def between(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the time that has been spent, if the last entry is old."""
        if time.monotonic() - self._last >= BEAT_SECONDS:
            self.write("beat", trainer.global_step)
