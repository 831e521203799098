"""Tables that compare every two attentions: gaps of final losses, multipliers and crossings."""

from collections.abc import Iterable

import duckdb

from lmscaling.fits import crossing, gaps, multiplier
from lmscaling.fits.gaps import Gap
from lmscaling.fits.multiplier import Pair
from lmscaling.fits.noise import holm
from lmscaling.fits.uncertainty import LEVEL
from lmscaling.formatting import short
from lmscaling.report.table import Table, format_context, format_number, with_interval

AXES = {"updates": "updates", "flops": "FLOPs", "hours": "hours"}
PAIRED = (
    "Runs of the same seed are paired: they share data and order. Brackets contain 95 % intervals "
    "(98 to 99 % if all cells scatter alike) from the scatter of paired gaps between seeds. Where "
    "it was not measured near enough, they contain the range that an assumed scatter of the gap "
    "gives, which is no confidence interval."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Gaps of final losses, compute multipliers and crossings of the losses."""
    pairs = multiplier.compare(db.sql(multiplier.QUERY).fetchall())
    found = gaps.compare(db.sql(gaps.QUERY).fetchall())
    return [loss_gaps(found), multipliers(pairs), crossings(pairs)]


def loss_gaps(found: Iterable[Gap]) -> Table:
    """The gap of each pair, mean gaps over cells first."""
    rows = []
    for gap in found:
        context = "" if gap.context is None else format_context(gap.context)
        size = f"mean of {gap.cells} cells" if gap.size is None else gap.size
        sd = "" if gap.spread is None else f"{gap.spread.sd:.2g}, {gap.spread.said}"
        p = "" if gap.p != gap.p else f"{gap.p:.2g}"
        needed = "" if gap.needed is None else f"{gap.needed:,}"
        loss = with_interval(gap.gap, gap.interval, "{:+.4f}".format)
        rows.append((gap.attention, gap.reference, size, context, gap.source, str(gap.seeds), loss,
                     p, gaps.STATUSES[gap.status], needed, sd))  # fmt: skip
    return Table(
        name="loss_gaps",
        section="learning",
        title="Gaps of final losses",
        note="Final loss of the attention minus that of the reference; below 0 the attention is "
        f"better. {PAIRED} The mean over cells has an interval if all cells have two seeds in "
        "common. p is corrected for the number of tests of a source in this table (Holm): "
        "attentions that do not differ are all called not different in 95 % of studies. Seeds to "
        "decide would find a gap of this size with a probability of 80 %.",
        query=gaps.QUERY,
        head=("attention", "reference", "size", "context (tokens)", "source", "pairs (seeds)",
              "gap (nats per token)", "p", "status", "seeds to decide",
              "sd of a pair (nats)"),
        rows=tuple(rows),
        text=frozenset({0, 1, 2, 4, 8, 10}),
    )  # fmt: skip


def multipliers(pairs: Iterable[Pair]) -> Table:
    """Compute multipliers at the lowest loss that both curves reach."""
    rows = []
    for pair in pairs:
        head = _head(pair)
        status = multiplier.STATUSES[pair.result.status]
        if not pair.result.levels:
            rows.append((*head, *[""] * 5, status, ""))
            continue
        last = pair.result.levels[-1]
        ratio = {
            axis: with_interval(getattr(last, axis), last.intervals[axis])
            for axis in multiplier.AXES
        }
        flops = ratio["flops"] if "flops" in pair.axes else ""
        numbers = (ratio["updates"], f"{last.speed:.3g}", ratio["hours"], flops)
        sd = f"{last.spread.sd:.2g}, {last.spread.said}"
        rows.append((*head, f"{last.loss:.3f}", *numbers, status, sd))
    return Table(
        name="multipliers",
        section="laws",
        title="Compute multipliers",
        note="Spent by the reference divided by spent by the attention when both reach the given "
        "loss, the lowest of the compared ones; above 1 the attention is the better one. The "
        "multiplier in hours is that in updates times the speed, the ratio of the times of an "
        f"update. {PAIRED} An end is open if the reference does not reach a loss that noise "
        "allows.",
        query=multiplier.QUERY,
        head=("attention", "reference", "size", "context (tokens)", "source", "at loss (nats)",
              "updates (ratio)", "x speed (ratio)", "= hours (ratio)", "FLOPs (ratio)",
              "status", "sd of a paired gap (nats)"),
        rows=tuple(rows),
        text=frozenset({0, 1, 2, 4, 10, 11}),
    )  # fmt: skip


def crossings(pairs: Iterable[Pair]) -> Table:
    """The last crossing of each pair of loss curves."""
    shown = [
        (pair, axis, pair.result.crossings[axis])
        for pair in pairs
        for axis in pair.axes
        if axis in pair.result.crossings
    ]
    corrected = holm([float("nan") if one.p is None else one.p for *_, one in shown]).tolist()
    rows = []
    for (pair, axis, result), p in zip(shown, corrected, strict=True):
        form = short if axis == "updates" else format_number
        names = {"other": pair.attention, "reference": pair.reference, None: ""}
        observed = "" if result.observed is None else " to ".join(map(form, result.observed))
        last = result.points[-1] if result.points else None
        at = "" if last is None else with_interval(last.at, last.interval, form)
        status = crossing.STATUSES[result.status]
        if len(result.points) > 1:
            status += f" {len(result.points)} times"
        if result.status == "crossed" and not p < 1 - LEVEL:
            reason = "too few seeds" if result.p is None else "corrected for all rows, not sure"
            status += f" ({reason})"
        is_tested = "" if p != p else f"{p:.2g}"
        rows.append(
            (*_head(pair), AXES[axis], at, names[result.ahead], observed, is_tested, status)
        )
    return Table(
        name="loss_crossings",
        section="laws",
        title="Crossings of the loss curves",
        note="The last crossing of the losses of two runs at equal updates, FLOPs or hours. "
        f"{PAIRED} Brackets of crossings are conservative and cover 98 to nearly 100 %. p tests "
        "that the gap has one sign throughout, corrected for the number of rows (Holm). The curves "
        "may cross outside the observed range.",
        query=multiplier.QUERY,
        head=("attention", "reference", "size", "context (tokens)", "source", "axis",
              "last crossing",
              "lower loss at the end", "observed range", "p", "status"),
        rows=tuple(rows),
        text=frozenset({0, 1, 2, 4, 5, 7, 10}),
    )  # fmt: skip


def _head(pair: Pair) -> tuple[str, ...]:
    context = format_context(pair.context)
    return pair.attention, pair.reference, pair.size, context, pair.source
