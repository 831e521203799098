"""Tables of the scaling laws: fitted parameters with 95 % intervals, optima and hold-out errors.

Each table is computed by a module of ``fits`` from the rows of its query. A parameter that the
points do not determine is left empty, and the status gives the reason.
"""

import duckdb

from lmscaling.figures.shared.law_panels import COUNT
from lmscaling.fits import (
    context_law,
    holdout,
    isotime,
    loss_surface,
    parabola,
    points,
    power_law,
)
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.points import Group
from lmscaling.formatting import short
from lmscaling.report.table import Table, format_context, with_interval

INTERVALS = (
    "Brackets contain 95 % intervals; they assume a standard deviation of 0.002 nats between "
    "seeds, or the one measured where there are enough seeds."
)

Groups = dict[tuple, Group]


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """All tables of laws, in the order of the report. Cost: half a second for each surface."""
    known = points.read(db.sql(points.QUERY).fetchall())
    by_context = points.groups(known, "attention", "context")
    return [
        *surfaces(by_context),
        held_out(by_context),
        best_sizes(by_context),
        time_laws(points.groups(known, "size", "context")),
        best_contexts(points.groups(known, "attention", "size")),
    ]


def surfaces(groups: Groups) -> list[Table]:
    """The fitted surfaces, and their exponents under other conventions for N."""
    fitted = {key: loss_surface.fit_group(group, count=COUNT) for key, group in groups.items()}
    rows = []
    for key, law in fitted.items():
        group, (source, _, attention, context) = groups[key], key
        head = (attention, format_context(context), group.description, source, str(law.points))
        numbers = _parameters(law, loss_surface.PARAMETERS)
        rows.append((*head, *numbers, loss_surface.STATUSES[law.status], _check(law)))
    surface = Table(
        name="surfaces",
        section="laws",
        title="Loss surface L(N, D)",
        note=f"{LossSurface.formula}, fitted separately to each attention and context; N counts "
        "parameters without embeddings, D training tokens. The compute-optimal size grows as C^a "
        f"with a = beta / (alpha + beta). {INTERVALS} The check repeats the fit by the method of "
        "Hoffmann et al. (arXiv:2203.15556) and lists parameters that differ significantly.",
        query=points.QUERY,
        head=("attention", "context (tokens)", "fitted losses", "source", "points",
              "E (nats)", "A", "B", "alpha", "beta", "a", "status", "check"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 11, 12}),
    )  # fmt: skip
    return [surface, _conventions(groups, fitted)]


def _parameters(law: LossSurface, names: tuple[str, ...]) -> list[str]:
    return [with_interval(law.values.get(name), law.intervals.get(name)) for name in names]


def _check(law: LossSurface) -> str:
    if law.check is None:
        return ""
    if not law.check.converged:
        return "did not converge"
    return f"differs in {', '.join(law.check.disagrees)}" if law.check.disagrees else "agrees"


def _conventions(groups: Groups, fitted: dict[tuple, LossSurface]) -> Table:
    """Exponents by convention, for surfaces with fitted parameters."""
    rows = []
    for key, law in fitted.items():
        if not law.values:
            continue
        for convention, meaning in loss_surface.CONVENTIONS.items():
            if convention != law.convention:
                law = loss_surface.fit_group(groups[key], convention, count=COUNT, check=False)
            source, schedule, attention, context = key
            numbers = _parameters(law, ("alpha", "beta", "a"))
            status = loss_surface.STATUSES[law.status]
            head = (attention, format_context(context), schedule, source, meaning)
            rows.append((*head, *numbers, status))
    return Table(
        name="conventions",
        section="laws",
        title="Exponents by convention for N",
        note="The same surfaces, fitted with other parameters counted in N; the exponents depend "
        f"on the convention (arXiv:2406.12907). {INTERVALS}",
        query=points.QUERY,
        head=("attention", "context (tokens)", "schedule", "source", "parameters in N",
              "alpha", "beta", "a", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 4, 8}),
    )  # fmt: skip


