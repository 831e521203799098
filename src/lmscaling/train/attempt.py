"""One attempt at a run: what all ranks do, what rank 0 writes, and what an error means."""

import os
import signal
import sys
import threading
import traceback
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import distributed

from lmscaling.bench.checks import gate
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import Decay
from lmscaling.errors import TRY_AGAIN, UserError
from lmscaling.records import ledger
from lmscaling.records.run import HELD, STATUSES, Header, Run, finite
from lmscaling.runtime import environment, faults, lock
from lmscaling.runtime.rank import REQUESTS, number
from lmscaling.train import branch, checkpoint, initial, outcome
from lmscaling.train.budget import Budget
from lmscaling.train.checkpoint import Checkpoints, SafetensorsIO
from lmscaling.train.data import Text
from lmscaling.train.journal import Journal
from lmscaling.train.module import Training
from lmscaling.train.norms import Norms
from lmscaling.train.ranks import Others, Requests, handled, report_failure
from lmscaling.train.trainer import trainer

GIVE_UP_SECONDS = 8.0
"""Longest time to record why an attempt is given up."""

BLAME_SECONDS = 2.0
"""How long rank 0 waits for a rank to end after a connection has broken."""


REPLAYS = 2
"""Most replays of a run whose loss is no number. A schedule in hours, or a kernel that adds in any
order, may let it diverge at another update."""


