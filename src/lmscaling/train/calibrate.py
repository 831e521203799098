"""Find the fastest way to train a cell on a device: micro-batch, recomputation, attention options.

Real work (forward, backward, optimizer) is timed on random tokens, in the precision of training, on
one device without communication. The options of the attention are tried first, at the micro-batch
that the plan guesses, then growing micro-batches. Blocks are recomputed only if a single sequence
does not fit otherwise. A trial that raises an error, or that fills more of the device than a plan
may, has failed, and the next one is made. A fault of the machine ends the calibration instead.
"""

import gc
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from lmscaling.bench import clock
from lmscaling.bench.checks import gate, variant
from lmscaling.bench.memory import Memory
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
from lmscaling.train.settings import device_of, guessed, made, memory_bytes, too_large

REPEATS = (50, 5)
"""Maximum and minimum number of repeats of a trial."""
TRIAL_SECONDS = 0.5
"""A trial is repeated for about this long."""
GAIN = 0.01
"""A larger micro-batch must be faster by this share; otherwise the smaller one saves memory."""
MOST_TOKENS = 2**17
"""Tokens of the largest micro-batch that is tried."""


def check(cell_path: Path, out: Path) -> str:
    """Check the attention and the kernels of a cell on this machine's device.

    What is found is added to ``checks/<name>.json``. Returns what had to be replaced, or nothing.

    Raises:
        UserError: The cell file is not valid, the machine lacks a GPU, or the attention is wrong.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    with _on_device(cell, out) as device:
        way = guessed(cell)
        with torch.device("meta"):
            model = GPT(cell)
        return gate.pass_or_fall_back(out, model, way.micro_batch, device, way.compiled)


def calibrate(cell_path: Path, out: Path) -> Calibration:
    """Measure a cell on this machine's device and write ``calibration.json``, if there is none.

    Raises:
        UserError: The cell file is not valid, the machine lacks a GPU, the attention fails its
            check, not even one sequence fits into memory, or every trial failed.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    with suppress(UserError):  # what another job has measured may be in use
        earlier = checked(Calibration, read_json(out, "calibration"), str(out))
        print(f"calibration {out} exists and stays as it is", file=sys.stderr, flush=True)
        return earlier
    with _on_device(cell, out) as device:
        fastest = measured(cell, device, gate.record_beside(out, cell))
    write_record(out, dump(fastest))
    return fastest


@contextmanager
def _on_device(cell: Cell, out: Path) -> Iterator[torch.device]:
    """Reserve one device of a cell, whose attention has passed its check there."""
    with gpus.reserved(min(1, cell.gpus)):
        if cell.gpus and not torch.cuda.is_available():
            raise UserError(
                f"cell {cell.name} trains on GPUs and this machine has none; run it on a machine "
                "with a GPU, or write gpus: 0"
            )
        variant.require(cell, device_of(cell), gate.record_beside(out, cell))
        yield device_of(cell)


def measured(cell: Cell, device: torch.device, checks: Path) -> Calibration:
    """The fastest way to train a cell on one device, as one of its ranks.

    Kernels that fail their check (``checks/<name>.json``) are replaced first, as in training.

    Raises:
        UserError: Not even one sequence fits into memory, or every trial failed.
    """
    bench = _Bench(cell, device, checks)
    choice = bench.choose()
    fastest = bench.grow(False, choice) or bench.grow(True, choice)
    if fastest is None:
        raise _refusal(cell, bench.trials)
    for p in bench.gpt.parameters():
        p.grad = torch.ones_like(p)  # that of the last trial may be half done
    n, update = estimate.sequences(cell) // fastest.micro_batch, bench.timed(bench.update)
    pairs = zip(fastest.seconds or (), update["seconds"], strict=True)
    least, median, most = (n * micro_batch + once for micro_batch, once in pairs)
    return made(
        cell,
        measured=True,
        micro_batch=fastest.micro_batch,
        recompute=fastest.recompute,
        choice=fastest.choice,
        code=code.present(cell),
        update_seconds=median,
        update_seconds_range=(least, most),
        peak_memory_bytes=fastest.peak_memory_bytes,
        trials=bench.trials,
    )


def peak_bytes(device: torch.device) -> int | None:
    """Peak of allocated memory; None on the CPU. What PyTorch reserves beside it, it returns."""
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else None


