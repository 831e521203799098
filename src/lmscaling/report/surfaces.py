"""Tables of the loss surface: parameters, both forms, influence of runs, conventions, forecasts."""

from typing import get_args

from lmscaling.fits import holdout, loss_surface, points
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.points import Group
from lmscaling.formatting import short
from lmscaling.report.table import Table, format_context, format_number, with_interval

Groups = dict[tuple, Group]
Laws = dict[tuple, LossSurface]

FARTHER = 4
"""The coverage of the surface is known up to so many times the largest N and D."""

INTERVALS = (
    "Brackets contain 95 % intervals from the influence of whole runs; docs/statistics.md has "
    "their coverage."
)


def tables(groups: Groups) -> list[Table]:
    """All tables of surfaces. Cost: half a second for each surface."""
    laws = {key: loss_surface.fit_group(group) for key, group in groups.items()}
    return [
        _surfaces(groups, laws),
        _forms(laws),
        _influence(groups, laws),
        _conventions(groups, laws),
        _forecasts(groups),
    ]


def _surfaces(groups: Groups, laws: Laws) -> Table:
    rows = []
    for key, law in laws.items():
        (source, _, attention, context), group = key, groups[key]
        head = (attention, format_context(context), group.description, source)
        rows.append((
            *head, str(law.points), str(law.runs or ""),
            *_parameters(law, loss_surface.PARAMETERS), _longer(law, group),
            "; ".join(map(str, law.tests)), loss_surface.STATUSES[law.status],
        ))  # fmt: skip
    return Table(
        name="surfaces",
        section="laws",
        title="Loss surface L(N, D)",
        note=f"{LossSurface.formula}, fitted separately to each attention and context by a "
        "multivariate t distribution of whole runs; N counts parameters without embeddings, D "
        "training tokens. The compute-optimal size grows as C^a with a = beta / (alpha + beta). "
        f"{INTERVALS} The expected loss at {FARTHER} times the largest N and D is that of a larger "
        "model and a longer budget. Tests of the sum: F compares residuals with the scatter of "
        "seeds, t tests the interaction g.",
        query=points.QUERY,
        head=("attention", "context (tokens)", "fitted losses", "source", "points", "runs",
              "E (nats)", "A", "B", "alpha", "beta", "a",
              f"loss at {FARTHER} x N and D (nats)", "tests", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 13, 14}),
    )  # fmt: skip


def _longer(law: LossSurface, group: Group) -> str:
    """The expected loss beyond the largest run, if the surface has numbers."""
    if not law.values:
        return ""
    at = [FARTHER * group.column(name).max() for name in ("params", "tokens")]
    return with_interval(float(law.loss(*at)), law.band(*at)[0], "{:.3f}".format)


def _parameters(law: LossSurface, names: tuple[str, ...]) -> list[str]:
    return [with_interval(law.values.get(name), law.intervals.get(name)) for name in names]


def _forms(laws: Laws) -> Table:
    """The sum and the form with interaction, for surfaces that have both."""
    rows = []
    for (source, schedule, attention, context), law in laws.items():
        both = [(law.values, law.intervals, "kept"), (law.beside, law.beside_intervals, "beside")]
        for values, intervals, which in both if law.beside else ():
            form = "with g" if "g" in values else "sum"
            which = "refused" if which == "beside" and not intervals else which
            numbers = (
                with_interval(values.get(name), intervals.get(name))
                for name in ("g", "E", "alpha", "beta", "a")
            )
            head = (attention, format_context(context), schedule, source)
            rows.append((*head, form, which, *numbers))
    return Table(
        name="surface_forms",
        section="laws",
        title="Surfaces with and without interaction",
        note=f"{LossSurface.interacting}. Intervals of the sum hold if the sum is right; those "
        "with g hold for every g. A refused sum has no intervals.",
        query=points.QUERY,
        head=("attention", "context (tokens)", "schedule", "source", "form", "which", "g",
              "E (nats)", "alpha", "beta", "a"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 4, 5}),
    )  # fmt: skip


def _influence(groups: Groups, laws: Laws) -> Table:
    """The run that matters most to each surface, and all that lie far from it."""
    rows = []
    for key, law in laws.items():
        source, schedule, attention, context = key
        names = {p.trunk: f"{p.size}, seed {p.seed}" for p in groups[key].points}
        for i, one in enumerate(law.influence):
            if i and not one.flagged:
                continue
            moved = (
                f"{format_number(one.without[name])} instead of {format_number(law.values[name])}"
                for name in ("alpha", "beta", "a")
            )
            far = f"{one.deviation:+.1f}{', too far' if one.flagged else ''}"
            head = (attention, format_context(context), schedule, source)
            rows.append((*head, names[str(one.run)], *moved, far))
    return Table(
        name="surface_influence",
        section="laws",
        title="Surfaces without a run",
        note="Exponents without the most influential run, and without each run that lies farther "
        "from the surface of the others than chance explains (5 % for any run of a surface). The "
        "deviation is the mean residual of the run in standard errors. No run is removed.",
        query=points.QUERY,
        head=("attention", "context (tokens)", "schedule", "source", "without", "alpha", "beta",
              "a", "deviation"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 4, 5, 6, 7, 8}),
    )  # fmt: skip


def _conventions(groups: Groups, laws: Laws) -> Table:
    """Exponents by convention, for surfaces with fitted parameters."""
    rows = []
    for key, law in laws.items():
        if not law.values:
            continue
        for convention, meaning in loss_surface.CONVENTIONS.items():
            if convention != law.convention:
                law = loss_surface.fit_group(groups[key], convention)
            source, schedule, attention, context = key
            head = (attention, format_context(context), schedule, source, meaning)
            numbers = _parameters(law, ("alpha", "beta", "a"))
            rows.append((*head, *numbers, loss_surface.STATUSES[law.status]))
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


def _forecasts(groups: Groups) -> Table:
    """Forecasts of the largest size and of the largest compute."""
    rows = []
    for (source, schedule, attention, context), group in groups.items():
        for by in get_args(holdout.By):
            found = holdout.fit_group(group, by)
            unit = "parameters" if by == "size" else "FLOPs"
            worst = max((abs(place.error) for place in found.places), default=None)
            rows.append((
                attention, format_context(context), schedule, source,
                f"{short(found.beyond)} {unit} and more" if by == "size"
                else f"more than {found.beyond:.2g} {unit}",
                str(len(found.places) or ""),
                *("" if x is None else f"{x:.4f}" for x in (found.rms, worst)),
                "" if found.skill is None else f"{found.skill:.2f}",
                holdout.STATUSES[found.status],
            ))  # fmt: skip
    return Table(
        name="held_out",
        section="laws",
        title="Forecast of the largest size and the largest compute",
        note="The surface is fitted without what is held out and predicts the medians of its "
        "seeds. Errors are measured minus predicted losses. A forecast passes if all places lie "
        "within simultaneous 95 % prediction intervals and its error is below those of two "
        "baselines: a plane in ln N and ln D for ln L, and the nearest place that was kept. Skill "
        "is 1 minus the error over that of the better baseline.",
        query=points.QUERY,
        head=("attention", "context (tokens)", "schedule", "source", "held out", "places",
              "RMS error (nats)", "largest error (nats)", "skill", "status"),
        rows=tuple(rows),
        text=frozenset({0, 2, 3, 4, 9}),
    )  # fmt: skip
