"""The log of an attempt: a row for each update and each validation, as JSON lines."""

# Hooks of callbacks that know which module they belong to.
# pyright: reportIncompatibleMethodOverride=false

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from lmscaling.config.devices import find
from lmscaling.records.run import Row, Update, Validation, finite, line
from lmscaling.train.callbacks.budget import Budget
from lmscaling.train.callbacks.loggers import Mirror
from lmscaling.train.log import attempts
from lmscaling.train.module import Training

PROGRESS_SECONDS = 30.0
"""Time between two lines in the log of the job."""


class Log(Callback):
    """Writes the next ``attempt-<number>.jsonl``, and says now and then how far a run has got. Only
    for rank 0.

    Args:
        scratch: Folder of the log.
        budget: The budget of the run, which comes before this callback.
        flops_per_token: Training FLOPs of a token, for the utilization of a GPU.
        loggers: Options by name of loggers that get the rows, too.
    """

    def __init__(
        self,
        scratch: Path,
        budget: Budget,
        flops_per_token: float,
        loggers: dict[str, dict[str, Any]],
    ) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        last = attempts(scratch)[-1:]  # earlier ones may have been purged
        self.attempt = 1 + max([int(path.stem.rpartition("-")[2]) for path in last], default=0)
        self._file = (scratch / f"attempt-{self.attempt:03d}.jsonl").open("xb", buffering=0)
        self.budget, self.cell, self.flops_per_token = budget, budget.cell, flops_per_token
        folder = scratch.absolute().parents[1] / "loggers"  # of the study
        self.mirror = Mirror(loggers, folder, self.cell.run, self.attempt)
        device = find(torch.cuda.get_device_name()) if self.cell.gpus else None
        self.peak_flops = self.cell.gpus * device.peak_flops if device else None
        self._said = time.monotonic()

    def write(self, row: Row) -> None:
        """Append a row."""
        self._file.write(line(row))
        self.mirror.write(row)

    def sync(self) -> None:
        """Wait until everything written is on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """End the log and the loggers."""
        self.sync()
        self._file.close()
        self.mirror.close()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Training, outputs: Any, *_: object
    ) -> None:
        """Write the row of an update."""
        progress, loss = self._progress(trainer, pl_module), float(outputs["loss"])
        tokens_per_second = self.cell.update_tokens / (self.budget.seconds - self.budget.before)
        flops = tokens_per_second * self.flops_per_token
        row = Update(
            **progress,
            train_loss=finite(loss),
            grad_norm=finite(float(pl_module.grad_norm)),
            tokens_per_second=tokens_per_second,
            mfu=flops / self.peak_flops if self.peak_flops else None,
            peak_memory_bytes=torch.cuda.max_memory_allocated() if self.cell.gpus else None,
        )
        self.write(row)
        if time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._said = time.monotonic()
            left = row.train_seconds * max(0.0, (self.cell.branch or 1) / row.budget_fraction - 1)
            print(
                f"update {row.update:,}: loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s, "
                f"{row.budget_fraction:.1%} of the budget, about {left / 3600:.2f} h left",
                file=sys.stderr,
                flush=True,
            )

    def on_validation_end(self, trainer: Trainer, pl_module: Training) -> None:
        """Write the row of a validation."""
        row = Validation(
            **self._progress(trainer, pl_module),
            val_loss=None if pl_module.val_loss is None else finite(pl_module.val_loss),
            val_tokens=self.cell.validation.tokens,
            groups=pl_module.groups,
        )
        self.write(row)

    def _progress(self, trainer: Trainer, module: Training) -> dict[str, Any]:
        """The columns that locate an update or a validation in the run."""
        update, seconds = trainer.global_step, self.budget.seconds
        return {
            "attempt": self.attempt,
            "update": update,
            "epoch": 1 + (update - 1) // (self.budget.last_update // self.cell.epochs),
            "tokens": update * self.cell.update_tokens,
            "train_seconds": seconds,
            "lr": module.rate,
            "budget_fraction": self.budget.fraction(update, seconds),
        }
