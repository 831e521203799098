"""The journal of an attempt: a log of what it trains, and a ledger of what it spends.

The log has a row for each update and each validation. Each row is one write, so a kill can truncate
the last one only. The ledger has an entry when an attempt begins, every few seconds, at every
checkpoint and at the end. A kill loses a few seconds of the account. Lightning's own loggers mirror
the log.
"""

# Hooks of callbacks that know which module they belong to.
# pyright: reportIncompatibleMethodOverride=false

import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, loggers

from lmscaling.config.devices import find
from lmscaling.records import ledger
from lmscaling.records.run import End, Header, Row, Update, Validation, finite, line
from lmscaling.train.budget import Budget
from lmscaling.train.module import Training
from lmscaling.train.outcome import attempts

BEAT_SECONDS = 10.0
"""Time between two entries of a running attempt: the most that a kill can lose."""

PROGRESS_SECONDS = 30.0
"""Time between two lines in the log of the job."""


class Journal(Callback):
    """Writes the next ``attempt-<number>.jsonl`` and the ledger in a folder, and says now and then
    how far a run has got. Only for rank 0.

    Args:
        scratch: The folder.
        budget: The budget of the run, which comes before this callback.
        flops_per_token: Training FLOPs of a token, for the utilization of a GPU.
        mirrors: Options by name of loggers that get the rows, too.
    """

    def __init__(
        self, scratch: Path, budget: Budget, flops_per_token: float, mirrors: dict[str, Any]
    ) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        last = attempts(scratch)[-1:]  # earlier ones may have been purged
        self.attempt = 1 + max([int(path.stem.rpartition("-")[2]) for path in last], default=0)
        self._file = (scratch / f"attempt-{self.attempt:03d}.jsonl").open("xb", buffering=0)
        self._ledger = scratch / ledger.NAME
        self.budget, self.cell, self.flops_per_token = budget, budget.cell, flops_per_token
        folder = scratch.absolute().parents[1] / "loggers"  # of the study
        self.mirror = Mirror(mirrors, folder, self.cell.run, self.attempt)
        device = find(torch.cuda.get_device_name()) if self.cell.gpus else None
        self.peak_flops = self.cell.gpus * device.peak_flops if device else None
        self._start = self._noted = self._said = time.monotonic()

    @property
    def entries(self) -> list[ledger.Entry]:
        """Those of all attempts so far."""
        return ledger.entries(self._ledger)

    def note(self, kind: ledger.Kind, update: int, **values: Any) -> None:
        """Append an entry of this moment and wait until it is on disk; several threads may."""
        self._noted = time.monotonic()
        spent = {"train_seconds": self.budget.seconds, "attempt_seconds": self._noted - self._start}
        entry = ledger.Entry(kind=kind, attempt=self.attempt, update=update, **{**spent, **values})
        ledger.append(self._ledger, entry)

    def beat(self, update: int) -> None:
        """Note the time that has been spent, if the last entry is old."""
        if time.monotonic() - self._noted >= BEAT_SECONDS:
            self.note("beat", update)

    def write(self, row: Row) -> None:
        """Append a row."""
        self._file.write(line(row))
        self.mirror.write(row)

    def sync(self) -> None:
        """Wait until every row is on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """End the log and the loggers."""
        self.sync()
        self._file.close()
        self.mirror.close()

    def on_train_start(self, trainer: Trainer, pl_module: Training) -> None:
        """The attempt begins."""
        self.note("begin", trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Training, outputs: Any, *_: object
    ) -> None:
        """Write the row of an update."""
        loss, seconds = float(outputs["loss"]), self.budget.seconds - self.budget.before
        rate = self.cell.update_tokens / seconds
        row = Update(
            **self._progress(trainer, pl_module),
            train_loss=finite(loss),
            grad_norm=finite(float(pl_module.grad_norm)),
            tokens_per_second=rate,
            mfu=rate * self.flops_per_token / self.peak_flops if self.peak_flops else None,
            peak_memory_bytes=torch.cuda.max_memory_allocated() if self.cell.gpus else None,
        )
        self.write(row)
        self.beat(row.update)
        if time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._said = time.monotonic()
            left = row.train_seconds * max(0.0, (self.cell.branch or 1) / row.budget_fraction - 1)
            print(
                f"update {row.update:,}: loss {loss:.4f}, {rate:,.0f} tokens/s, "
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


KINDS = {
    "csv": "CSVLogger",
    "mlflow": "MLFlowLogger",
    "tensorboard": "TensorBoardLogger",
    "wandb": "WandbLogger",
}


class Mirror:
    """Passes the numbers of rows on to loggers, which can never stop a run: an error of one of them
    is one warning, after which it gets no more rows.

    ``wanted`` has options by name of a logger, as ``loggers:`` in a study file. Those that write
    files do so in ``folder``, each attempt its own: CSV and TensorBoard replace those that exist.
    """

    def __init__(self, wanted: dict[str, Any], folder: Path, run: str, attempt: int) -> None:
        files = {"save_dir": folder, "name": run, "version": attempt}
        places: dict[str, dict[str, Any]] = {
            "wandb": {"save_dir": folder, "name": run, "id": run},
            "mlflow": {"save_dir": str(folder / "mlruns"), "run_name": run},
        }
        self._loggers: dict[str, Any] = dict.fromkeys(wanted)

        def create(name: str) -> None:
            options = {**places.get(name, files), **wanted[name]}
            self._loggers[name] = getattr(loggers, KINDS[name])(**options)

        self._each(create)

    def write(self, row: Row) -> None:
        """Pass the numbers of a row on."""
        if self._loggers and not isinstance(row, Header | End):
            values = {k: float(v) for k, v in asdict(row).items() if isinstance(v, int | float)}
            self._each(lambda name: self._loggers[name].log_metrics(values, row.update))

    def close(self) -> None:
        """Write what is left."""
        self._each(lambda name: self._loggers[name].finalize("success"))

    def _each(self, work: Callable[[str], None]) -> None:
        for name in list(self._loggers):
            try:
                work(name)
            except Exception as error:
                del self._loggers[name]
                reason = str(error).strip().partition("\n")[0]
                print(f"logger {name} gets no more rows: {reason}", file=sys.stderr, flush=True)