class _Bench:
    """One model on one device, timed with different settings."""

    def __init__(self, cell: Cell, device: torch.device, checks: Path) -> None:
        self.cell, self.device, self.memory = cell, device, Memory(device)
        self.gpt = GPT(cell).to(device)
        guess = estimate.guess(cell, self.gpt.params_total, memory_bytes(device))
        start, compiled = guess or estimate.SMALLEST, device.type == "cuda"
        self.start = start.micro_batch, start.recompute
        gate.pass_or_fall_back(checks, self.gpt, start.micro_batch, device, compiled)
        if compiled:
            self.gpt.compile_blocks()
        self.adamw = optimizer.build(self.gpt, cell)
        self.trials: list[Trial] = []

    def choose(self) -> dict[str, int | str]:
        """The fastest value of each option of the attention, one option after the other."""
        tunable = self.gpt.tunable(self.device.type)
        choice = {name: values[0] for name, values in tunable.items()}
        for name, values in tunable.items():
            trials = [self._try(*self.start, choice | {name: value}) for value in values]
            choice = min(trials, key=_seconds_per_sequence).choice
        return choice

    def grow(self, recompute: bool, choice: dict[str, int | str]) -> Trial | None:
        """The fastest of growing micro-batches, until two in a row are no faster or memory is
        exhausted; None if none works."""
        sequences = estimate.sequences(self.cell)
        most = max(1, min(sequences, MOST_TOKENS // self.cell.context))
        fastest, slower = None, 0
        for size in filter(lambda size: sequences % size == 0, range(1, most + 1)):
            trial = self._try(size, recompute, choice)
            if _seconds_per_sequence(trial) < (1 - GAIN) * _seconds_per_sequence(fastest):
                fastest, slower = trial, 0
            elif trial.seconds:
                slower += 1
            if trial.lacks_memory or slower == 2:
                break
        return fastest

    def _try(self, size: int, recompute: bool, choice: dict[str, int | str]) -> Trial:
        """Time micro-batches whose gradients are added to those that are there, after an update."""
        self.gpt.tune(choice)
        self.gpt.recompute = recompute
        self.gpt.zero_grad()
        if self.device.type == "cuda":
            torch.compiler.reset()  # graphs of earlier shapes count against a limit
            torch.cuda.empty_cache()
        self.memory.reset()
        try:
            self._forward_backward(size)
            self.update()
            outcome = self.timed(lambda: self._forward_backward(size))
            peak, total = peak_bytes(self.device), memory_bytes(self.device)
            if peak and total and peak > estimate.FILL * total:
                full = f"{estimate.FILL:.0%} of the device's {total / 1e9:.1f} GB"
                raise torch.OutOfMemoryError(f"a peak of {peak / 1e9:.1f} GB is above {full}")
        except Exception as failure:
            lacks_memory, error = faults.out_of_memory(failure), faults.first_line(failure)
            if not lacks_memory and not faults.is_result(failure, self.device):
                raise
            outcome = {"repeats": 0, "seconds": None, "error": error, "lacks_memory": lacks_memory}
        outcome["peak_memory_bytes"] = peak_bytes(self.device)
        self.trials.append(Trial(micro_batch=size, recompute=recompute, choice=choice, **outcome))
        if not outcome["seconds"]:
            gc.collect()  # the errors of compilers hold tensors in cycles
        return self.trials[-1]

    def timed(self, work: Callable[[], None]) -> dict[str, Any]:
        """``repeats`` and ``seconds`` as in a trial."""
        times = clock.launched(work, self.memory, TRIAL_SECONDS, *REPEATS).seconds
        return {"repeats": len(times), "seconds": (times[0], statistics.median(times), times[-1])}

    def _forward_backward(self, size: int) -> None:
        n_tokens = self.cell.model.vocab_size - self.cell.is_masked
        x_BT, y_BT = torch.randint(n_tokens, (2, size, self.cell.context), device=self.device)
        if self.cell.is_masked:
            begins_BT = torch.rand(x_BT.shape, device=self.device) < 1 / estimate.DOCUMENT_TOKENS
            x_BT = x_BT.masked_fill(begins_BT, n_tokens)  # the end of a text
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bool(self.cell.gpus)):
            loss = self.gpt.loss(x_BT, y_BT)
        loss.backward()

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.gpt.parameters(), self.cell.optimizer.clip_norm)
        self.adamw.step()


def _refusal(cell: Cell, trials: list[Trial]) -> UserError:
    """Why there is no calibration."""
    reasons: dict[str, str] = {}
    for t in trials:
        if t.error and not t.lacks_memory:
            ways = [f"{k} {v}" for k, v in (("micro_batch", t.micro_batch), *t.choice.items())]
            reasons[t.error] = ", ".join(ways + ["recomputed blocks"] * t.recompute)
    if not reasons:
        return too_large(cell)
    named = "; ".join(f"{ways}: {error}" for error, ways in reasons.items())
    return UserError(
        f"cell {cell.name}: every trial failed on {environment.device_name(cell.gpus)}: {named}; "
        "mend its attention, then run snakemake again"
    )


def _seconds_per_sequence(trial: Trial | None) -> float:
    """The median; infinite if there is none."""
    return trial.seconds[1] / trial.micro_batch if trial and trial.seconds else float("inf")
