"""Find the fastest way to train a cell on a device: micro-batch, recomputation, attention options.

Real updates (forward, backward, optimizer) are timed on random tokens, in the precision of
training; a cell of several ranks is measured as one of them. The options of the attention are tried
first, at the micro-batch that the plan guesses, then growing micro-batches until memory is
exhausted or they are no faster. Blocks are recomputed only if a single sequence does not fit
otherwise. A trial that raises an error, or that fills more of the device than a plan may, has
failed, and the next one is made. A fault of the machine ends the calibration instead.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from lmscaling.bench.checks import gate, variant
from lmscaling.config import code
from lmscaling.config.calibration import Calibration, Trial
from lmscaling.config.cell import Cell
from lmscaling.config.types import dump
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_record
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
from lmscaling.plan import estimate
from lmscaling.runtime import environment, faults, gpus
from lmscaling.train import parallel

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
    """Measure a cell on this machine's device and write ``calibration.json``, if there is none.

    Raises:
        UserError: The cell file is not valid, the machine lacks a GPU, the attention fails its
            check, not even one sequence fits into memory, or every trial failed.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    if earlier := _existing(out):
        return earlier
    with gpus.reserved(min(1, cell.gpus)):
        if cell.gpus and not torch.cuda.is_available():
            raise UserError(
                f"cell {cell.name} trains on GPUs and this machine has none; run it on a machine "
                "with a GPU, or write gpus: 0"
            )
        device = torch.device("cuda" if cell.gpus else "cpu")
        checks = gate.record_beside(out, cell)
        variant.require(cell, device, checks)
        fastest = measured(cell, device, checks)
    write_record(out, dump(fastest))
    return fastest


def _existing(path: Path) -> Calibration | None:
    """A calibration that another job has measured: runs use it already, so it stays."""
    try:
        calibration = checked(Calibration, read_json(path, "calibration"), str(path))
    except UserError:
        return None
    print(f"calibration {path} exists and stays as it is", file=sys.stderr, flush=True)
    return calibration


def measured(cell: Cell, device: torch.device, checks: Path) -> Calibration:
    """The fastest way to train a cell on one device, as one of its ranks.

    Kernels that fail their check are replaced first, as in training; ``checks`` is
    ``checks/<name>.json``.

    Raises:
        UserError: Not even one sequence fits into memory, or every trial failed.
    """
    with parallel.world_of_one(device) if cell.gpus > 1 else nullcontext():
        return _Bench(cell, device, checks).best()


def memory_bytes(device: torch.device) -> int | None:
    """All memory of a GPU, also that in use; None for the CPU."""
    is_gpu = device.type == "cuda"
    return torch.cuda.get_device_properties(device).total_memory if is_gpu else None


