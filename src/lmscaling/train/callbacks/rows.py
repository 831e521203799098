"""The rows of a log: one for each update and each validation, as JSON lines."""

# Hooks of callbacks that know which module they belong to.
# pyright: reportIncompatibleMethodOverride=false

import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from lmscaling.config.devices import find
from lmscaling.records.run import Row, Update, Validation, finite
from lmscaling.train.callbacks.budget import Budget
from lmscaling.train.callbacks.loggers import Mirror
from lmscaling.train.log import Log
from lmscaling.train.module import Training

PROGRESS_SECONDS = 30.0
"""Time between two lines in the log of the job."""


class Rows(Callback):
    """Writes what was trained, and says now and then how far it has got. Only for rank 0.

    Args:
        log: The log of the attempt.
        budget: The budget of the run, which comes before this callback.
        flops_per_token: Training FLOPs of a token, for the utilization of a GPU.
        mirror: Loggers that get the rows, too.
    """

    def __init__(self, log: Log, budget: Budget, flops_per_token: float, mirror: Mirror) -> None:
        self.lines, self.mirror = log, mirror
        self.budget, self.flops_per_token = budget, flops_per_token
        self.cell = budget.cell
        self._said = time.monotonic()
        device = find(torch.cuda.get_device_name()) if self.cell.gpus else None
        self.peak_flops = self.cell.gpus * device.peak_flops if device else None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Training, outputs: Any, *_: object
    ) -> None:
        """Write the row of an update."""
        progress = self._progress(trainer, pl_module)
        loss = float(outputs["loss"])
        tokens_per_second = self.cell.update_tokens / (self.budget.seconds - self.budget.before)
        flops = tokens_per_second * self.flops_per_token
        self.write(
            Update(
                **progress,
                train_loss=finite(loss),
                grad_norm=finite(float(pl_module.grad_norm)),
                tokens_per_second=tokens_per_second,
                mfu=flops / self.peak_flops if self.peak_flops else None,
                peak_memory_bytes=pl_module.peak_memory_bytes(),
            ),
        )
        self._say(progress, loss, tokens_per_second)

    def on_validation_end(self, trainer: Trainer, pl_module: Training) -> None:
        """Write the row of a validation."""
        row = Validation(
            **self._progress(trainer, pl_module),
            val_loss=None if pl_module.val_loss is None else finite(pl_module.val_loss),
            val_tokens=self.cell.validation.tokens,
            groups=pl_module.groups,
        )
        self.write(row)

    def write(self, row: Row) -> None:
        """Append a row to the log."""
        self.lines.write(row)
        self.mirror.write(row)

    def teardown(self, trainer: Trainer, pl_module: Training, stage: str) -> None:
        """Close the loggers, however the attempt has ended."""
        self.mirror.close()

    def _progress(self, trainer: Trainer, module: Training) -> dict[str, Any]:
        """The columns that locate an update or a validation in the run."""
        update, seconds = trainer.global_step, self.budget.seconds
        return {
            "attempt": self.lines.attempt,
            "update": update,
            "epoch": 1 + (update - 1) // (self.budget.last_update // self.cell.epochs),
            "tokens": update * self.cell.update_tokens,
            "train_seconds": seconds,
            "lr": module.rate,
            "budget_fraction": self.budget.fraction(update, seconds),
        }

    def _say(self, progress: dict[str, Any], loss: float, tokens_per_second: float) -> None:
        """Write a line to the log of the job every ``PROGRESS_SECONDS``."""
        if time.monotonic() - self._said < PROGRESS_SECONDS:
            return
        self._said = time.monotonic()
        fraction, final = progress["budget_fraction"], self.cell.branch or 1.0
        left = progress["train_seconds"] * max(0.0, final / fraction - 1) / 3600
        print(
            f"update {progress['update']:,}: loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s, "
            f"{fraction:.1%} of the budget, about {left:.2f} h left",
            file=sys.stderr,
            flush=True,
        )
