"""The scoreboard: what an attention reaches at a size, against the baseline."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import fmean, median

from lmscaling.fits.rows import Row
from lmscaling.report import words
from lmscaling.report.contest import AXES, SIDES, Contest
from lmscaling.report.timing import KINDS, Timings

FAILED = ("diverged", "exploded")

Scored = dict[str, tuple[str, float | None]]
"""Texts of the scoreboard by column, and the numbers by which they are sorted."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A row of the scoreboard."""

    attention: str
    size: str
    cells: tuple[tuple[str, float | None], ...]


HEADS = {
    "loss": ("best loss", "nats per token"),
    "context": ("at context", "tokens"),
    "gap": ("gap to {}", "nats, over contexts"),
    "ahead": ("won", "comparisons"),
    "undecided": ("not significant", "comparisons"),
    "behind": ("lost", "comparisons"),
    "needs": ("{} needs", "times the {}, median"),
    "time_step": ("step", "times as fast, longest"),
    "time_decode": ("decoding", "times as fast, longest"),
    "spikes": ("spikes", "per 10,000 steps"),
    "failed": ("failed", "runs"),
}
"""Heads of the scoreboard with their units; braces hold the baseline, and the axis."""


def of(
    contest: Contest, cells: list[Row], timings: Timings
) -> tuple[tuple[tuple[str, str], ...], tuple[Score, ...]]:
    """One row for each attention and size that has a finished run; columns without any value are
    left out."""
    rows = []
    for size in contest.sizes:
        for name in (contest.baseline, *contest.candidates):
            own = [r for r in cells if r["size"] == size and r["attention"] == name]
            if any(row["status"] == "done" for row in own):
                rows.append((name, size, _runs(own) | _compared(contest, name, size, timings)))
    kept = [column for column in HEADS if any(column in found for *_, found in rows)]
    head = ((what.format(contest.baseline), unit.format(AXES[contest.axis]))
            for what, unit in (HEADS[column] for column in kept))  # fmt: skip
    return tuple(head), tuple(
        Score(attention=name, size=size, cells=tuple(found.get(c, ("", None)) for c in kept))
        for name, size, found in rows
    )


def _runs(rows: list[Row]) -> Scored:
    """The lowest mean loss of a context, spikes, and runs that have failed."""
    known: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row["loss"] is not None and row["is_final"]:
            known[row["context"]].append(row["loss"])
    found: Scored = {}
    if known:
        loss, context = min((fmean(losses), context) for context, losses in known.items())
        found["loss"] = f"{loss:.3f}", loss
        found["context"] = words.format_context(context), context
    updates = sum(row["updates"] or 0 for row in rows if row["spikes"] is not None)
    if updates:
        rate = sum(row["spikes"] or 0 for row in rows) / updates
        found["spikes"] = f"{1e4 * rate:.2g}", rate
    if failed := sum(row["status"] in FAILED for row in rows):
        found["failed"] = str(failed), failed
    return found


def _compared(contest: Contest, name: str, size: str, timings: Timings) -> Scored:
    """Gaps, verdicts and times of a candidate at a size."""
    found: Scored = {"gap": ("baseline", None)} if name == contest.baseline else {}
    own = contest.edges[contest.axis].get(name, {})
    if edges := [edge for cell, edge in own.items() if cell[0] == size]:
        tally = Counter(edge.side for edge in edges)
        found["gap"] = words.span(edges), median(edge.gap for edge in edges)
        found |= {side: (str(tally[side]), tally[side]) for side in SIDES}
    if ratios := [ratio for cell, ratio in contest.ratios(name).items() if cell[0] == size]:
        found["needs"] = words.times([median(ratios)]), median(ratios)
    for kind in KINDS:
        timed = timings.get((kind, name))
        if at := {c: r.value for (s, c), r in timed.ratios.items() if s == size} if timed else {}:
            context, ratio = max(at.items())
            found[kind] = f"{words.times([ratio])} at {words.format_context(context)}", ratio
    return found