@dataclass
class Attempt:
    """One attempt at a run, on one rank; ``options`` are further arguments of the Trainer."""

    cell: Cell
    text: Text
    chosen: Calibration
    scratch: Path
    record: Path
    requests: Requests
    loggers: dict[str, dict[str, Any]]
    options: dict[str, Any]

    def __post_init__(self) -> None:
        self.module, self.io = Training(self.cell, self.chosen), SafetensorsIO()
        self.budget = Budget(self.cell, self.text.last_update(), self.text.train.tokens)
        self.trainer: Trainer | None = None
        self.path: Path | None = None  # the checkpoint from which it goes on
        self.first = 0  # updates done when it began
        self.was_in_use = False  # whether other processes used the device before

    @property
    def updates(self) -> int:
        """Updates completed."""
        return max(self.first, self.trainer.global_step if self.trainer else 0)

    def lead(self) -> Run | None:
        """The attempt on rank 0: train on all ranks, and record the run if it ends; None if its
        loss was no number, and another attempt is to tell whether that repeats.

        Raises:
            UserError: A rank or the machine has failed; the run goes on in another attempt.
            SystemExit: The attempt was asked to stop.
        """
        description = outcome.description(self.module, self.text, self.chosen, self.scratch)
        self._resume()
        flops = description["flops_per_token"]
        self.journal = Journal(self.scratch, self.budget, flops, self.loggers)
        with closing(self.journal) as journal:
            journal.write(Header(attempt=journal.attempt, start_update=self.updates, **description))
            journal.sync()
            if self._is_left():
                with Others(ranks(self.cell), self.scratch, self._give_up) as self.others:
                    try:
                        self._fit(journal)
                        self.others.wait(BLAME_SECONDS)
                    except SystemExit:  # asked to stop, before the first update or after another
                        self.budget.end("interrupted", self.requests.reason)
                    except Exception as error:
                        self._blame(error)
                journal.note("beat", self.updates)
            if self._is_to_repeat(journal):
                return None
            run = self._ended(description)
        with handled(signal.SIG_IGN, signal.SIGTERM):  # to stop would take longer
            if self.updates:
                weights = self.record.with_name("model.safetensors")
                checkpoint.save_weights(weights, self.module.model)
            return outcome.publish(self.cell, self.scratch, self.record, run)

    def follow(self) -> None:
        """The attempt on another rank; on an error report it and exit, as the others may hang."""
        try:
            self._resume()
            self._fit()
        except SystemExit:  # asked to stop, as rank 0 is, which still writes
            return
        except Exception as error:
            traceback.print_exc()
            report_failure(self.scratch, *self._diagnosis(error))
            sys.stderr.flush()
            os._exit(1)

    def _resume(self) -> None:
        """Find where to go on: the newest usable checkpoint, or the trunk's.

        Raises:
            UserError: This is a branch and the trunk's checkpoint is damaged.
        """
        cell = self.cell
        start = checkpoint.newest(self.scratch, partial(self.text.check, run=cell.run))
        if cell.branch:
            try:
                trunk = branch.trunk_checkpoint(self.text, self.scratch, self.record)
            except branch.NoTrunk as reason:
                self.budget.end("no_trunk", str(reason))
                return
            self.module.rates = branch.decay(cell, trunk.progress)
            start = start or trunk
        if cell.initial and not start:
            initial.load(self.module.model, cell, self.record)
        if start:
            self.io.opened = start
            self.path, self.first = start.path, start.progress.update
            self.budget.load_state_dict(start.content["callbacks"]["Budget"])

    def _is_left(self) -> bool:
        """Whether there is something to train. A branch gets the length that its first attempt has
        recorded."""
        budget, module, entries = self.budget, self.module, self.journal.entries
        if isinstance(module.rates, Decay):
            ends = [entry.end for entry in entries if entry.kind == "branch"]
            if not ends:
                self.journal.note("branch", self.first, end=module.rates.end)
            module.rates = replace(module.rates, end=(ends or [module.rates.end])[0])
        if ledger.is_too_large(entries):
            budget.end("oom", entries[-1].reason)
        elif self.io.opened and budget.is_spent(module, self.first):
            module.load_state_dict(self.io.opened.content["state_dict"])
            budget.end("done")
        return not budget.status

    def _fit(self, journal: Journal | None = None) -> None:
        """Train until the run ends or is asked to stop; rank 0 has a journal."""
        with handled(self.requests.handler, *REQUESTS):
            self._check_device()
            digest = self.io.opened.digest[:12] if self.io.opened else "none"
            alike = f"update {self.first}, digest {digest}"
            saving = Checkpoints(
                self.scratch, self.io, self.budget, self.requests, journal, alike=alike
            )
            # Lightning asks each a dozen times an update: only those that are needed.
            callbacks = [self.budget, *([journal] if journal else []), Norms(journal), saving]
            own = trainer(self.cell, ranks(self.cell), self.io, callbacks, **self.options)
            self.trainer = own
            own.fit(self.module, datamodule=self.text, ckpt_path=self.path)
            if distributed.is_initialized():
                distributed.destroy_process_group()

    def _check_device(self) -> None:
        """Note who uses the device, and check the kernels on it."""
        device = torch.device("cuda", number()) if self.cell.gpus else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.cuda.reset_peak_memory_stats(device)
        self.was_in_use = faults.is_in_use(device)
        checks = gate.record_beside(self.scratch, self.cell)
        model, micro_batch = self.module.model, self.module.micro_batch
        gate.require(checks, model, micro_batch, device, self.chosen.compiled)

    def _diagnosis(self, error: Exception) -> tuple[str, str]:
        """Fault and reason of an error of this rank."""
        fault, reason = faults.diagnosis(error, self.was_in_use)
        if ranks(self.cell) > 1:
            reason = f"rank {number()} failed at update {self.updates}: {reason}"
        return fault, reason

    def _blame(self, error: Exception) -> None:
        """Of a failure, the ledger and the log say what it was and where."""
        with suppress(Exception):  # the checkpoint that is being written counts
            self.io.wait()
        blamed = self.others.blame(BLAME_SECONDS)
        fault, reason = blamed or self._diagnosis(error)
        self.others.kill()
        advice = self._failed(fault, reason)
        if self.budget.status:  # a result
            return
        if not fault and not blamed:  # a bug: with its traceback
            print(advice, file=sys.stderr, flush=True)
            raise error
        raise UserError(advice) from error

    def _is_to_repeat(self, journal: Journal) -> bool:
        """Whether the run must go on from its last checkpoint before it has diverged: what a fault
        of the machine has changed does not repeat at the same update."""
        update, message = self.updates, self.budget.message
        before = [entry.update for entry in journal.entries if entry.kind == "diverged"]
        if self.budget.status != "diverged" or update in before or len(before) >= REPLAYS:
            return False
        journal.note("diverged", update, reason=message)
        # What was saved just before may be damaged already.
        checkpoint.path_of(self.scratch, update - 1).unlink(missing_ok=True)
        message += "; replayed from the checkpoint before"
        journal.write(outcome.end_row(journal.attempt, update, "interrupted", message))
        print(message, file=sys.stderr, flush=True)
        return True

    def _failed(self, fault: str, reason: str) -> str:
        """Record why the attempt has failed; returns what happens now.

        A model that does not fit is a result.
        """
        node, update, journal = environment.node(), self.updates, self.journal
        journal.note("failed", update, fault=fault, reason=reason, host=node)
        entries = journal.entries
        if ledger.is_too_large(entries):
            self.budget.end("oom", reason)
        else:
            journal.write(outcome.end_row(journal.attempt, update, HELD, f"{reason}, on {node}"))
        saved = max((e.update for e in entries if e.kind == "checkpoint"), default=0)
        return (
            f"run {self.cell.run} is held on {node}: {reason}; "
            f"snakemake continues it after update {saved}"
        )

    def _give_up(self, fault: str, reason: str) -> None:
        """End the process, in a thread: a rank has died and the main thread waits for it."""
        # If not even the file server answers.
        threading.Timer(GIVE_UP_SECONDS, os._exit, (1,)).start()
        try:
            self.others.kill()
            print(f"error: {self._failed(fault, reason)}", file=sys.stderr, flush=True)
            (self.scratch / lock.NAME).unlink(missing_ok=True)
        finally:
            os._exit(1)

    def _ended(self, description: dict[str, Any]) -> Run:
        """End the log; the record of a run that has ended. Of one that has not, exit, so that
        another job goes on."""
        budget, loss = self.budget, self.module.val_loss
        end = outcome.end_row(self.journal.attempt, self.updates, budget.status, budget.message)
        self.journal.write(end)
        if budget.status not in STATUSES:
            place = f"stopped after update {self.updates}: {budget.message}"
            print(f"{place}; the next job continues", file=sys.stderr, flush=True)
            sys.exit(TRY_AGAIN)
        last = {"last_val_loss": None if loss is None else finite(loss)}
        return outcome.run_record(self.text, budget, self.scratch, end, description | last)


def ranks(cell: Cell) -> int:
    """Processes that train a cell: one per GPU, or one on the CPU."""
    return max(1, cell.gpus)
