"""What happens between two updates: measure, log, validate, save, and stop or continue.

Rank 0 writes, and its clock and signals decide for all ranks; the others take part in reductions.
The order (log, validate, save) guarantees that everything in a checkpoint is also in the log.
"""

import math
import signal
import sys
import time
from collections import deque
from dataclasses import replace
from typing import Any

import lightning
import torch
from torch import Tensor

from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.devices import find
from lmscaling.config.schedule import BRANCH_AT, Decay
from lmscaling.records.run import STATUSES, Row, Update, Validation, finite
from lmscaling.train import checkpoint
from lmscaling.train.clock import Clock
from lmscaling.train.ledger import Ledger
from lmscaling.train.log import Log
from lmscaling.train.module import Training
from lmscaling.train.ranks import Agreement

CHECKPOINT_SECONDS = 900.0
"""Time between two checkpoints, and so the most that a kill can cost. Writing one is not
productive time."""

PROGRESS_SECONDS = 30.0
"""Time between two lines in the log of the job."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""Requests to stop: the run saves after the current update, and another attempt continues it."""

PACE_UPDATES = 1000
"""Most recent updates whose mean duration determines the length of a branch."""


class Writer:
    """Where rank 0 writes: the log of the attempt, the ledger, and the folder of checkpoints."""

    def __init__(self, log: Log, ledger: Ledger) -> None:
        self.log, self.ledger = log, ledger
        self.scratch, self.attempt = log.scratch, log.attempt


