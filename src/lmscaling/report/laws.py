"""Tables of the scaling laws: fitted parameters with 95 % intervals, optima and hold-out errors.

Each table is computed by a module of ``fits`` from the rows of its query. A parameter that the
points do not determine is left empty, and the status gives the reason.
"""

from collections.abc import Callable, Iterable

import duckdb

from lmscaling.fits import context_law, isotime, optimum, points, power_law
from lmscaling.fits.optimum import Optimum
from lmscaling.fits.paired_losses import Short
from lmscaling.fits.points import Group
from lmscaling.formatting import short
from lmscaling.report import surfaces
from lmscaling.report.table import Table, format_context, format_number, with_interval

MEASURED = (
    "Brackets contain 95 % intervals by the scatter of seeds that the study measured, or, where "
    "they say so, the range if seeds differ by that much: runs of one seed do not show that one of "
    "them went wrong."
)
CHECKED = (
    "Lack of fit is tested against seeds, and a law is refused at p < 0.05; the run without which "
    "the result changes most is named."
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
    for key, law in isotime.fit_groups(groups).items():
        group, (attention, context) = groups[key], key[-2:]
        head = (attention, format_context(context), group.source, group.description)
        excluded = _excluded(law.left_out, law.short, group.unit)
        if {best.status for best in law.optima.values()} <= {"too_few"}:
            status = law.status if law.status == "unknown_schedule" else "too_few"
            every = (f"all, {group.unit}", "", "", "", excluded, optimum.STATUSES[status])
            rows.append((*head, *every))
            continue
        for budget, best in law.optima.items():
            number = with_interval(best.at, best.interval, short)
            fit = (number, _p_value(best.lack), _moved(best.moved, short))
            status = optimum.STATUSES[best.status]
            rows.append((*head, f"{budget:.3g} {group.unit}", *fit, "", status))
        power = "" if law.p is None else f"t^{with_interval(law.p, law.interval)}"
        last = ("power law", power, _p_value(law.lack), "", excluded, isotime.STATUSES[law.status])
        rows.append((*head, *last))
    return Table(
        name="best_sizes",
        section="laws",
        title="Best size by budget",
        note=f"Minimum of a {Optimum.formula} at one budget, and the exponent of its growth with "
        f"the budget t. {MEASURED} {CHECKED}",
        query=points.QUERY,
        head=("attention", "context (tokens)", "source", "fitted losses", "budget",
              "best N (parameters)", "p of lack of fit", "without one run", "excluded", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 7, 8, 9}),
    )  # fmt: skip


def time_laws(groups: Groups) -> Table:
    """The power law of the loss over time, for each attention."""
    rows = []
    for key, fitted in power_law.fit_groups(groups).items():
        group, (size, context) = groups[key], key[-2:]
        for attention, law in fitted.laws.items():
            head = (size, format_context(context), attention)
            losses = (group.source, group.description, group.unit)
            intervals = law.intervals
            numbers = (
                with_interval(law.E, intervals.get("E")),
                "" if law.k is None else format_number(law.k),
                with_interval(law.gamma, intervals.get("gamma")),
            )
            checks = (
                _p_value(law.lack), _moved(law.moved, format_number), _p_value(fitted.p_value)
            )  # fmt: skip
            rows.append((*head, *losses, *numbers, *checks, power_law.STATUSES[law.status]))
    return Table(
        name="time_laws",
        section="laws",
        title="Power law of the loss over time",
        note=f"{power_law.PowerLaw.formula}, with x in hours, or in updates if budgets count "
        "updates; each attention has its own E, and the test of one E for all errs in at most 5 % "
        "of studies. "
        f"Intervals of E are conservative (97 to 99 %). {MEASURED} {CHECKED}",
        query=points.QUERY,
        head=("size", "context (tokens)", "attention", "source", "fitted losses", "unit of x",
              "E (nats)", "k", "gamma", "p of lack of fit", "gamma without one run",
              "p of one E", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 4, 5, 10, 12}),
    )  # fmt: skip


def best_contexts(groups: Groups) -> Table:
    """The best training context of each size."""
    rows = []
    for key, best in context_law.fit_groups(groups).items():
        group, (attention, size) = groups[key], key[-2:]
        lowest = "" if best.lowest is None else format_context(round(best.lowest))
        number = with_interval(best.at, best.interval, _two_digits)
        rows.append((
            attention, size, group.source, group.description, number, lowest, _p_value(best.lack),
            _moved(best.moved, _two_digits), _excluded(best.left_out, best.short, group.unit),
            context_law.STATUSES[best.status],
        ))  # fmt: skip
    return Table(
        name="best_contexts",
        section="laws",
        title="Best training context",
        note=f"Minimum of a {Optimum.formula} at the end of the budget. {MEASURED} {CHECKED}",
        query=points.QUERY,
        head=("attention", "size", "source", "fitted losses", "best context (tokens)",
              "lowest loss at (tokens)", "p of lack of fit", "without one run", "excluded",
              "status"),
        rows=tuple(rows),
        text=frozenset({0, 1, 2, 3, 7, 8, 9}),
    )  # fmt: skip


def _two_digits(value: float) -> str:
    return f"{float(format(value, '.2g')):,.0f}"


def _p_value(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _moved(moved: tuple[str, float] | None, form: Callable[[float], str]) -> str:
    """The result without the run that moves it most."""
    return "" if moved is None else f"{form(moved[1])} without {moved[0]}"


def _excluded(left_out: Iterable[str], runs: Iterable[Short], unit: str) -> str:
    """Runs that were not fitted, and why."""
    lines = [f"{run} deviates from its other seeds" for run in left_out]
    lines += [f"{run} spent {spent:.3g} of {budget:.3g} {unit}" for run, _, spent, budget in runs]
    return "; ".join(lines)
