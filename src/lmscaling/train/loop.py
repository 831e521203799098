"""What happens between two updates: measure, log, validate, save, and stop or continue.

Rank 0 writes, and its clock and signals decide for all ranks; the others take part in reductions.
The order (log, validate, save) guarantees that everything in a checkpoint is also in the log.
Checkpoints are written by a thread, see ``checkpoint.Saver``.
"""

import math
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from lmscaling.config.budget import parse_budget
from lmscaling.config.devices import find
from lmscaling.config.schedule import BRANCH_AT, Decay
from lmscaling.errors import TRY_AGAIN
from lmscaling.records.run import STATUSES, Row, Update, Validation, finite
from lmscaling.train import checkpoint
from lmscaling.train.checkpoint import Checkpoint
from lmscaling.train.clock import Clock
from lmscaling.train.ledger import Ledger
from lmscaling.train.log import Log
from lmscaling.train.module import Training
from lmscaling.train.ranks import REQUESTS, Rank
from lmscaling.train.watch import Watch

CHECKPOINT_SECONDS = 900.0
"""Time between two checkpoints, and so the most that a kill can cost. Writing one is not
productive time."""

PROGRESS_SECONDS = 30.0
"""Time between two lines in the log of the job."""

PACE_UPDATES = 1000
"""Most recent updates whose mean duration determines the length of a branch."""


class Writer:
    """Where rank 0 writes: the log of the attempt, the ledger, and the folder of checkpoints."""

    def __init__(self, log: Log, ledger: Ledger) -> None:
        self.log, self.ledger = log, ledger
        self.scratch, self.attempt = log.scratch, log.attempt


class Loop:
    """Trains a cell until the run ends or has to stop.

    Args:
        module: Model and data of the cell.
        writer: Where to write; None on ranks other than 0.
        start: Checkpoint to resume from, or None.
        deadline: When to save and stop, in seconds since 1970.
    """

    def __init__(
        self,
        module: Training,
        writer: Writer | None,
        start: Checkpoint | None,
        deadline: float = math.inf,
    ) -> None:
        self.module, self.cell = module, module.cell
        self.writer, self.start, self.deadline = writer, start, deadline
        self.budget = parse_budget(self.cell.budget)
        now = time.process_time if self.cell.clock == "processor" else time.monotonic
        self.clock = Clock(start.progress.train_seconds if start else 0.0, now)
        self.status, self.message = "", ""
        self.val_loss: float | None = None
        self.saver = checkpoint.Saver()
        self._watch: Watch | None = None
        self._stop_reason = ""
        self._is_training = False
        self._update_ends = deque([self.clock.seconds], maxlen=PACE_UPDATES + 1)
        self._saved = time.monotonic()

    def run(self, rank: Rank, watch: Watch | None = None) -> None:
        """Train on one rank.

        Args:
            rank: This process.
            watch: Notified when a request to stop has been seen; None on ranks other than 0.
        """
        self.rank, self._watch = rank, watch
        with self._signals():
            self._prepare()
            for slab in self.module.slabs():
                self._update(slab)
                if self.status:
                    break
            self.saver.wait()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """On rank 0, take requests to stop as such during the block."""
        if not self.writer:
            yield
            return
        previous = {number: signal.signal(number, self._on_signal) for number in REQUESTS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._stop_reason = f"asked to stop by {signal.Signals(number).name}"
        if not self._is_training:
            self.end("interrupted", self._stop_reason)
            sys.exit(TRY_AGAIN)  # nothing to save yet, and compiling may take minutes

    def _prepare(self) -> None:
        module, rank, start = self.module, self.rank, self.start
        rank.agree(
            "the checkpoint to resume from",
            f"update {module.updates}",
            f"digest {start.digest[:12] if start else 'none'}",
        )
        if isinstance(module.rates, Decay):
            (end,) = rank.broadcast(module.rates.end)
            module.rates = replace(module.rates, end=int(end))
        (module.spent,) = rank.broadcast(self._fraction(module.updates, self.clock.seconds))
        module.start(rank)
        device = find(torch.cuda.get_device_name()) if self.cell.gpus else None
        self._peak_flops = self.cell.gpus * device.peak_flops if device else 0.0
        self._flops_per_token = module.flops_per_token()
        module.warm_up()
        if start:  # after the buckets of the gradients have been made twice
            checkpoint.restore_moments(start, module.model, module.adamw)
            self.start = None  # as large as the model and its moments
        if self.writer:
            self.writer.ledger.write("begin", module.updates, self.clock.seconds)
        self._is_training = True
        self._saved = self._logged = time.monotonic()
        self.clock.start()

    def _update(self, slab: torch.Tensor) -> None:
        """One update, and what is due after it."""
        module = self.module
        loss, norm = module.update(slab)
        before = self.clock.seconds
        seconds = self.clock.tick()
        progress = self._log_update(loss, norm, seconds, seconds - before)
        self.saver.check()
        module.spent, over, asked, due = self.rank.broadcast(
            progress["budget_fraction"],
            self.spent(module),
            self._must_stop(),
            self._checkpoint_is_due(),
        )
        self._decide(module, loss, bool(over), bool(asked))
        ended = self.status in STATUSES
        if self.status and self._watch:
            self._watch.answered()
        with self.clock.excluded():
            if self.writer:
                self._keep_for_branches(module, before, seconds)
            if ended or progress["tokens"] % self.cell.validation.every_tokens == 0:
                self._validate(module, progress)
            if self.writer and not ended:
                self._save(module, bool(due or asked))

    def _log_update(
        self, loss: float, norm: float, seconds: float, duration: float
    ) -> dict[str, Any]:
        """Write the row of an update; returns its columns of progress."""
        self._update_ends.append(seconds)
        progress = self._progress_columns(self.module, seconds)
        tokens_per_second = self.cell.update_tokens / duration
        flops = tokens_per_second * self._flops_per_token
        self._write(
            Update(
                **progress,
                train_loss=finite(loss),
                grad_norm=finite(norm),
                tokens_per_second=tokens_per_second,
                mfu=flops / self._peak_flops if self._peak_flops else None,
                peak_memory_bytes=self.module.peak_memory_bytes(),
            )
        )
        if norms := self.module.norms:
            self._write(norms.row(progress["attempt"], progress["update"], progress["tokens"]))
        self._log_progress(progress, loss, tokens_per_second)
        return progress

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
        self.val_loss = finite(module.validation_loss())
        tokens = self.cell.validation.tokens
        self._write(
            Validation(
                **progress, val_loss=self.val_loss, val_tokens=tokens, groups=self.module.groups
            )
        )

    def _keep_for_branches(self, module: Training, before: float, seconds: float) -> None:
        """Keep a checkpoint for each branch that leaves the trunk within the last update."""
        assert self.writer
        previous = self._fraction(module.updates - 1, before)
        current = self._fraction(module.updates, seconds)
        for share in self.cell.keep:
            if previous < BRANCH_AT * share <= current:
                path = checkpoint.branch_path(self.writer.scratch, share)
                self.saver.save(path, self._progress(module), module.model, module.adamw)

    def _save(self, module: Training, now: bool) -> None:
        assert self.writer
        writer, update, seconds = self.writer, module.updates, self.clock.seconds
        if not now:
            writer.ledger.beat(update, seconds)
            return

        def on_disk() -> None:
            writer.ledger.write("checkpoint", update, seconds)
            checkpoint.prune(writer.scratch)

        writer.log.sync()
        path = checkpoint.path_of(writer.scratch, update)
        self.saver.save(path, self._progress(module), module.model, module.adamw, on_disk)
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
