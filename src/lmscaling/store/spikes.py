"""Spikes of the training loss: counted, never clipped.

A spike is an update whose loss is more than 7 robust standard deviations (1.4826 x the median
absolute deviation, MAD), and more than 0.05 nats, above the median of the 128 updates before it.
This is the spike score of OLMo 2 (arXiv:2501.00656: 7 standard deviations from the mean of the last
1,000 values) with a median, so that one spike does not hide the next, and a short window, which a
falling loss does not widen. An update with fewer than 32 updates before it is never a spike.

Where at least three other runs have read the same tokens in the same update, the same is asked of
differences from them and not of losses: text that is hard for every run is no spike of one. Nor is
text that is easy for the others alone: a loss below the median of the run's own 128 is no spike.
With three, the median of the others ignores any single one: neither a spike of another run nor its
recovery is taken for one of this run.
"""

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, Series

from lmscaling.config.grid import Grid
from lmscaling.fits.final_loss import LEAST, SIGMAS

WINDOW = 128
FEWEST = 32
CALM = 8
"""Updates in a row that end an upset; a single low one may be chance."""

FEWEST_OTHERS = 3
"""Other runs with a loss at the same update."""

BEFORE = 127
"""Losses whose median is the level of a run, so that runs of different sizes can be compared."""

PARTS = 20
"""Twentieths of a run, as in ``runs.sql`` for validations."""

CHUNK = 1 << 20
"""Losses compared at once."""


def fill(db: duckdb.DuckDBPyConnection, laid_out: Grid | None) -> None:
    """Fill ``spikes``, and ``compared`` with the number of updates that were judged by differences
    and the rise of the loss.

    Losses that are not finite have no height, and a view counts them.
    """
    db.execute(files("lmscaling.store").joinpath("spikes.sql").read_text())
    for trunks in _texts(db, laid_out):
        found, compared = [], []
        losses = _losses(db, list(trunks))
        apart = differences(losses, trunks)
        for run, series in losses.items():
            loss = series.to_numpy()
            at, heights, n = judge(loss, apart[run])
            columns = (series.index[at], loss[at], heights, recoveries(loss, at))
            found += [(run, *row) for row in zip(*columns, strict=True)]
            compared.append((run, n, rise(loss)))
        for table, rows in (("spikes", found), ("compared", compared)):
            db.from_df(DataFrame(rows, columns=db.table(table).columns)).insert_into(table)


