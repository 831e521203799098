"""Tables of the scaling laws: fitted parameters with 95 % intervals, optima and hold-out errors.

Each table is computed by a module of ``fits`` from the rows of its query. A parameter that the
points do not determine is left empty, and the status gives the reason.
"""

from collections.abc import Callable, Iterable

import duckdb

from lmscaling.figures.shared.law_panels import COUNT
from lmscaling.fits import (
    context_law,
    holdout,
    isotime,
    loss_surface,
    optimum,
    points,
    power_law,
)
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.optimum import Optimum, Short
from lmscaling.fits.points import Group
from lmscaling.formatting import short
from lmscaling.report.table import Table, format_context, format_number, with_interval

INTERVALS = (
    "Brackets contain 95 % intervals; they assume a standard deviation of 0.002 nats between "
    "seeds, or the one measured where there are enough seeds."
)
MEASURED = (
    "Brackets contain 95 % intervals by the scatter of seeds that the study measured, or, where "
    "they say so, the range if seeds differ by that much."
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
        "of studies. One run does not show how much the level of runs scatters: its E has no "
        f"confidence interval. Intervals of E are conservative (97 to 99 %). {MEASURED} {CHECKED}",
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
