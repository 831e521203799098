"""What happens after each update: count, log, validate, and decide whether the run is over.

Rank 0 writes and its clock decides; the other ranks only take part in the sums.
"""

import math
from typing import Any

import lightning

from lmscaling import records
from lmscaling.config import Cell
from lmscaling.records import finite
from lmscaling.train import optimizer
from lmscaling.train.budget import Budget, Clock
from lmscaling.train.log import Log
from lmscaling.train.module import Training


class Ledger(lightning.Callback):
    """Counts, logs and validates after each update, and ends the run."""

    def __init__(self, cell: Cell, log: Log | None) -> None:
        self.cell, self._log = cell, log  # Lightning puts its own `log` on every callback
        self.budget, self.clock = Budget(cell.budget), Clock()
        self.status, self.message = "", ""

    @property
    def attempt(self) -> int:
        return self._log.attempt if self._log else 0

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self.clock.start()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module: Training = pl_module
        loss, norm = float(outputs["loss"]), float(outputs["norm"])
        seconds = self.clock.tick()
        update, tokens = module.updates, module.updates * self.cell.update_tokens
        self._write(
            records.Update(
                attempt=self.attempt,
                update=update,
                tokens=tokens,
                train_seconds=seconds,
                train_loss=finite(loss),
                lr=optimizer.learning_rate(self.cell, update),
                grad_norm=finite(norm),
            )
        )
        # The clock of rank 0 decides for all: ranks that stop apart wait for each other forever.
        spent = self.budget.spent(updates=update, tokens=tokens, seconds=seconds)
        spent = trainer.strategy.reduce_boolean_decision(
            spent and trainer.is_global_zero, all=False
        )
        if not math.isfinite(loss):
            self.end("diverged", f"the training loss of update {update} is {loss}")
        elif spent:
            self.end("done", "")
        elif update == module.train_stream.updates(self.cell.update_tokens):
            self.end("out_of_tokens", f"the stream has {module.train_stream.tokens} tokens")
        if self.status or tokens % self.cell.validation.every_tokens == 0:
            with self.clock.excluded():
                self._validate(module, update, tokens, seconds)
        trainer.should_stop = bool(self.status)

    def _validate(self, module: Training, update: int, tokens: int, seconds: float) -> None:
        self._write(
            records.Validation(
                attempt=self.attempt,
                update=update,
                tokens=tokens,
                train_seconds=seconds,
                val_loss=finite(module.validation_loss()),
                val_tokens=self.cell.validation.tokens,
            )
        )

    def end(self, status: str, message: str) -> None:
        self.status, self.message = status, message

    def _write(self, row: records.Row) -> None:
        if self._log:
            self._log.write(row)
