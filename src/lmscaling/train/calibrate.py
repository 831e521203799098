"""Find the fastest way to train a cell on a device: micro-batch, recomputation, attention options.

Real updates (forward, backward, optimizer) are timed on random tokens, in the precision of
training. The options of the attention are tried first, at the micro-batch that the plan guesses,
then growing micro-batches until memory is exhausted or they are no faster. Blocks are recomputed
only if a single sequence does not fit otherwise.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lmscaling.config import devices
from lmscaling.config.calibration import Calibration, Trial
from lmscaling.config.cell import Cell
from lmscaling.config.types import dump
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_json
from lmscaling.model import gpt, optimizer
from lmscaling.model.gpt import GPT
from lmscaling.plan import estimate
from lmscaling.runtime import environment, gpus

WARM_UP = 2
"""Repeats that are not timed: the first one compiles and loads libraries."""
REPEATS = (5, 50)
"""Minimum and maximum number of repeats of a trial."""
TRIAL_SECONDS = 0.5
"""A trial is repeated until its repeats have taken this long."""
GAIN = 0.01
"""A larger micro-batch must be faster by this share; otherwise the smaller one saves memory."""
MOST_TOKENS = 2**17
"""Tokens of the largest micro-batch that is tried."""


def calibrate(cell_path: Path, out: Path) -> Calibration:
    """Measure a cell on this machine's device and write ``calibration.json``.

    Raises:
        UserError: The cell file is not valid, the machine lacks a GPU, or not even one sequence
            fits into memory.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    with gpus.reserved(min(1, cell.gpus)):
        if cell.gpus and not torch.cuda.is_available():
            raise UserError(f"cell {cell.name} trains on GPUs and this machine has none")
        fastest = _Bench(cell).best()
    write_json(out, dump(fastest))
    return fastest


def guessed(cell: Cell) -> Calibration:
    """The plan's guess for this machine's device; nothing is measured.

    Raises:
        UserError: Not even one sequence would fit into memory.
    """
    memory = torch.cuda.get_device_properties(0).total_memory if cell.gpus else None
    layout = estimate.guess(cell, gpt.shape(cell).params_total, memory)
    if layout is None:
        raise UserError(f"cell {cell.name}: one sequence does not fit into the device's memory")
    return Calibration(
        of=cell.calibration,
        device=environment.device_name(cell.gpus),
        versions=environment.versions(),
        measured=False,
        micro_batch=layout.micro_batch,
        recompute=layout.recompute,
        compiled=bool(cell.gpus),
    )


def read(path: Path, cell: Cell) -> Calibration:
    """The calibration of a cell, measured on a device like this machine's.

    Raises:
        UserError: It belongs to another cell, another device or another size of update.
    """
    calibration = checked(Calibration, read_json(path, "calibration"), str(path))
    device = environment.device_name(cell.gpus)
    again = f"delete {path} and run snakemake again to measure it again"
    if calibration.of != cell.calibration:
        raise UserError(
            f"calibration {path} belongs to {calibration.of}; the cell needs {cell.calibration}"
        )
    if calibration.device != device:
        raise UserError(
            f"calibration {path} was measured on {calibration.device} and this machine has "
            f"{device}; {again}, or restrict the jobs to one kind of device"
        )
    sequences = estimate.sequences(cell)
    if sequences % calibration.micro_batch:
        raise UserError(
            f"calibration {path} has a micro-batch of {calibration.micro_batch}, which does not "
            f"divide the {sequences} sequences of an update; {again}"
        )
    return calibration


