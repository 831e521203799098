"""Train a cell: ``cell.json`` and tokens become a log and a record.

A run leaves a record if its budget is spent, its loss diverges, its stream is too short, or its
model does not fit into the memory of an empty device. Whatever else ends an attempt (a fault of the
machine, a bug, a damaged file, a kill) leaves none: the run is *held*, its checkpoints are kept,
and it goes on from the newest one.
"""

import math
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import torch
from lightning.pytorch import Trainer
from torch import distributed

from lmscaling.bench.checks import gate
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import Decay
from lmscaling.config.validation import checked
from lmscaling.errors import TRY_AGAIN, UserError
from lmscaling.files import read_json
from lmscaling.plan import estimate
from lmscaling.records import ledger
from lmscaling.records.run import HELD, STATUSES, Header, Run
from lmscaling.runtime import environment, gpus, lock
from lmscaling.runtime.rank import RANK, number
from lmscaling.train import branch, checked_kernels, checkpoint, failure, outcome, settings
from lmscaling.train.callbacks.between import Agreement
from lmscaling.train.callbacks.budget import Budget
from lmscaling.train.callbacks.checkpoints import Branches, Checkpoints
from lmscaling.train.callbacks.ledger import Beats
from lmscaling.train.callbacks.loggers import Mirror
from lmscaling.train.callbacks.norms import Norms
from lmscaling.train.callbacks.rows import Rows
from lmscaling.train.checkpoint import Checkpoint, Expected, SafetensorsIO
from lmscaling.train.data import Text
from lmscaling.train.failure import Failed
from lmscaling.train.ledger import Ledger
from lmscaling.train.log import Log, close_last, ended, publish
from lmscaling.train.module import Training
from lmscaling.train.ranks import Others, report_failure
from lmscaling.train.requests import Requests
from lmscaling.train.trainer import NOTHING, Shown, trainer

GIVE_UP_SECONDS = 8.0
"""Longest time to record why an attempt is given up."""

BLAME_SECONDS = 2.0
"""How long rank 0 waits for a rank to end after a connection has broken."""


class Held(UserError):
    """A run has failed too often to be tried again by itself."""


