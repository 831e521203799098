"""What follows from a study, as tables: laws of loss with their intervals and in words.

Each table is computed from the rows of its query by one file of ``fits/``. Where the points do not
tell a number, its cell is empty and the status says why.
"""

from collections.abc import Iterable

import duckdb

from lmscaling.fits import (
    context_law,
    crossing,
    holdout,
    isotime,
    loss_surface,
    multiplier,
    parabola,
    points,
    power_law,
)
from lmscaling.fits.multiplier import Pair
from lmscaling.fits.points import Group
from lmscaling.fits.uncertainty import Interval
from lmscaling.formatting import Table, short

COUNT = 400
"""Replicates: ten lie beyond either end of an interval, so its ends hold to two digits."""

INTERVALS = (
    "In brackets are 95 % intervals, for seeds that differ by 0.002 nats unless the study has "
    "seeds that tell."
)

SPENT = {"updates": "updates", "flops": "FLOPs", "hours": "hours"}

Groups = dict[tuple, Group]


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """All of them; those without rows have nothing to say. Cost: half a second a surface."""
    known = points.read(db.sql(points.QUERY).fetchall())
    by_context = points.groups(known, "attention", "context")
    compared = multiplier.pairs(db.sql(multiplier.QUERY).fetchall(), COUNT)
    return [
        *surfaces(by_context),
        held_out(by_context),
        best_sizes(by_context),
        time_laws(points.groups(known, "size", "context")),
        best_contexts(points.groups(known, "attention", "size")),
        multipliers(compared),
        crossings(compared),
    ]


def surfaces(groups: Groups) -> list[Table]:
    """The surfaces, and what their exponents become where N counts something else."""
    fitted = {key: loss_surface.of(group, count=COUNT) for key, group in groups.items()}
    names = loss_surface.PARAMETERS
    rows = []
    for (source, attention, context), law in fitted.items():
        numbers = [_both(law.values.get(name), law.intervals.get(name)) for name in names]
        words = loss_surface.STATUSES[law.status]
        head = [attention, _tokens(context), groups[source, attention, context].of, source]
        rows.append((*head, str(law.points), *numbers, words, _check(law)))
    surface = Table(
        name="surfaces",
        section="laws",
        title="Loss over size and data",
        note=f"{loss_surface.LossSurface.formula}, fitted to one attention at one context; N "
        "counts parameters without embeddings, D tokens. The compute-optimal size grows as C^a, "
        f"a = beta / (alpha + beta). {INTERVALS} The check is the fit of Hoffmann et al. "
        "(arXiv:2203.15556) to the same points; it names what lies farther apart than by chance.",
        query=points.QUERY,
        head=("attention", "context (tokens)", "points are", "source", "points",
              "E (nats)", "A", "B", "alpha", "beta", "a", "status", "check"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 11, 12}),
    )  # fmt: skip
    return [surface, _conventions(groups, fitted)]


def _check(law: loss_surface.LossSurface) -> str:
    if law.check is None:
        return ""
    if not law.check.converged:
        return "did not converge"
    return f"differs in {', '.join(law.check.disagrees)}" if law.check.disagrees else "agrees"


def _conventions(groups: Groups, fitted: dict[tuple, loss_surface.LossSurface]) -> Table:
    """Exponents by what N counts, for surfaces that have numbers."""
    rows = []
    for key, law in fitted.items():
        if not law.values:
            continue
        for convention, meaning in loss_surface.CONVENTIONS.items():
            if convention != law.convention:
                law = loss_surface.of(groups[key], convention, count=COUNT, check=False)
            source, attention, context = key
            numbers = [
                _both(law.values.get(name), law.intervals.get(name))
                for name in ("alpha", "beta", "a")
            ]
            words = loss_surface.STATUSES[law.status]
            rows.append((attention, _tokens(context), source, meaning, *numbers, words))
    return Table(
        name="conventions",
        section="laws",
        title="Exponents by what N counts",
        note="The same surfaces with other parameters in N; exponents move with it "
        f"(arXiv:2406.12907). {INTERVALS}",
        query=points.QUERY,
        head=("attention", "context (tokens)", "source", "N counts parameters",
              "alpha", "beta", "a", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 7}),
    )  # fmt: skip