class _Bench:
    """One model on one device, timed with different settings.

    With a process group, the gradients lie in the buckets of ``DistributedDataParallel``.
    """

    def __init__(self, cell: Cell, device: torch.device, checks: Path) -> None:
        self.cell, self.device = cell, device
        self.gpt = GPT(cell).to(device)
        compiled = device.type == "cuda"
        size = self._start().micro_batch
        gate.pass_or_fall_back(checks, self.gpt, size, device, compiled)
        if compiled:
            self.gpt.compile_blocks()
        self.shared = distributed.is_initialized()
        self.loss: nn.Module = parallel.Loss(self.gpt)
        self.adamw = optimizer.build(self.gpt, cell)
        self.tunable = self.gpt.tunable(device.type)
        self.trials: list[Trial] = []

    def best(self) -> Calibration:
        """Try the settings one after another and return the fastest."""
        sizes = [d for d in range(1, estimate.sequences(self.cell) + 1) if not self._too_long(d)]
        start = self._start()
        choice = self._choose(start.micro_batch, start.recompute)
        fastest = self._grow(sizes, recompute=False, choice=choice)
        if fastest is None:
            fastest = self._grow(sizes, recompute=True, choice=choice)
        if fastest is None:
            raise UserError(self._refusal())
        return self._conclude(fastest)

    def _start(self) -> estimate.Layout:
        """The plan's guess, or the smallest layout if not even that should fit."""
        guess = estimate.guess(self.cell, self.gpt.params_total, memory_bytes(self.device))
        return guess or estimate.SMALLEST

    def _refusal(self) -> str:
        """Why there is no calibration."""
        device = environment.device_name(self.cell.gpus)
        failed = [trial for trial in self.trials if trial.error and not trial.lacks_memory]
        reasons = {trial.error: trial for trial in failed}
        if not reasons:
            return (
                f"cell {self.cell.name}: not even one sequence with recomputed blocks fits into "
                f"the memory of {device}; write a smaller context or size, or skip the cell"
            )
        named = (f"{_settings(trial)}: {error}" for error, trial in reasons.items())
        failed_all = f"cell {self.cell.name}: every trial failed on {device}: {'; '.join(named)}"
        return f"{failed_all}; mend its attention, then run snakemake again"

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
            if trial.lacks_memory or slower == 2:
                break
            if not trial.seconds:
                continue
            seconds = _seconds_per_sequence(trial)
            if fastest is None or seconds < _seconds_per_sequence(fastest) * (1 - GAIN):
                fastest, slower = trial, 0
            else:
                slower += 1
        return fastest

    def _try(self, size: int, recompute: bool, choice: dict[str, int | str]) -> Trial:
        self._prepare(recompute, choice)
        seconds, error, lacks_memory = [], None, False
        try:
            seconds = self._time(
                lambda: self._accumulate(size), warm_up=lambda: self._whole_update(size)
            )
        except Exception as failure:
            lacks_memory = faults.out_of_memory(failure)
            if not lacks_memory and not faults.is_result(failure, self.device):
                raise
            error = faults.first_line(failure)
        peak = self._peak_bytes()
        if seconds and (excess := self._excess(peak)):
            seconds, error, lacks_memory = [], excess, True
        trial = Trial(
            micro_batch=size,
            recompute=recompute,
            choice=choice,
            repeats=len(seconds),
            seconds=_spread(seconds) if seconds else None,
            error=error,
            lacks_memory=lacks_memory,
            peak_memory_bytes=peak,
        )
        self.trials.append(trial)
        return trial

    def _prepare(self, recompute: bool, choice: dict[str, int | str]) -> None:
        """Apply settings, and forget what an earlier trial may have left half done."""
        self.gpt.tune(choice)
        self.gpt.recompute = recompute
        if self.device.type == "cuda":
            # Each shape is compiled separately; the graphs of earlier shapes would count against
            # the limit of recompilations.
            torch.compiler.reset()
        self.loss = parallel.Loss(self.gpt)
        parallel.clear_gradients(self.gpt, shared=False)
        if self.shared or (self.trials and self.trials[-1].error):
            gc.collect()  # reducers and the errors of compilers hold tensors in cycles
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        if self.shared:  # buckets of a backward pass that failed accept no other
            self.loss = parallel.shared_loss(self.gpt)

    def _peak_bytes(self) -> int | None:
        """Peak of this trial; None on the CPU.

        Allocated memory, not reserved: PyTorch returns what it only keeps before it fails.
        """
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else None

    def _excess(self, peak: int | None) -> str:
        """Why a peak is too high for a long run; empty if it is not."""
        total = memory_bytes(self.device)
        if peak is None or total is None or peak <= estimate.FILL * total:
            return ""
        return (
            f"a peak of {peak / 1e9:.1f} GB is above {estimate.FILL:.0%} of the device's "
            f"{total / 1e9:.1f} GB"
        )

    def _time(
        self, work: Callable[[], None], warm_up: Callable[[], None] | None = None
    ) -> list[float]:
        """Seconds of each repeat of ``work``, until the device has finished."""
        for _ in range(WARM_UP):
            (warm_up or work)()
        seconds: list[float] = []
        least, most = REPEATS
        while len(seconds) < least or (sum(seconds) < TRIAL_SECONDS and len(seconds) < most):
            self._wait()
            before = time.perf_counter()
            work()
            self._wait()
            seconds.append(time.perf_counter() - before)
        return seconds

    def _accumulate(self, size: int) -> None:
        """A micro-batch that is not the last of its update."""
        with parallel.accumulating(self.loss):
            self._forward_backward(size)

    def _whole_update(self, size: int) -> None:
        self._forward_backward(size)
        self._update()
        parallel.clear_gradients(self.gpt, self.shared)

    def _forward_backward(self, size: int) -> None:
        x_BT, y_BT = self._tokens(size)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bool(self.cell.gpus)):
            loss = self.loss(x_BT, y_BT)
        loss.backward()

    def _update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.gpt.parameters(), self.cell.optimizer.clip_norm)
        self.adamw.step()

    def _tokens(self, size: int) -> tuple[Tensor, Tensor]:
        shape = (2, size, self.cell.context)
        end_of_text = self.cell.model.vocab_size - 1
        if not self.cell.is_masked:
            x_BT, y_BT = torch.randint(end_of_text + 1, shape, device=self.device)
            return x_BT, y_BT
        x_BT, y_BT = torch.randint(end_of_text, shape, device=self.device)
        begins_BT = torch.rand(x_BT.shape, device=self.device) < 1 / estimate.DOCUMENT_TOKENS
        return x_BT.masked_fill(begins_BT, end_of_text), y_BT

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _conclude(self, best: Trial) -> Calibration:
        """The calibration with the fastest settings, and the time of one update with them."""
        self._prepare(best.recompute, best.choice)
        self._forward_backward(best.micro_batch)
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
            code=code.present(self.cell),
            update_seconds=median,
            update_seconds_range=(least, most),
            peak_memory_bytes=best.peak_memory_bytes,
            trials=self.trials,
        )


def _seconds_per_sequence(trial: Trial) -> float:
    """The median."""
    assert trial.seconds
    return trial.seconds[1] / trial.micro_batch


def _settings(trial: Trial) -> str:
    """The settings of a trial in words."""
    values = {"micro_batch": trial.micro_batch, **trial.choice}
    ways = [f"{name} {value}" for name, value in values.items()]
    return ", ".join([*ways, *(["recomputed blocks"] if trial.recompute else [])])


def _spread(seconds: list[float]) -> tuple[float, float, float]:
    """Minimum, median and maximum."""
    return min(seconds), statistics.median(seconds), max(seconds)
