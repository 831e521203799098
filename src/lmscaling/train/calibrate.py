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
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lmscaling.bench import clock
from lmscaling.bench.checks import gate, variant
from lmscaling.bench.memory import Memory
from lmscaling.config import code
from lmscaling.config.calibration import Calibration, Trial
from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_record
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
from lmscaling.plan import estimate, footprint
from lmscaling.runtime import environment, faults, gpus
from lmscaling.train.settings import device_of, guessed, made, memory_bytes, too_large
from lmscaling.types import dump

REPEATS = (50, 5)
"""Maximum and minimum number of repeats of a trial."""
TRIAL_SECONDS = 0.5
"""A trial is repeated for about this long."""
GAIN = 0.01
"""A larger micro-batch must be faster by this share; otherwise the smaller one saves memory."""
MOST_TOKENS = 2**17
"""Tokens of the largest micro-batch that is tried."""


def check(cell_path: Path, out: Path) -> None:
    """Check the attention and the kernels of a cell on this machine's device.

    What is found is added to ``checks/<name>.json``.

    Raises:
        UserError: The cell file is not valid, the machine lacks a GPU, or what is checked is wrong.
    """
    cell = checked(Cell, read_json(cell_path, "cell file"), str(cell_path))
    with _on_device(cell, out) as device:
        way = guessed(cell)
        with torch.device("meta"):
            model = GPT(cell)
        gate.require(out, model, way.micro_batch, device, way.compiled)


def calibrate(cell_path: Path, out: Path) -> Calibration:
    """Measure a cell on this machine's device and write ``calibration.json``, if there is none.

    Raises:
        UserError: As of ``check`` and ``measured``.
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

    Raises:
        UserError: A kernel fails its check, not even one sequence fits into memory, or every trial
            failed.
    """
    gpt, compiled = GPT(cell).to(device), device.type == "cuda"
    start = footprint.guess(cell, gpt.params_total, memory_bytes(device)) or footprint.SMALLEST
    gate.require(checks, gpt, start.micro_batch, device, compiled)
    if compiled:
        gpt.compile_blocks()
    adamw, trials = optimizer.build(gpt, cell), list[Trial]()

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), cell.optimizer.clip_norm)
        adamw.step()

    def attempt(size: int, recompute: bool, choice: dict[str, int | str]) -> Trial:
        gpt.tune(choice)
        gpt.recompute = recompute
        outcome = _outcome(cell, gpt, update, size)
        trials.append(Trial(micro_batch=size, recompute=recompute, choice=choice, **outcome))
        return trials[-1]

    tunable, size, recompute = gpt.tunable(device.type), start.micro_batch, start.recompute
    choice = {name: values[0] for name, values in tunable.items()}
    for name, values in tunable.items():  # one option after the other
        tried = [attempt(size, recompute, choice | {name: value}) for value in values]
        choice = min(tried, key=_seconds_per_sequence).choice
    whole, recomputed = (partial(attempt, recompute=r, choice=choice) for r in (False, True))
    fastest = _fastest(cell, whole) or _fastest(cell, recomputed)
    if fastest is None:
        raise _refusal(cell, trials)
    for p in gpt.parameters():
        p.grad = torch.ones_like(p)  # that of the last trial may be half done
    n, once = footprint.sequences(cell) // fastest.micro_batch, _timed(update, Memory(device))
    pairs = zip(fastest.seconds or (), once["seconds"], strict=True)
    least, median, most = (n * each + last for each, last in pairs)
    times = {"update_seconds": median, "update_seconds_range": (least, most)}
    names = "micro_batch", "recompute", "choice", "peak_memory_bytes"
    best = {name: getattr(fastest, name) for name in names}
    return made(cell, measured=True, code=code.present(cell), trials=trials, **times, **best)


def peak_bytes(device: torch.device) -> int | None:
    """Peak of allocated memory; None on the CPU. What PyTorch reserves beside it, it returns."""
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else None


def _fastest(cell: Cell, attempt: Callable[[int], Trial]) -> Trial | None:
    """The fastest of growing micro-batches, until two in a row are no faster or memory is
    exhausted; None if none works."""
    sequences = footprint.sequences(cell)
    most = max(1, min(sequences, MOST_TOKENS // cell.context))
    fastest, slower = None, 0
    for size in filter(lambda size: sequences % size == 0, range(1, most + 1)):
        trial = attempt(size)
        if _seconds_per_sequence(trial) < (1 - GAIN) * _seconds_per_sequence(fastest):
            fastest, slower = trial, 0
        elif trial.seconds:
            slower += 1
        if trial.lacks_memory or slower == 2:
            break
    return fastest


def _outcome(cell: Cell, gpt: GPT, update: Callable[[], None], size: int) -> dict[str, Any]:
    """Time micro-batches whose gradients are added to those that are there, after an update;
    returns further fields of a trial."""
    device = gpt.wte.weight.device
    gpt.zero_grad()
    if device.type == "cuda":
        torch.compiler.reset()  # graphs of earlier shapes count against a limit
        torch.cuda.empty_cache()
    memory = Memory(device)
    try:
        _forward_backward(cell, gpt, size)
        update()
        done = _timed(lambda: _forward_backward(cell, gpt, size), memory)
        peak, total = peak_bytes(device), memory_bytes(device)
        if peak and total and peak > footprint.FILL * total:
            full = f"{footprint.FILL:.0%} of the device's {total / 1e9:.1f} GB"
            raise torch.OutOfMemoryError(f"a peak of {peak / 1e9:.1f} GB is above {full}")
    except Exception as failure:
        lacks_memory, error = faults.out_of_memory(failure), faults.first_line(failure)
        if not lacks_memory and not faults.is_result(failure, device):
            raise
        done = {"repeats": 0, "seconds": None, "error": error, "lacks_memory": lacks_memory}
    done["peak_memory_bytes"] = peak_bytes(device)
    if "error" in done:
        gc.collect()  # the errors of compilers hold tensors in cycles
    return done


def _timed(work: Callable[[], None], memory: Memory) -> dict[str, Any]:
    """``repeats`` and ``seconds`` as in a trial."""
    times = clock.launched(work, memory, TRIAL_SECONDS, *REPEATS, on_wall=True).seconds
    return {"repeats": len(times), "seconds": (times[0], statistics.median(times), times[-1])}


def _forward_backward(cell: Cell, gpt: GPT, size: int) -> None:
    device, n_tokens = gpt.wte.weight.device, cell.model.vocab_size - cell.is_masked
    x_BT, y_BT = torch.randint(n_tokens, (2, size, cell.context), device=device)
    if cell.is_masked:
        begins_BT = torch.rand(x_BT.shape, device=device) < 1 / estimate.DOCUMENT_TOKENS
        x_BT = x_BT.masked_fill(begins_BT, n_tokens)  # the end of a text
    with torch.autocast(device.type, torch.bfloat16, enabled=bool(cell.gpus)):
        loss = gpt.loss(x_BT, y_BT)
    loss.backward()


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
        "correct its attention, then run snakemake again"
    )


def _seconds_per_sequence(trial: Trial | None) -> float:
    """The median; infinite if there is none."""
    return trial.seconds[1] / trial.micro_batch if trial and trial.seconds else float("inf")
