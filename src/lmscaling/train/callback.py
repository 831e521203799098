"""What happens at the border between two updates: count, log, validate, save, and stop or go on.

Rank 0 writes, and its clock and signals decide for all; the other ranks take part in the sums.
The order (log, validate, save) means that whatever a checkpoint holds has been logged before it.
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

from lmscaling.config.budget import Spending
from lmscaling.config.cell import Cell
from lmscaling.config.devices import find
from lmscaling.config.schedule import BRANCH_AT, Decay
from lmscaling.records import run as records
from lmscaling.records.run import finite
from lmscaling.train import checkpoint
from lmscaling.train.clock import Clock
from lmscaling.train.ledger import Ledger
from lmscaling.train.log import Log
from lmscaling.train.module import Training
from lmscaling.train.ranks import Agreement

CHECKPOINT_SECONDS = 900.0
"""Time between two checkpoints: what a kill can cost; writing one is not productive time."""

SAY_SECONDS = 30.0
"""Time between two lines in the log of the job."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""Requests to stop: the run saves at the next border and is trained further another time."""

PACE_UPDATES = 1000
"""Updates over which the time of one is averaged, for the length of a branch."""


class Writer:
    """Where rank 0 writes: the attempt's log, the ledger, the folder of the checkpoints."""

    def __init__(self, log: Log, ledger: Ledger) -> None:
        self.log, self.ledger = log, ledger
        self.scratch, self.attempt = log.scratch, log.attempt


class Boundary(lightning.Callback):
    """Runs a cell from a checkpoint or from the start until it ends or is asked to stop.

    Args:
        cell: The cell.
        writer: Where to write; None on ranks other than 0.
        start: Checkpoint to go on from, or None.
        deadline: When to save and stop, seconds since 1970.
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
        self.budget = Spending(cell.budget)
        self.clock = Clock(start[0].train_seconds if start else 0.0)
        self.status, self.message = "", ""
        self._asked = ""
        self._marks = deque([self.clock.seconds], maxlen=PACE_UPDATES + 1)
        self._saved = time.monotonic()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self._agreement = Agreement()
        if isinstance(pl_module.rates, Decay):
            (end,) = self._agreement.broadcast(pl_module.rates.end)
            pl_module.rates = replace(pl_module.rates, end=int(end))
        spent = self._fraction(pl_module.updates, self.clock.seconds)
        (pl_module.spent,) = self._agreement.broadcast(spent)
        # Lightning has its own handlers by now; they would end the run without saving.
        self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        if self.start:
            checkpoint.restore_moments(*self.start, pl_module.model, trainer.optimizers[0])
        device = find(torch.cuda.get_device_name()) if self.cell.gpus else None
        self._peak = self.cell.gpus * device.peak_flops if device else 0.0
        self._flops_per_token = pl_module.model.flops_per_token()
        pl_module.warm_up()
        if self.writer:
            self.writer.ledger.write("begin", pl_module.updates, self.clock.seconds)
        self._saved = self._said = time.monotonic()
        self.clock.start()

    def teardown(self, trainer: lightning.Trainer, pl_module: Any, stage: str) -> None:
        for number, handler in getattr(self, "_before", {}).items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        self._asked = f"asked to stop by {signal.Signals(number).name}"

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module: Training = pl_module
        loss, norm = float(outputs["loss"]), float(outputs["norm"])
        before = self.clock.seconds
        seconds = self.clock.tick()
        self._marks.append(seconds)
        at = self._at(module, seconds)
        pace = self.cell.update_tokens / (seconds - before)
        flops = pace * self._flops_per_token
        self._write(
            records.Update(
                **at,
                train_loss=finite(loss),
                grad_norm=finite(norm),
                tokens_per_second=pace,
                mfu=flops / self._peak if self._peak else None,
                peak_memory_bytes=module.peak_memory_bytes(),
            )
        )
        self._say(at, loss, pace)
        module.spent, over, asked, due = self._agreement.broadcast(
            at["budget_fraction"],
            self.spent(module),
            self._limit_is_near(),
            self._checkpoint_is_due(),
        )
        self._decide(module, loss, bool(over), bool(asked))
        ended = self.status in records.STATUSES
        with self.clock.excluded():
            if self.writer:
                self._keep(trainer, module, before, seconds)
            if ended or at["tokens"] % self.cell.validation.every_tokens == 0:
                self._validate(module, at)
            if self.writer and not ended:
                self._save(trainer, module, bool(due or asked))
        trainer.should_stop = bool(self.status)

    def spent(self, module: Training) -> bool:
        """Whether nothing of the budget is left, or the rate of a branch has come to zero."""
        if isinstance(module.rates, Decay):
            return module.updates >= module.rates.end
        return self._fraction(module.updates, self.clock.seconds) >= 1

    def _fraction(self, updates: int, seconds: float) -> float:
        tokens = updates * self.cell.update_tokens
        return self.budget.fraction(updates=updates, tokens=tokens, seconds=seconds)

    def _at(self, module: Training, seconds: float) -> dict[str, Any]:
        """The columns that say where in the run a row stands."""
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

    def _say(self, at: dict[str, Any], loss: float, pace: float) -> None:
        """Now and then a line for whoever follows the log of the job."""
        if not self.writer or time.monotonic() - self._said < SAY_SECONDS:
            return
        self._said = time.monotonic()
        left = at["train_seconds"] * max(0.0, self._goal() / at["budget_fraction"] - 1) / 3600
        print(
            f"update {at['update']:,}: loss {loss:.4f}, {pace:,.0f} tokens/s, "
            f"{at['budget_fraction']:.1%} of the budget, about {left:.2f} h left",
            file=sys.stderr,
            flush=True,
        )

    def _goal(self) -> float:
        """The share of the budget at which the run ends."""
        return self.cell.branch or 1.0

    def _limit_is_near(self) -> bool:
        """Whether a signal came, or the job that this runs in is about to be ended."""
        if time.time() > self.deadline:
            self._asked = self._asked or "the time limit of the job is near"
        return bool(self._asked)

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
            self.end("interrupted", self._asked)

    def _validate(self, module: Training, at: dict[str, Any]) -> None:
        loss = module.validation_loss()
        self._write(
            records.Validation(**at, val_loss=finite(loss), val_tokens=self.cell.validation.tokens)
        )

    def _keep(
        self, trainer: lightning.Trainer, module: Training, before: float, seconds: float
    ) -> None:
        """Keep a checkpoint for each branch whose place lies in the update that has just ended."""
        assert self.writer
        last, now = (
            self._fraction(module.updates - 1, before),
            self._fraction(module.updates, seconds),
        )
        for share in self.cell.keep:
            if last < BRANCH_AT * share <= now:
                path = checkpoint.kept(self.writer.scratch, share)
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
            update_seconds=(self._marks[-1] - self._marks[0]) / max(1, len(self._marks) - 1),
        )

    def end(self, status: str, message: str) -> None:
        self.status, self.message = status, message

    def _write(self, row: records.Row) -> None:
        if self.writer:
            self.writer.log.write(row)