def held_out(groups: Groups) -> Table:
    """How the smaller sizes foresee the largest."""
    rows = []
    for (source, attention, context), group in groups.items():
        found = holdout.of(group, COUNT)
        rms = "" if found.rms is None else f"{found.rms:.4f}"
        worst = max((abs(error) for error in found.errors), default=None)
        words = holdout.STATUSES[found.status]
        rows.append((
            attention, _tokens(context), source, short(found.size),
            str(len(found.errors) or ""), rms, "" if worst is None else f"{worst:.4f}", words,
        ))  # fmt: skip
    return Table(
        name="held_out",
        section="laws",
        title="The largest size, foreseen by the smaller ones",
        note="The surface is fitted without the largest size and says its losses beforehand. "
        "Errors are measured less predicted losses; a point is hit within its 95 % interval.",
        query=points.QUERY,
        head=("attention", "context (tokens)", "source", "N left out", "points",
              "rms error (nats)", "largest error (nats)", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 7}),
    )  # fmt: skip


def best_sizes(groups: Groups) -> Table:
    """The best size at every budget, and the law it follows."""
    rows = []
    for (source, attention, context), group in groups.items():
        law = isotime.of(group, COUNT)
        head = (attention, _tokens(context), source)
        if law.optima and {best.status for best in law.optima.values()} == {"too_few"}:
            words = parabola.STATUSES["too_few"]
            rows.append((*head, f"all, {group.unit}", "", words))
            continue
        for budget, best in law.optima.items():
            number = _both(best.at, best.interval, short)
            words = parabola.STATUSES[best.status]
            rows.append((*head, f"{budget:.3g} {group.unit}", number, words))
        power = "" if law.p is None else f"t^{_both(law.p, law.interval)}"
        words = isotime.STATUSES[law.status]
        rows.append((*head, "law over budgets", power, words))
    return Table(
        name="best_sizes",
        section="laws",
        title="The best size for a budget",
        note="The vertex of a parabola in ln N through the losses at one budget, and the power of "
        f"time with which it grows. {INTERVALS}",
        query=points.QUERY,
        head=("attention", "context (tokens)", "source", "budget", "best N (parameters)", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 5}),
    )


def time_laws(groups: Groups) -> Table:
    """Loss over time of every attention."""
    rows = []
    for (source, size, context), group in groups.items():
        fitted = power_law.of(group, COUNT)
        shared = "" if fitted.p_value is None else f"{fitted.p_value:.2g}"
        for attention, law in fitted.laws.items():
            values = {"E": law.E, "k": law.k, "gamma": law.gamma}
            numbers = [_both(value, law.intervals.get(name)) for name, value in values.items()]
            words = power_law.STATUSES[law.status]
            head = (size, _tokens(context), attention, source, group.of, group.unit)
            rows.append((*head, *numbers, shared, words))
    return Table(
        name="time_laws",
        section="laws",
        title="Loss over time",
        note=f"{power_law.PowerLaw.formula}, with x in hours, or updates where budgets count "
        "those. Attentions share E unless a likelihood ratio rejects that at 5 %; p is how often "
        f"chance alone makes it so large. {INTERVALS}",
        query=points.QUERY,
        head=("size", "context (tokens)", "attention", "source", "points are", "x in",
              "E (nats)", "k", "gamma", "p of one E", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 4, 5, 10}),
    )  # fmt: skip