class _Bench:
    """One model on one device, timed with different settings."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.device = torch.device("cuda" if cell.gpus else "cpu")
        self.gpt = GPT(cell).to(self.device)
        if cell.gpus:
            self.gpt.compile_blocks()
        self.adamw = optimizer.build(self.gpt, cell)
        self.tunable = self.gpt.tunable(self.device.type)
        self.trials: list[Trial] = []

    def best(self) -> Calibration:
        """Try the settings one after another and return the fastest."""
        sizes = [d for d in range(1, estimate.sequences(self.cell) + 1) if not self._too_long(d)]
        memory = None
        if known := devices.find(environment.device_name(self.cell.gpus)):
            memory = known.memory_bytes
        guess = estimate.guess(self.cell, self.gpt.params_total, memory)
        start = guess or estimate.Layout(1, True, 0.0)
        choice = self._choose(start.micro_batch, start.recompute)
        fastest = self._grow(sizes, recompute=False, choice=choice)
        if fastest is None:
            fastest = self._grow(sizes, recompute=True, choice=choice)
        if fastest is None:
            raise UserError(
                f"cell {self.cell.name}: not even one sequence with recomputed blocks fits into "
                f"the memory of {environment.device_name(self.cell.gpus)}"
            )
        return self._conclude(fastest)

    def _too_long(self, size: int) -> bool:
        sequences = estimate.sequences(self.cell)
        return bool(sequences % size) or (size > 1 and size * self.cell.context > MOST_TOKENS)

    def _choose(self, size: int, recompute: bool) -> dict[str, int | str]:
        """The fastest value of each option of the attention, one option after the other."""
        choice = {name: values[0] for name, values in self.tunable.items()}
        for name, values in self.tunable.items():
            trials = [self._try(size, recompute, choice | {name: value}) for value in values]
            fitting = [trial for trial in trials if trial.seconds]
            if fitting:
                choice = min(fitting, key=_seconds_per_sequence).choice
        return choice

    def _grow(
        self, sizes: list[int], recompute: bool, choice: dict[str, int | str]
    ) -> Trial | None:
        """Try growing micro-batches until two in a row are no faster or memory is exhausted."""
        fastest, slower = None, 0
        for size in sizes:
            trial = self._try(size, recompute, choice)
            if not trial.seconds or slower == 2:
                break
            seconds = _seconds_per_sequence(trial)
            if fastest is None or seconds < _seconds_per_sequence(fastest) * (1 - GAIN):
                fastest, slower = trial, 0
            else:
                slower += 1
        return fastest

    def _try(self, size: int, recompute: bool, choice: dict[str, int | str]) -> Trial:
        self.gpt.tune(choice)
        self.gpt.recompute = recompute
        # Each shape is compiled separately; the graphs of earlier shapes would count against the
        # limit of recompilations.
        torch.compiler.reset()
        try:
            seconds = self._time(lambda: self._forward_backward(size), self._update)
        except torch.OutOfMemoryError:
            seconds = []
        self.gpt.zero_grad(set_to_none=True)
        peak = None
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        trial = Trial(
            micro_batch=size,
            recompute=recompute,
            choice=choice,
            repeats=len(seconds),
            seconds=_spread(seconds) if seconds else None,
            peak_memory_bytes=peak,
        )
        self.trials.append(trial)
        return trial

    def _time(
        self, work: Callable[[], None], after: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Seconds of each repeat of ``work``, until the device has finished.

        ``after`` runs after each repeat that is not timed.
        """
        for _ in range(WARM_UP):
            work()
            after()
        seconds: list[float] = []
        least, most = REPEATS
        while len(seconds) < least or (sum(seconds) < TRIAL_SECONDS and len(seconds) < most):
            self._wait()
            before = time.perf_counter()
            work()
            self._wait()
            seconds.append(time.perf_counter() - before)
        return seconds

    def _forward_backward(self, size: int) -> None:
        x_BT, y_BT = self._tokens(size)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bool(self.cell.gpus)):
            loss = self.gpt.loss(x_BT, y_BT)
        loss.backward()

    def _update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.gpt.parameters(), self.cell.optimizer.clip_norm)
        self.adamw.step()

    def _tokens(self, size: int) -> tuple[Tensor, Tensor]:
        shape = (2, size, self.cell.context)
        x_BT, y_BT = torch.randint(self.cell.model.vocab_size, shape, device=self.device)
        return x_BT, y_BT

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _conclude(self, best: Trial) -> Calibration:
        """The calibration with the fastest settings, and the time of one update with them."""
        self.gpt.recompute = best.recompute
        self._forward_backward(1)
        assert best.seconds
        accumulation = estimate.sequences(self.cell) // best.micro_batch
        update = _spread(self._time(self._update))
        least, median, most = (
            accumulation * micro + once for micro, once in zip(best.seconds, update, strict=True)
        )

        return Calibration(
            of=self.cell.calibration,
            device=environment.device_name(self.cell.gpus),
            versions=environment.versions(),
            measured=True,
            micro_batch=best.micro_batch,
            recompute=best.recompute,
            compiled=bool(self.cell.gpus),
            choice=best.choice,
            update_seconds=median,
            update_seconds_range=(least, most),
            peak_memory_bytes=best.peak_memory_bytes,
            trials=self.trials,
        )


def _seconds_per_sequence(trial: Trial) -> float:
    """The median."""
    assert trial.seconds
    return trial.seconds[1] / trial.micro_batch


def _spread(seconds: list[float]) -> tuple[float, float, float]:
    """Minimum, median and maximum."""
    return min(seconds), statistics.median(seconds), max(seconds)
