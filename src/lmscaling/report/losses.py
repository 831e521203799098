"""Final losses of all cells with what their seeds say of them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from lmscaling.fits import final_loss
from lmscaling.fits.noise import Noise, Place
from lmscaling.fits.rows import Row, number


def rows(of_runs: Iterable[Row]) -> Iterator[Row]:
    """The means over the seeds of each cell, and how much they vary."""
    cells: dict[tuple, list[Row]] = defaultdict(list)
    for row in of_runs:
        cells[row["source"], row["attention"], row["size"], row["context"]].append(row)
    ends = {
        name: {key: _finite(value, runs) for key, runs in cells.items()}
        for name, value in (("validation", _validation), ("training", _training))
    }
    noise = {name: _noise(losses, cells) for name, losses in ends.items()}
    for key, runs in cells.items():
        first, done = runs[0], [run for run in runs if run["status"] == "done"]
        bits = _finite(lambda run: run["bits_per_byte"], runs)
        row = first | {"counts": f"{len(done)} / {first['started']}", "sd": ""}
        row |= {"bits": np.mean(list(bits.values())) if bits else None, "remarks": _remarks(runs)}
        for name, losses in ends.items():
            known = losses[key]
            mean = float(np.mean(list(known.values()))) if known else None
            spread = noise[name].at(key) if known and done else None
            row |= number(name, mean, spread and spread.interval(mean or 0.0))
            row[f"{name}_assumed"] = spread and spread.assumed
            row["sd"] = row["sd"] or (spread and f"{spread.sd:.2g}, {spread.said}") or ""
        yield row


def _remarks(runs: list[Row]) -> str:
    failed = runs[0]["failed"]
    states = {(run["status"] or "no loss").replace("_", " ") for run in runs} - {"done"}
    fits = {final_loss.mean(run["last_losses"] or []).status for run in runs}
    return ", ".join([
        *([f"{failed} failed"] if failed else []),
        *sorted(states - {"no loss"} if failed else states),
        *sorted(fits & {"unsettled", "spiking"}),
    ])  # fmt: skip


def _finite(value: Callable[[Row], float | None], runs: list[Row]) -> dict[int, float]:
    """By seed the losses of runs that are done, or of all if none is, without missing ones."""
    done = [run for run in runs if run["status"] == "done"]
    losses = {run["seed"]: value(run) for run in done or runs}
    return {s: loss for s, loss in losses.items() if loss is not None and np.isfinite(loss)}


def _validation(run: Row) -> float | None:
    return run["val_loss"]


def _training(run: Row) -> float | None:
    fit = final_loss.mean(run["last_losses"] or [])
    return (run["loss"] if run["split"] == "train" else None) if fit.loss is None else fit.loss


def _noise(losses: dict[tuple, dict[int, float]], cells: dict[tuple, list[Row]]) -> Noise:
    """The noise of the losses of runs that are done."""
    samples = {
        key: known
        for key, known in losses.items()
        if known and any(run["status"] == "done" for run in cells[key])
    }
    places = {key: Place(cells[key][0]["params"], key[3], key[1]) for key in samples}
    return Noise.measure(samples, places)