def held_out(groups: Groups) -> Table:
    """Hold-out errors of the largest size."""
    rows = []
    for (source, schedule, attention, context), group in groups.items():
        result = holdout.fit_group(group, COUNT)
        rms = "" if result.rms is None else f"{result.rms:.4f}"
        worst = max((abs(error) for error in result.errors), default=None)
        rows.append((
            attention, format_context(context), schedule, source, short(result.size),
            str(len(result.errors) or ""), rms, "" if worst is None else f"{worst:.4f}",
            holdout.STATUSES[result.status],
        ))  # fmt: skip
    return Table(
        name="held_out",
        section="laws",
        title="Hold-out error of the largest size",
        note="The surface is fitted without the largest size and predicts its losses. Errors are "
        "measured minus predicted losses; the status compares them with simultaneous 95 % "
        "prediction intervals.",
        query=points.QUERY,
        head=("attention", "context (tokens)", "schedule", "source", "N held out", "points",
              "RMS error (nats)", "largest error (nats)", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 8}),
    )  # fmt: skip


def best_sizes(groups: Groups) -> Table:
    """The best size for each budget, and its growth with the budget."""
    rows = []
    for (source, schedule, attention, context), group in groups.items():
        law = isotime.fit_group(group, COUNT)
        head = (attention, format_context(context), schedule, source)
        if law.optima and {best.status for best in law.optima.values()} == {"too_few"}:
            rows.append((*head, f"all, {group.unit}", "", parabola.STATUSES["too_few"]))
            continue
        for budget, best in law.optima.items():
            number = with_interval(best.at, best.interval, short)
            status = parabola.STATUSES[best.status]
            rows.append((*head, f"{budget:.3g} {group.unit}", number, status))
        power = "" if law.p is None else f"t^{with_interval(law.p, law.interval)}"
        rows.append((*head, "power law", power, isotime.STATUSES[law.status]))
    return Table(
        name="best_sizes",
        section="laws",
        title="Best size by budget",
        note="Vertex of a parabola in ln N through the losses at one budget, and the exponent of "
        f"its growth with the budget t. {INTERVALS}",
        query=points.QUERY,
        head=("attention", "context (tokens)", "schedule", "source", "budget",
              "best N (parameters)", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 6}),
    )  # fmt: skip


def time_laws(groups: Groups) -> Table:
    """The power law of the loss over time, for each attention."""
    rows = []
    for (source, _, size, context), group in groups.items():
        fitted = power_law.fit_group(group, COUNT)
        p_value = "" if fitted.p_value is None else f"{fitted.p_value:.2g}"
        for attention, law in fitted.laws.items():
            values = {"E": law.E, "k": law.k, "gamma": law.gamma}
            numbers = [with_interval(v, law.intervals.get(name)) for name, v in values.items()]
            status = power_law.STATUSES[law.status]
            head = (size, format_context(context), attention, source, group.description, group.unit)
            rows.append((*head, *numbers, p_value, status))
    return Table(
        name="time_laws",
        section="laws",
        title="Power law of the loss over time",
        note=f"{power_law.PowerLaw.formula}, with x in hours, or in updates if budgets count "
        "updates. Attentions share E unless a likelihood-ratio test rejects that at the 5 % "
        f"level; the column gives its p-value. {INTERVALS}",
        query=points.QUERY,
        head=("size", "context (tokens)", "attention", "source", "fitted losses", "unit of x",
              "E (nats)", "k", "gamma", "p of a shared E", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 4, 5, 10}),
    )  # fmt: skip


def best_contexts(groups: Groups) -> Table:
    """The best training context of each size."""
    rows = []
    for (source, _, attention, size), group in groups.items():
        best = context_law.fit_group(group, COUNT)
        lowest = "" if best.lowest is None else format_context(int(best.lowest))
        number = with_interval(best.at, best.interval, lambda n: f"{float(format(n, '.2g')):,.0f}")
        status = context_law.STATUSES[best.status]
        rows.append((attention, size, source, group.description, number, lowest, status))
    return Table(
        name="best_contexts",
        section="laws",
        title="Best training context",
        note="Vertex of a parabola in ln(context) through the losses at the end of the budget. "
        f"{INTERVALS} They exclude the error of the parabola itself.",
        query=points.QUERY,
        head=("attention", "size", "source", "fitted losses", "best context (tokens)",
              "lowest loss at (tokens)", "status"),
        rows=tuple(rows),
        text=frozenset({0, 1, 2, 3, 6}),
    )  # fmt: skip
