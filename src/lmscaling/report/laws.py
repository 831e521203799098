"""Tables of the scaling laws: fitted parameters with 95 % intervals, optima and hold-out errors.

Each table is computed by a module of ``fits`` from the rows of its query. A parameter that the
points do not determine is left empty, and the status gives the reason.
"""

import duckdb

from lmscaling.figures.shared.law_panels import COUNT
from lmscaling.fits import context_law, isotime, parabola, points, power_law
from lmscaling.fits.points import Group
from lmscaling.formatting import short
from lmscaling.report import surfaces
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
        *surfaces.tables(by_context),
        best_sizes(by_context),
        time_laws(points.groups(known, "size", "context")),
        best_contexts(points.groups(known, "attention", "size")),
    ]


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