def best_contexts(groups: Groups) -> Table:
    """The best context of every size."""
    rows = []
    for (source, attention, size), group in groups.items():
        best = context_law.of(group, COUNT)
        lowest = "" if best.lowest is None else _tokens(int(best.lowest))
        number = _both(best.at, best.interval, lambda n: f"{float(format(n, '.2g')):,.0f}")
        words = context_law.STATUSES[best.status]
        rows.append((attention, size, source, group.of, number, lowest, words))
    return Table(
        name="best_contexts",
        section="laws",
        title="The best context to train at",
        note="The vertex of a parabola in the logarithm of the context through the losses at the "
        f"end of the budget. {INTERVALS} They do not hold how far the parabola is from the truth.",
        query=points.QUERY,
        head=("attention", "size", "source", "points are", "best context (tokens)",
              "lowest of those tried", "status"),
        rows=tuple(rows),
        text=frozenset({0, 1, 2, 3, 6}),
    )  # fmt: skip


def multipliers(pairs: Iterable[Pair]) -> Table:
    """What the same loss costs softmax, at the lowest loss that both reach."""
    rows = []
    for pair in pairs:
        head = (pair.attention, pair.size, _tokens(pair.context), pair.source)
        words = multiplier.STATUSES[pair.found.status]
        if not pair.found.levels:
            rows.append((*head, *[""] * 5, words))
            continue
        last = pair.found.levels[-1]
        shown = {
            axis: _both(getattr(last, axis), last.intervals[axis]) if axis in pair.axes else ""
            for axis in multiplier.AXES
        }
        numbers = (shown["updates"], f"{last.speed:.3g}", shown["hours"], shown["flops"])
        rows.append((*head, f"{last.loss:.3f}", *numbers, words))
    return Table(
        name="multipliers",
        section="laws",
        title="What softmax spends for the same loss",
        note="Spent by softmax over spent by the other attention until both have the loss, which "
        "is the lowest that both surely reach; above 1 the other is better. Hours are updates "
        f"times speed, which is how much faster an update is. {INTERVALS}",
        query=multiplier.QUERY,
        head=("attention", "size", "context (tokens)", "source", "at loss (nats)",
              "updates (ratio)", "x speed (ratio)", "= hours (ratio)", "FLOPs (ratio)", "status"),
        rows=tuple(rows),
        text=frozenset({0, 1, 3, 9}),
    )  # fmt: skip


def crossings(pairs: Iterable[Pair]) -> Table:
    """Where one curve of loss begins to lie below the other."""
    rows = []
    for pair in pairs:
        for axis in (axis for axis in pair.axes if axis in pair.found.crossings):
            found = pair.found.crossings[axis]
            show = short if axis == "updates" else _number
            head = (pair.attention, pair.size, _tokens(pair.context), pair.source, SPENT[axis])
            names = {"other": pair.attention, "reference": multiplier.REFERENCE, None: ""}
            seen = "" if found.seen is None else " to ".join(map(show, found.seen))
            last = found.found[-1] if found.found else None
            at = "" if last is None else _both(last.at, last.interval, show)
            words = crossing.STATUSES[found.status]
            if len(found.found) > 1:
                words += f", {len(found.found)} times"
            rows.append((*head, at, names[found.ahead], seen, words))
    return Table(
        name="loss_crossings",
        section="laws",
        title="Where one attention overtakes the other",
        note="The last change of sides between the losses of two runs that have spent the same, in "
        "brackets the nearest points at which either side is surely ahead, beyond 95 % of chance "
        "for seeds that differ by 0.002 nats. Outside of what was seen, nothing is excluded.",
        query=multiplier.QUERY,
        head=("attention", "size", "context (tokens)", "source", "spent in", "last crossing",
              "ahead at the end", "seen", "status"),
        rows=tuple(rows),
        text=frozenset({0, 1, 3, 4, 6, 8}),
    )  # fmt: skip


def _tokens(context: int) -> str:
    return f"{context // 1024}k" if context % 1024 == 0 else f"{context:,}"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _both(value: float | None, interval: Interval | None, show=_number) -> str:
    """``0.46 (0.44 to 0.48)``, with ``open`` for an end that is; empty without a number."""
    if value is None:
        return ""
    if interval is None:
        return show(value)
    low, high = ("open" if end is None else show(end) for end in (interval.low, interval.high))
    return f"{show(value)} ({low} to {high})"