def find(loss: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices and heights above the median of the spikes in the losses of one run, in order.

    Cost: 20,000 updates take 10 ms of one core.
    """
    middle = _level(loss)
    high = np.flatnonzero(loss - middle > LEAST)
    height = loss[high] - middle[high]
    padded = np.concatenate([np.full(WINDOW, np.nan), loss])
    before = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[high]
    mad = np.nanmedian(np.abs(before - middle[high, None]), axis=1)
    is_spike = height > SIGMAS * mad
    return high[is_spike], height[is_spike]


def _level(loss: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each loss the median of those before; NaN of the first ``FEWEST``."""
    return Series(loss).rolling(WINDOW, min_periods=FEWEST).median().shift().to_numpy()


def judge(
    loss: NDArray[np.float64], difference: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """Indices and heights of the spikes of one run, and how many losses were judged by differences.

    Args:
        loss: The losses that are known and finite.
        difference: Of each loss that of ``differences``. Where it is NaN a loss is judged by
            itself.
    """
    compared = np.isfinite(difference)
    place = np.flatnonzero(compared)
    compared[place[:FEWEST]] = False
    itself = np.flatnonzero(~compared)
    indices, heights = find(loss[: itself[-1] + 1] if len(itself) else loss[:0])
    alone = ~compared[indices]
    found, above = find(difference[place])
    is_high = (loss > _level(loss))[place[found]]
    found, above = found[is_high], above[is_high]
    indices = np.concatenate([indices[alone], place[found]])
    order = np.argsort(indices)
    return indices[order], np.concatenate([heights[alone], above])[order], int(compared.sum())


def differences(
    losses: Mapping[str, Series], trunks: Mapping[str, str]
) -> dict[str, NDArray[np.float64]]:
    """Of each loss its excess less the median excess of the others; NaN where that is not known.

    The excess is the height above the median of the 127 losses before. The others are the trunks
    but the run's own, whose weights a branch shares.

    Args:
        losses: By run the known losses of runs on the same text, by update.
        trunks: By run its trunk, which may be missing in ``losses``; of a trunk the run itself.

    Cost: 20 million losses take 10 seconds of one core, and three arrays of their size.
    """
    if sum(trunks[run] == run for run in losses) < FEWEST_OTHERS:
        return {run: np.full(len(loss), np.nan) for run, loss in losses.items()}
    table = DataFrame({run: _excess(loss) for run, loss in losses.items()})
    excess = table.to_numpy(copy=True)
    own = table.columns.get_indexer([trunks[run] for run in table])
    is_trunk = own == np.arange(len(own))
    width = max(1, CHUNK // len(own))
    for start in range(0, len(excess), width):
        part = excess[start : start + width]
        left_out = np.where(own >= 0, part[:, own], np.nan)
        part -= _median_without(np.sort(part[:, is_trunk], axis=1), left_out)
    return {
        run: excess[table.index.get_indexer(loss.index), column]
        for column, (run, loss) in enumerate(losses.items())
    }


def _excess(loss: Series) -> Series:
    """By update the loss less the median of those before; a missing one counts as that before."""
    if loss.empty:
        return loss
    known = loss.reindex(range(loss.index[0], loss.index[-1] + 1)).ffill()
    return loss - known.rolling(BEFORE).median().shift()


def _median_without(
    order: NDArray[np.float64], left_out: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Medians of each row without one of its values; NaN if fewer than ``FEWEST_OTHERS`` are left.

    Args:
        order: ``[updates, values]``, each row sorted, NaN last.
        left_out: ``[updates, runs]``: the value that does not count; NaN if all do.

    Returns:
        ``[updates, runs]``.
    """
    left = np.isfinite(order).sum(axis=1, keepdims=True) - np.isfinite(left_out)

    def at(rank: NDArray[np.int64]) -> NDArray[np.float64]:
        rank = np.clip(rank, 0, order.shape[1] - 2)
        is_before = left_out <= np.take_along_axis(order, rank, axis=1)
        return np.take_along_axis(order, rank + is_before, axis=1)

    return np.where(left >= FEWEST_OTHERS, (at((left - 1) // 2) + at(left // 2)) / 2, np.nan)


def recoveries(loss: NDArray[np.float64], spikes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of the first spike of each upset the updates until it was over; NaN of later spikes.

    Recovery is judged by the losses of the run itself. An upset is over with the first of 8 updates
    in a row that are no spikes above the median before the upset; later medians would include the
    upset itself. Spikes until then belong to it. The number is infinite if the run ends first.
    """
    lasted = np.full(len(spikes), np.nan)
    over = -1.0
    for place, i in enumerate(spikes.tolist()):
        if i < over:
            continue
        before = loss[max(0, i - WINDOW) : i]
        middle = np.nanmedian(before)
        band = max(LEAST, SIGMAS * np.nanmedian(np.abs(before - middle)))
        lasted[place] = 1 + _first_calm(loss[i + 1 :] - middle <= band)
        over = i + lasted[place]
    return lasted


def _first_calm(calm: NDArray[np.bool_]) -> float:
    """Start of the first ``CALM`` true values in a row."""
    rows = np.convolve(calm, np.ones(CALM), "valid") == CALM if len(calm) >= CALM else calm[:0]
    return float(rows.argmax()) if rows.any() else np.inf


def rise(loss: NDArray[np.float64]) -> float | None:
    """Nats of the median of the last twentieth of a run above the lowest such median; None of fewer
    than 20 losses."""
    size = len(loss) // PARTS
    if not size:
        return None
    medians = np.median(loss[len(loss) - PARTS * size :].reshape(PARTS, size), axis=1)
    return float(medians[-1] - medians.min())


def _texts(db: duckdb.DuckDBPyConnection, laid_out: Grid | None) -> Iterable[dict[str, str]]:
    """Runs that read the same tokens in the same update, each with its trunk.

    The text of a run that left the study is unknown: it is alone.
    """
    cells = laid_out.cells | laid_out.branches | laid_out.tasks if laid_out else {}
    texts: dict[Any, dict[str, str]] = {}
    for (run,) in db.sql("SELECT DISTINCT run FROM updates ORDER BY run").fetchall():
        text, trunk = run, run
        if cell := cells.get(run):
            seed = cell.seed if cell.block_tokens else None  # only then it draws their order
            text = (cell.data.folder, cell.update_tokens, cell.epochs, cell.block_tokens, seed)
            trunk = cell.trunk
        texts.setdefault(text, {})[run] = trunk
    return texts.values()


def _losses(db: duckdb.DuckDBPyConnection, runs: list[str]) -> dict[str, Series]:
    """The surviving finite losses of some runs, whose names are in order, by update."""
    known = """
        FROM updates
        WHERE surviving AND isfinite(train_loss) AND run IN (SELECT unnest(?))
    """
    counts = dict(db.execute(f"SELECT run, count(*) {known} GROUP BY run", [runs]).fetchall())
    ends = np.cumsum([counts.get(run, 0) for run in runs])[:-1]
    query = f"SELECT update::INTEGER AS update, train_loss {known} ORDER BY run, update"
    columns = db.execute(query, [runs]).fetchnumpy()
    updates, losses = (
        np.split(np.asarray(columns[name]), ends) for name in ("update", "train_loss")
    )
    return {
        run: Series(loss, index=update)
        for run, loss, update in zip(runs, losses, updates, strict=True)
    }