def train(
    cell_path: Path,
    manifest: Path,
    scratch: Path,
    record: Path,
    calibration: Path | None = None,
    stop_after: float | None = None,
    calibrated: Path | None = None,
    shown: Shown = NOTHING,
) -> Run | None:
    """Train a cell until its budget is spent, or a branch until its learning rate is zero.

    Args:
        cell_path: ``cell.json``.
        manifest: ``manifest.json`` of the tokens.
        scratch: Folder of the files that attempts share; the trunk's is beside that of a branch.
        record: Path of ``run.json``; ``log.jsonl`` is written beside it.
        calibration: ``calibration.json``; None uses the plan's guess for this device.
        stop_after: Seconds from the start of this process after which the attempt saves and stops,
            because the time limit of its job is near. The moments at which a run stops and resumes
            do not change its result, so this is not part of the cell.
        calibrated: ``cell.json`` of the cell that was calibrated, if it is another one.
        shown: Loggers, and what else of Lightning is wanted.

    Returns:
        The record; None on ranks other than 0.

    Raises:
        UserError: The cell, the tokens and the machine do not match, the attention fails its check,
            the run is being trained, or it is held, as one of its ranks or the machine has failed.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    if run := ended(cell, scratch, record):
        return run
    deadline = math.inf if stop_after is None else psutil.Process().create_time() + stop_after
    with gpus.reserved(cell.gpus):
        text = Text(cell, manifest)
        _check_machine(cell)
        if calibration and calibrated:
            chosen = settings.nearest(calibration, calibrated, cell)
        else:
            chosen = settings.read(calibration, cell) if calibration else settings.guessed(cell)
        text.micro_batch = chosen.micro_batch
        _warn_of_too_little_text(text, chosen)
        attempt = Attempt(cell, text, chosen, scratch, record, deadline, shown)
        if number():
            attempt.follow()
            return None
        # A workflow that is started twice submits the same run twice.
        with lock.hold(scratch, f"run {scratch.name} is being trained"):
            if run := ended(cell, scratch, record):  # whoever had the lock has finished
                return run
            _refuse_held(cell, scratch)
            checked_kernels.require(cell, scratch)
            return attempt.lead()


class Attempt:
    """One attempt at a run, on one rank.

    Args:
        cell: The cell.
        text: Its tokens.
        chosen: The settings to train with.
        scratch: Scratch folder of the run.
        record: Path of ``run.json``.
        deadline: When to save and stop, in seconds since 1970.
        shown: What it shows beside its log.
    """

    def __init__(
        self,
        cell: Cell,
        text: Text,
        chosen: Calibration,
        scratch: Path,
        record: Path,
        deadline: float,
        shown: Shown,
    ) -> None:
        self.shown = shown
        self.cell, self.text, self.chosen = cell, text, chosen
        self.scratch, self.record = scratch, record
        self.module = Training(cell, chosen)
        self.budget = Budget(cell, text.last_update(), text.train.tokens)
        self.requests, self.io = Requests(deadline), SafetensorsIO()
        self.device = torch.device("cuda", number()) if cell.gpus else torch.device("cpu")
        self.was_in_use, self.kernels = False, ""
        self.start: Checkpoint | None = None
        self.first = 0
        """Updates done when the attempt began."""
        self.trainer: Trainer | None = None

    @property
    def updates(self) -> int:
        """Updates completed."""
        return max(self.first, self.trainer.global_step if self.trainer else 0)

    def lead(self) -> Run:
        """The attempt on rank 0: train on all ranks, and record the run if it ends.

        Raises:
            Failed: A rank or the machine has failed; the run goes on in another attempt.
            SystemExit: The attempt was asked to stop.
        """
        budget, module = self.budget, self.module
        description = outcome.description(module, self.text, self.chosen, self.scratch)
        try:
            self._resume()
        except branch.NoTrunk as reason:
            budget.end("no_trunk", str(reason))
        with Log(self.scratch) as log, Ledger(self.scratch, log.attempt) as book:
            log.write(Header(attempt=log.attempt, start_update=self.updates, **description))
            log.sync()
            entries = ledger.entries(book.path)
            if self.start and isinstance(module.rates, Decay):
                end = branch.fixed_end(book, self.start.progress, module.rates.end)
                module.rates = replace(module.rates, end=end)
            if ledger.is_too_large(entries):
                budget.end("oom", entries[-1].reason)
            elif self.start and budget.is_spent(module, self.updates):
                module.load_state_dict(self.start.content["state_dict"])
                budget.end("done", "")
            elif not budget.status:
                self._train_together(log, book, description["flops_per_token"])
            end = outcome.end_row(log.attempt, self.updates, budget.status, budget.message)
            log.write(end)
            if budget.status not in STATUSES:
                place = f"stopped after update {self.updates}: {budget.message}"
                print(f"{place}; the next job continues", file=sys.stderr, flush=True)
                sys.exit(TRY_AGAIN)
            shared = description | {"kernels": self.kernels}
            run = outcome.run_record(self.text, budget, module.val_loss, book, end, shared)
        return self._publish(run)

    def follow(self) -> None:
        """The attempt on another rank; on an error report it and exit, as the others may hang."""
        try:
            with self.requests:
                self._resume()
                self.fit()
        except Exception as error:
            traceback.print_exc()
            fault = failure.diagnosis(error, self.was_in_use)
            report_failure(self.scratch, *fault, self.updates)
            sys.stderr.flush()
            os._exit(1)

    def fit(self, log: Log | None = None, book: Ledger | None = None, flops: float = 0.0) -> None:
        """Train on this rank until the run ends or is asked to stop; rank 0 writes."""
        module, budget, start = self.module, self.budget, self.start
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self.was_in_use = failure.is_in_use(self.device)
        checks = gate.record_beside(self.scratch, self.cell)
        self.kernels = gate.pass_or_fall_back(
            checks, module.model, module.micro_batch, self.device, self.chosen.compiled
        )
        digest = start.digest[:12] if start else "none"
        rows = Rows(log, budget, flops, self._mirror(log)) if log else None
        self.trainer = trainer(
            self.cell,
            ranks(self.cell),
            self.io,
            [
                Agreement(f"update {self.first}", f"digest {digest}", self.kernels),
                budget,
                *([rows] if rows else []),
                Norms(rows),
                *([Beats(book, budget)] if book else []),
                Branches(self.scratch, budget),
                Checkpoints(self.scratch, self.io, budget, self.requests, log, book),
            ],
            self.shown,
        )
        self.start = None  # it is as large as the model and its moments
        path = start.path if start else None
        del start
        self.trainer.fit(module, datamodule=self.text, ckpt_path=path)
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def _mirror(self, log: Log) -> Mirror:
        """The loggers of the study, whose files are in its folder ``loggers``."""
        folder = self.scratch.absolute().parents[1] / "loggers"
        return Mirror(self.shown.loggers, folder, self.cell.run, log.attempt)

    def _resume(self) -> None:
        """Find where to go on: the newest usable checkpoint, or the trunk's.

        Raises:
            NoTrunk: This is a branch whose trunk left no checkpoint for it.
            UserError: This is a branch and the trunk's checkpoint is damaged.
        """
        cell = self.cell
        expected = Expected(cell.run, cell.update_tokens, self.text.train.go_on)
        start = checkpoint.newest(self.scratch, expected)
        if cell.branch:
            trunk = branch.trunk_checkpoint(cell, expected, self.scratch, self.record)
            self.module.rates = branch.decay(cell, trunk.progress)
            start = start or trunk
        if start:
            self.start, self.first = start, start.progress.update
            self.budget.go_on(start.progress.train_seconds)
            self.io.hand_over(start)

    def _train_together(self, log: Log, book: Ledger, flops: float) -> None:
        """Train on all ranks. Of a failure, the ledger and the log say what it was and where."""
        with Others(ranks(self.cell), self.scratch) as others:
            others.watch(lambda *found: self._give_up(others, log, book, *found))
            try:
                with self.requests:
                    self.fit(log, book, flops)
                others.wait(BLAME_SECONDS)
            except SystemExit:  # asked to stop, before the first update or after the last one
                self.budget.end("interrupted", self.requests.reason)
            except Exception as error:
                with suppress(Exception):  # the checkpoint that is being written counts
                    self.io.wait()
                blamed = others.blame(BLAME_SECONDS)
                fault, reason = blamed or failure.diagnosis(error, self.was_in_use)
                if ranks(self.cell) > 1 and not blamed:
                    reason = f"rank 0 failed at update {self.updates}: {reason}"
                others.kill()
                advice = self._failed(log, book, fault, reason)
                if self.budget.status:
                    return
                if not fault and not blamed:  # a bug: with its traceback
                    print(advice, file=sys.stderr, flush=True)
                    raise
                raise Failed(advice) from error
        book.write("beat", self.updates, self.budget.seconds)

    def _failed(self, log: Log, book: Ledger, fault: str, reason: str) -> str:
        """Record why the attempt has failed; returns what happens now.

        A model that does not fit is a result.
        """
        node, update = environment.node(), self.updates
        book.write("failed", update, self.budget.seconds, fault=fault, reason=reason, host=node)
        entries = ledger.entries(book.path)
        if ledger.is_too_large(entries):
            self.budget.end("oom", reason)
        else:
            log.write(outcome.end_row(log.attempt, update, HELD, f"{reason}, on {node}"))
        saved = max((e.update for e in entries if e.kind == "checkpoint"), default=0)
        return (
            f"run {self.cell.run} is held on {node}: {reason}; "
            f"snakemake continues it after update {saved}"
        )

    def _give_up(self, others: Others, log: Log, book: Ledger, fault: str, reason: str) -> None:
        """End the process, in a thread: a rank has died and the main thread waits for it."""
        # If not even the file server answers.
        threading.Timer(GIVE_UP_SECONDS, os._exit, (1,)).start()
        try:
            others.kill()
            print(f"error: {self._failed(log, book, fault, reason)}", file=sys.stderr, flush=True)
            (self.scratch / lock.NAME).unlink(missing_ok=True)
        finally:
            os._exit(1)

    def _publish(self, run: Run) -> Run:
        """Write weights, log and record; a request to stop would take longer than this."""
        previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            if self.updates:
                weights = self.record.with_name("model.safetensors")
                checkpoint.save_weights(weights, self.module.model)
            return publish(self.cell, self.scratch, self.record, run)
        finally:
            signal.signal(signal.SIGTERM, previous)


def _refuse_held(cell: Cell, scratch: Path) -> None:
    """Refuse a run whose attempts have failed too often, until the user lets it go on."""
    entries = ledger.entries(scratch / ledger.NAME)
    hold = ledger.hold(entries)
    if hold and hold.needs_release and not ledger.is_too_large(entries):
        last = entries[-1]
        end = outcome.end_row(last.attempt, last.update, HELD, hold.reason)
        close_last(scratch, end)
        raise Held(
            f"run {cell.run} is held at update {last.update}: {hold.reason}; to let it go on, "
            f"type lmscaling reset --go-on {cell.run}, then snakemake"
        )


def ranks(cell: Cell) -> int:
    """Processes that train a cell: one per GPU, or one on the CPU."""
    return max(1, cell.gpus)


def _warn_of_too_little_text(text: Text, calibration: Calibration) -> None:
    cell = text.cell
    updates = estimate.budget_updates(cell, calibration.update_seconds)
    tokens = text.train.updates(cell.update_tokens) * cell.update_tokens
    if warning := estimate.exhausts(cell, updates, tokens):
        print(f"cell {cell.name}: {warning}", file=sys.stderr, flush=True)


def _check_machine(cell: Cell) -> None:
    """Refuse a machine that cannot train a cell, and a second launcher of ranks."""
    devices = torch.cuda.device_count()
    if cell.gpus > devices:
        raise UserError(
            f"cell {cell.name} needs {cell.gpus} gpus on one node and this node has {devices}; "
            f"set gpus to {devices or '0 (the CPU)'} or run it on another node"
        )
    world = os.environ.get("WORLD_SIZE", "")
    differs = world.isdigit() and int(world) != ranks(cell)
    if RANK not in os.environ and (differs or "LOCAL_RANK" in os.environ):
        raise UserError(
            f"WORLD_SIZE is {world}, and train starts the {ranks(cell)} ranks of cell {cell.name} "
            "itself; start train once and without torchrun"
        )