class TrainingCallback(lightning.Callback):
    """Controls the training of a cell until the run ends or has to stop.

    Args:
        cell: The cell.
        writer: Where to write; None on ranks other than 0.
        start: Checkpoint to resume from, or None.
        deadline: When to save and stop, in seconds since 1970.
    """

    def __init__(
        self,
        cell: Cell,
        writer: Writer | None,
        start: tuple[checkpoint.Progress, dict[str, Tensor]] | None,
        deadline: float = math.inf,
    ) -> None:
        self.deadline = deadline
        self.cell, self.writer, self.start = cell, writer, start
        self.budget = parse_budget(cell.budget)
        self.clock = Clock(start[0].train_seconds if start else 0.0)
        self.status, self.message = "", ""
        self._stop_reason = ""
        self._update_ends = deque([self.clock.seconds], maxlen=PACE_UPDATES + 1)
        self._saved = time.monotonic()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self._agreement = Agreement()
        if isinstance(pl_module.rates, Decay):
            (end,) = self._agreement.broadcast(pl_module.rates.end)
            pl_module.rates = replace(pl_module.rates, end=int(end))
        spent = self._fraction(pl_module.updates, self.clock.seconds)
        (pl_module.spent,) = self._agreement.broadcast(spent)
        # Lightning has installed its own handlers, which would end the run without saving.
        self._previous_handlers = {n: signal.signal(n, self._on_signal) for n in SIGNALS}
        if self.start:
            checkpoint.restore_moments(*self.start, pl_module.model, trainer.optimizers[0])
        device = find(torch.cuda.get_device_name()) if self.cell.gpus else None
        self._peak_flops = self.cell.gpus * device.peak_flops if device else 0.0
        self._flops_per_token = pl_module.model.flops_per_token()
        pl_module.warm_up()
        if self.writer:
            self.writer.ledger.write("begin", pl_module.updates, self.clock.seconds)
        self._saved = self._logged = time.monotonic()
        self.clock.start()

    def teardown(self, trainer: lightning.Trainer, pl_module: Any, stage: str) -> None:
        for number, handler in getattr(self, "_previous_handlers", {}).items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._stop_reason = f"asked to stop by {signal.Signals(number).name}"

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module: Training = pl_module
        loss, norm = float(outputs["loss"]), float(outputs["norm"])
        before = self.clock.seconds
        seconds = self.clock.tick()
        self._update_ends.append(seconds)
        progress = self._progress_columns(module, seconds)
        tokens_per_second = self.cell.update_tokens / (seconds - before)
        flops = tokens_per_second * self._flops_per_token
        self._write(
            Update(
                **progress,
                train_loss=finite(loss),
                grad_norm=finite(norm),
                tokens_per_second=tokens_per_second,
                mfu=flops / self._peak_flops if self._peak_flops else None,
                peak_memory_bytes=module.peak_memory_bytes(),
            )
        )
        self._log_progress(progress, loss, tokens_per_second)
        module.spent, over, asked, due = self._agreement.broadcast(
            progress["budget_fraction"],
            self.spent(module),
            self._must_stop(),
            self._checkpoint_is_due(),
        )
        self._decide(module, loss, bool(over), bool(asked))
        ended = self.status in STATUSES
        with self.clock.excluded():
            if self.writer:
                self._keep_for_branches(trainer, module, before, seconds)
            if ended or progress["tokens"] % self.cell.validation.every_tokens == 0:
                self._validate(module, progress)
            if self.writer and not ended:
                self._save(trainer, module, bool(due or asked))
        trainer.should_stop = bool(self.status)

    def spent(self, module: Training) -> bool:
        """Whether the budget is spent, or the learning rate of a branch has reached zero."""
        if isinstance(module.rates, Decay):
            return module.updates >= module.rates.end
        return self._fraction(module.updates, self.clock.seconds) >= 1

    def _fraction(self, updates: int, seconds: float) -> float:
        tokens = updates * self.cell.update_tokens
        return self.budget.fraction(updates=updates, tokens=tokens, seconds=seconds)

    def _progress_columns(self, module: Training, seconds: float) -> dict[str, Any]:
        """The columns that locate an update or a validation in the run."""
        update = module.updates
        return {
            "attempt": self.writer.attempt if self.writer else 0,
            "update": update,
            "epoch": module.train_stream.epoch(update, self.cell.update_tokens),
            "tokens": update * self.cell.update_tokens,
            "train_seconds": seconds,
            "lr": module.rate,
            "budget_fraction": self._fraction(update, seconds),
        }

    def _log_progress(
        self, progress: dict[str, Any], loss: float, tokens_per_second: float
    ) -> None:
        """Write a line to the log of the job every ``PROGRESS_SECONDS``."""
        if not self.writer or time.monotonic() - self._logged < PROGRESS_SECONDS:
            return
        self._logged = time.monotonic()
        fraction, final = progress["budget_fraction"], self.cell.branch or 1.0
        left = progress["train_seconds"] * max(0.0, final / fraction - 1) / 3600
        print(
            f"update {progress['update']:,}: loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s, "
            f"{fraction:.1%} of the budget, about {left:.2f} h left",
            file=sys.stderr,
            flush=True,
        )

    def _must_stop(self) -> bool:
        """Whether a signal has arrived or the time limit of the job is near."""
        if time.time() > self.deadline:
            self._stop_reason = self._stop_reason or "the time limit of the job is near"
        return bool(self._stop_reason)

    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self._saved >= CHECKPOINT_SECONDS

    def _decide(self, module: Training, loss: float, spent: bool, asked: bool) -> None:
        if not math.isfinite(loss):
            self.end("diverged", f"the training loss of update {module.updates} is {loss}")
        elif spent:
            self.end("done", "")
        elif module.updates == module.last_update():
            times = f", read {self.cell.epochs} times" if self.cell.epochs > 1 else ""
            tokens = module.train_stream.tokens
            self.end("out_of_tokens", f"the stream has {tokens} tokens{times}")
        elif asked:
            self.end("interrupted", self._stop_reason)

    def _validate(self, module: Training, progress: dict[str, Any]) -> None:
        loss, tokens = module.validation_loss(), self.cell.validation.tokens
        self._write(Validation(**progress, val_loss=finite(loss), val_tokens=tokens))

    def _keep_for_branches(
        self, trainer: lightning.Trainer, module: Training, before: float, seconds: float
    ) -> None:
        """Keep a checkpoint for each branch that leaves the trunk within the last update."""
        assert self.writer
        previous = self._fraction(module.updates - 1, before)
        current = self._fraction(module.updates, seconds)
        for share in self.cell.keep:
            if previous < BRANCH_AT * share <= current:
                path = checkpoint.branch_path(self.writer.scratch, share)
                progress = self._progress(module)
                checkpoint.write(path, progress, module.model, trainer.optimizers[0])

    def _save(self, trainer: lightning.Trainer, module: Training, now: bool) -> None:
        assert self.writer
        if not now:
            self.writer.ledger.beat(module.updates, self.clock.seconds)
            return
        self.writer.log.sync()
        checkpoint.save(
            self.writer.scratch, self._progress(module), module.model, trainer.optimizers[0]
        )
        self.writer.ledger.write("checkpoint", module.updates, self.clock.seconds)
        self._saved = time.monotonic()

    def _progress(self, module: Training) -> checkpoint.Progress:
        shard, tokens_id = module.reached()
        return checkpoint.Progress(
            run=self.cell.run,
            update=module.updates,
            train_seconds=self.clock.seconds,
            shard=shard,
            tokens_id=tokens_id,
            update_seconds=self._update_seconds(),
        )

    def _update_seconds(self) -> float:
        ends = self._update_ends
        return (ends[-1] - ends[0]) / max(1, len(ends) - 1)

    def end(self, status: str, message: str) -> None:
        """End the run, or with status ``interrupted`` the attempt only."""
        self.status, self.message = status, message

    def _write(self, row: Row) -> None:
        if self.writer:
            self.writer.log.write(row)
