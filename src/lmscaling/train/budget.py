"""The budget of a run: productive time, the share that is spent, and how a run ends.

Productive time runs from the end of one update to the end of the next, without the work that is
not training (validation, checkpoints). Compilation and the first use of libraries happen before
it starts. Waiting for data and writing the log count, unless the seconds are those of the processor
(``Study.clock``). Of an update in which the machine was suspended or its disk stood still, only the
time of a usual one counts. It goes on where the checkpoint of a run has left it.
"""

# Hooks of callbacks that know which module they belong to.
# pyright: reportIncompatibleMethodOverride=false

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import distributed

from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import Decay
from lmscaling.train.module import Training

PACE_UPDATES = 1000
"""Most recent updates whose mean duration determines the length of a branch."""

STALL_SECONDS, STALL_UPDATES = 30.0, 20
"""An update has stalled if it took longer than this, and than so many usual ones."""


class Clock:
    """Productive seconds, from ``seconds`` on; ``now`` returns a monotonic time in seconds."""

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now = seconds, now
        self.start()

    def start(self) -> None:
        """Start the clock; the time before was preparation."""
        self._mark = self._now()

    def tick(self) -> float:
        """End an update: add its productive time and return the new total."""
        now = self._now()
        self.seconds += now - self._mark
        self._mark = now
        return self.seconds

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """A context for work that is not training; its time is not counted."""
        before = self._now()
        try:
            yield
        finally:
            self._mark += self._now() - before


class Budget(Callback):
    """Spends the budget of a cell, and stops the Trainer when a run has ended: also after
    ``last_update``, the last one for which there is text, of so many ``tokens``."""

    def __init__(self, cell: Cell, last_update: int, tokens: int) -> None:
        self.cell, self.last_update, self.tokens = cell, last_update, tokens
        self.budget = parse_budget(cell.budget)
        self.clock = Clock(0.0, time.process_time if cell.clock == "processor" else time.monotonic)
        self.status, self.message = "", ""
        """How the run has ended; empty if it has not."""
        self.before = 0.0
        """Productive seconds before the last update."""
        self.stalled = 0.0
        """Seconds of updates that have stalled, which are not productive."""
        self._update_ends: deque[float] = deque([0.0], maxlen=PACE_UPDATES + 1)
        self._validation = ExitStack()

    @property
    def seconds(self) -> float:
        """Productive seconds of the run, those of rank 0 on every rank."""
        return self.clock.seconds

    def state_dict(self) -> dict[str, float]:
        """Productive seconds, those of an update (the mean over the most recent ones), and those
        that updates have stalled."""
        ends = self._update_ends
        pace = (ends[-1] - ends[0]) / max(1, len(ends) - 1)
        spent = {"train_seconds": self.seconds, "update_seconds": pace}
        return spent | {"stalled_seconds": self.stalled}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Go on from the seconds of a checkpoint."""
        self.clock.seconds = state_dict["train_seconds"]
        self.stalled = state_dict["stalled_seconds"]
        self._update_ends = deque([self.seconds], maxlen=PACE_UPDATES + 1)

    def fraction(self, updates: int, seconds: float) -> float:
        """Share of the budget that so many updates have spent, which took so long."""
        tokens = updates * self.cell.update_tokens
        return self.budget.fraction(updates=updates, tokens=tokens, seconds=seconds)

    def is_spent(self, module: Training, updates: int) -> bool:
        """Whether the budget is spent, or the learning rate of a branch has reached zero."""
        if isinstance(module.rates, Decay):
            return updates >= module.rates.end
        return self.fraction(updates, self.seconds) >= 1

    def end(self, status: str, message: str = "") -> None:
        """End the run."""
        self.status, self.message = status, message

    def on_train_start(self, trainer: Trainer, pl_module: Training) -> None:
        """Start the clock, and give a branch the same end on every rank."""
        if isinstance(pl_module.rates, Decay):
            (end,) = of_rank_0(trainer, pl_module.rates.end)
            pl_module.rates = replace(pl_module.rates, end=int(end))
        pl_module.spent = self.fraction(trainer.global_step, self.seconds)
        self.clock.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Training, outputs: Any, *_: object
    ) -> None:
        """End an update, and decide whether it was the last one."""
        loss, updates, self.before = float(outputs["loss"]), trainer.global_step, self.seconds
        stalled = self._stall(self.clock.tick() - self.before)
        now = self.clock.seconds - stalled, self.stalled + stalled
        self.clock.seconds, self.stalled = of_rank_0(trainer, *now)
        self._update_ends.append(self.seconds)
        pl_module.spent = self.fraction(updates, self.seconds)
        if not math.isfinite(loss):
            self.end("diverged", f"the training loss of update {updates} is {loss}")
        elif self.is_spent(pl_module, updates):
            self.end("done")
        elif updates == self.last_update:
            times = f", read {self.cell.epochs} times" if self.cell.epochs > 1 else ""
            self.end("out_of_tokens", f"the stream has {self.tokens} tokens{times}")
        if self.status:
            trainer.should_stop = True
        if validates(trainer):
            self._validation.enter_context(self.clock.excluded())

    def _stall(self, seconds: float) -> float:
        """How long an update has stalled that took so many seconds: what is above the median."""
        if seconds <= STALL_SECONDS or len(self._update_ends) <= STALL_UPDATES:
            return 0.0
        usual = median(end - start for start, end in pairwise(self._update_ends))
        return seconds - usual if seconds > STALL_UPDATES * usual else 0.0

    def on_validation_end(self, trainer: Trainer, pl_module: Training) -> None:
        """The clock goes on."""
        self._validation.close()


def validates(trainer: Trainer) -> bool:
    """Whether Lightning validates after the update that has just been done."""
    every = trainer.val_check_batch or math.inf
    return trainer.enable_validation and (trainer.should_stop or trainer.global_step % every == 0)


def of_rank_0(trainer: Trainer, *numbers: float) -> list[float]:
    """The numbers of rank 0, on every rank, as float64; a decision is 0 or 1.

    Clocks differ between processes, and ranks that stopped at different updates would wait for
    each other.
    """
    if trainer.world_size == 1:
        return list(numbers)
    message = torch.tensor(numbers, dtype=torch.float64, device=trainer.strategy.root_device)
    distributed.broadcast(message, src=0)
    return message.tolist()
