"""Tables that compare the loss curves of every two attentions."""

from collections.abc import Iterable

import duckdb

from lmscaling.figures.shared.law_panels import COUNT
from lmscaling.fits import crossing, multiplier
from lmscaling.fits.multiplier import Pair
from lmscaling.formatting import short
from lmscaling.report.laws import INTERVALS
from lmscaling.report.table import Table, format_context, format_number, with_interval

AXES = {"updates": "updates", "flops": "FLOPs", "hours": "hours"}


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Compute multipliers and crossings of the losses."""
    pairs = multiplier.compare(db.sql(multiplier.QUERY).fetchall(), COUNT)
    return [multipliers(pairs), crossings(pairs)]


def multipliers(pairs: Iterable[Pair]) -> Table:
    """Compute multipliers at the lowest loss that both curves reach."""
    rows = []
    for pair in pairs:
        head = _head(pair)
        status = multiplier.STATUSES[pair.result.status]
        if not pair.result.levels:
            rows.append((*head, *[""] * 5, status))
            continue
        last = pair.result.levels[-1]
        ratio = {
            axis: with_interval(getattr(last, axis), last.intervals[axis])
            for axis in multiplier.AXES
        }
        flops = ratio["flops"] if "flops" in pair.axes else ""
        numbers = (ratio["updates"], f"{last.speed:.3g}", ratio["hours"], flops)
        rows.append((*head, f"{last.loss:.3f}", *numbers, status))
    return Table(
        name="multipliers",
        section="laws",
        title="Compute multipliers",
        note="Spent by the reference divided by spent by the attention when both reach the given "
        "loss, the lowest that almost all seeds of both reach; above 1 the attention is the better "
        "one. The multiplier in hours is that in updates times the speed, the ratio of the "
        f"times of an update. {INTERVALS}",
        query=multiplier.QUERY,
        head=("attention", "reference", "size", "context (tokens)", "source", "at loss (nats)",
              "updates (ratio)", "x speed (ratio)", "= hours (ratio)", "FLOPs (ratio)", "status"),
        rows=tuple(rows),
        text=frozenset({0, 1, 2, 4, 10}),
    )  # fmt: skip


def crossings(pairs: Iterable[Pair]) -> Table:
    """The last crossing of each pair of loss curves."""
    rows = []
    for pair in pairs:
        for axis in (axis for axis in pair.axes if axis in pair.result.crossings):
            result = pair.result.crossings[axis]
            form = short if axis == "updates" else format_number
            names = {"other": pair.attention, "reference": pair.reference, None: ""}
            observed = "" if result.observed is None else " to ".join(map(form, result.observed))
            last = result.points[-1] if result.points else None
            at = "" if last is None else with_interval(last.at, last.interval, form)
            status = crossing.STATUSES[result.status]
            if len(result.points) > 1:
                status += f" {len(result.points)} times"
            head = _head(pair)
            rows.append((*head, AXES[axis], at, names[result.ahead], observed, status))
    return Table(
        name="loss_crossings",
        section="laws",
        title="Crossings of the loss curves",
        note="The last crossing of the losses of two runs at equal updates, FLOPs or hours. "
        "Brackets contain the nearest points on both sides whose gap exceeds the 95 % noise band "
        "of seeds that differ by 0.002 nats. The curves may cross outside the observed range.",
        query=multiplier.QUERY,
        head=("attention", "reference", "size", "context (tokens)", "source", "axis",
              "last crossing",
              "lower loss at the end", "observed range", "status"),
        rows=tuple(rows),
        text=frozenset({0, 1, 2, 4, 5, 7, 9}),
    )  # fmt: skip


def _head(pair: Pair) -> tuple[str, ...]:
    context = format_context(pair.context)
    return pair.attention, pair.reference, pair.size, context, pair.source
