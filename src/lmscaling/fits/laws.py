"""Laws and optima of a study as rows of tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from duckdb import DuckDBPyConnection

from lmscaling.fits import (
    frontier,
    holdout,
    isotime,
    loss_surface,
    lr_optimum,
    optimum,
    points,
    power_law,
)
from lmscaling.fits.frontier import Frontier
from lmscaling.fits.holdout import Holdout
from lmscaling.fits.isotime import IsoTime
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.fits.optimum import Optimum
from lmscaling.fits.points import Group
from lmscaling.fits.rows import Row, number, numbers
from lmscaling.fits.uncertainty import Interval
from lmscaling.formatting import short

FARTHER = 4
"""The coverage of the surface is known up to so many times the largest N and D."""
EXPONENTS = ("alpha", "beta", "a")

Groups = Mapping[tuple, Group]


def compute(db: DuckDBPyConnection) -> dict[str, list[Row]]:
    """The rows of each table of laws."""
    known = points.read(db.sql(points.QUERY).fetchall())
    groups = points.groups(known, "attention", "context")
    held = {
        key: [holdout.fit_group(group, by) for by in get_args(holdout.By)]
        for key, group in groups.items()
    }
    surfaces = {key: _judged(loss_surface.fit_group(groups[key]), held[key]) for key in groups}
    best = isotime.fit_groups(groups)
    frontiers = frontier.fit_groups(db.sql(frontier.QUERY).fetchall())
    found: dict[str, Iterator[Row]] = {
        "surfaces": _surfaces(groups, surfaces, held),
        "surface_forms": _forms(groups, surfaces),
        "surface_influence": _influence(groups, surfaces),
        "surface_conventions": _conventions(groups, surfaces),
        "held_out": _held_out(groups, held),
        "time_laws": _time_laws(points.groups(known, "size", "context")),
        "best_sizes": _best_sizes(groups, best),
        "optimal_sizes": _optimal_sizes(groups, frontiers, best, surfaces),
        "best_contexts": _best_contexts(points.groups(known, "attention", "size")),
        "best_rates": best_rates(db.sql(lr_optimum.QUERY).fetchall()),
    }
    return {name: list(rows) for name, rows in found.items()}


def _of(key: tuple, group: Group, *by: str) -> Row:
    """What is fitted."""
    return dict(zip(("source", "schedule", *by), key, strict=True)) | {"losses": group.description}


def _parameters(values: Mapping[str, float], intervals: Mapping[str, Interval]) -> Row:
    """SQL does not tell ``a`` from ``A``."""
    names = {"a": "a_opt"}
    return numbers(
        {names.get(name, name): value for name, value in values.items()},
        {names.get(name, name): interval for name, interval in intervals.items()},
    )


def _judged(law: LossSurface, held: Iterable[Holdout]) -> LossSurface:
    """Without intervals where the largest size or compute was missed."""
    if not law.intervals or all(one.status != "missed" for one in held):
        return law
    return replace(law, status="missed", intervals={}, beside_intervals={})


def _surfaces(
    groups: Groups,
    surfaces: Mapping[tuple, LossSurface],
    held: Mapping[tuple, Sequence[Holdout]],
) -> Iterator[Row]:
    for key, law in surfaces.items():
        group, farther = groups[key], {}
        if law.intervals:
            N, D = (FARTHER * float(group.column(name).max()) for name in ("params", "tokens"))
            error = holdout.form_error(held[key], N, D)
            band = None if error is None else law.band(N, D, error)[0]
            farther = number("farther", float(law.loss(N, D)), band)
        lone = f"; without sizes of one run: {', '.join(map(short, law.lone))}" if law.lone else ""
        yield {
            **_of(key, group, "attention", "context"), "status": law.status,
            "why": loss_surface.STATUSES[law.status] + lone, "points": law.points, "runs": law.runs,
            **farther, "tests": "; ".join(map(str, law.tests)),
            "drawn": _drawn(law.coefficients), **_parameters(law.values, law.intervals),
        }  # fmt: skip


def _drawn(coefficients: Mapping[str, float]) -> list[float] | None:
    of = {"g": 1.0, **coefficients}
    return [of[name] for name in ("E", "A", "B", "alpha", "beta", "g")] if coefficients else None


def _forms(groups: Groups, surfaces: Mapping[tuple, LossSurface]) -> Iterator[Row]:
    for key, law in surfaces.items():
        both = [(law.values, law.intervals, "kept"), (law.beside, law.beside_intervals, "beside")]
        for values, intervals, which in both if law.beside else ():
            yield {
                **_of(key, groups[key], "attention", "context"),
                "form": "with g" if "g" in values else "sum",
                "which": "refused" if which == "beside" and not intervals else which,
                **_parameters(values, intervals),
            }  # fmt: skip


def _influence(groups: Groups, surfaces: Mapping[tuple, LossSurface]) -> Iterator[Row]:
    for key, law in surfaces.items():
        names = {p.trunk: f"{p.size}, seed {p.seed}" for p in groups[key].points}
        for one in (one for i, one in enumerate(law.influence) if one.flagged or not i):
            yield {
                **_of(key, groups[key], "attention", "context"), "run": names[str(one.run)],
                "deviation": one.deviation, "is_far": one.flagged, **_parameters(one.without, {}),
            }  # fmt: skip


def _conventions(groups: Groups, surfaces: Mapping[tuple, LossSurface]) -> Iterator[Row]:
    for key, first in surfaces.items():
        for convention, meaning in loss_surface.CONVENTIONS.items() if first.values else ():
            law = first
            if convention != first.convention:
                law = loss_surface.fit_group(groups[key], convention)
            yield {
                **_of(key, groups[key], "attention", "context"), "convention": meaning,
                "status": law.status, "why": loss_surface.STATUSES[law.status],
                **_parameters(law.values, law.intervals),
            }  # fmt: skip


def _held_out(groups: Groups, held: Mapping[tuple, Iterable[Holdout]]) -> Iterator[Row]:
    for key, group in groups.items():
        for found in held[key]:
            last = max(found.places, key=lambda place: place.N * place.D, default=None)
            yield {
                **_of(key, group, "attention", "context"), "by": found.by, "beyond": found.beyond,
                "places": len(found.places), "rms": found.rms, "skill": found.skill,
                "worst": max((abs(place.error) for place in found.places), default=None),
                "status": found.status, "why": holdout.STATUSES[found.status],
                "loss": last and last.loss,
                **number("predicted", last and last.predicted, last and last.interval),
            }  # fmt: skip


def _time_laws(groups: Groups) -> Iterator[Row]:
    for key, fitted in power_law.fit_groups(groups).items():
        parts = groups[key].split("attention")
        for attention, law in fitted.items():
            yield {
                **_of(key, groups[key], "size", "context"), "attention": attention,
                "unit": groups[key].unit, "status": law.status,
                "why": power_law.STATUSES[law.status], "lack": law.lack,
                "E": law.E, "k": law.k, "gamma": law.gamma, **_without(law.moved),
                **_band(law, parts[attention].column("spent")),
            }  # fmt: skip


def _band(law: power_law.PowerLaw, spent: np.ndarray) -> Row:
    """The law between the first and the last point."""
    if law.E is None or law.gamma is None:
        return {}
    x = np.geomspace(spent.min(), spent.max(), 30)
    band = law.band(x)
    low = [np.nan if one.low is None else one.low for one in band]
    high = [np.nan if one.high is None else one.high for one in band]
    points = {"curve_x": x.tolist(), "curve": law.loss(x).tolist(), "assumed_sd": band[0].assumed}
    return points | {"curve_lower": low, "curve_upper": high}


def _optimal_sizes(
    groups: Groups,
    frontiers: Mapping[tuple, Frontier],
    best: Mapping[tuple, IsoTime],
    surfaces: Mapping[tuple, LossSurface],
) -> Iterator[Row]:
    """The three approaches of Hoffmann et al. 2022 at budgets in FLOPs."""
    for key, group in groups.items():
        if group.unit != "flops":
            continue
        source, _, attention, context = key
        C = float(group.column("budget").max())
        none = Frontier(status="too_few")  # no run is done
        edge = frontiers.get((source, attention, context), none)
        size, law = best[key], surfaces[key]
        found = [
            (edge.status, frontier.STATUSES, edge.a, None, _power(edge.G, edge.a, C)),
            (size.status, isotime.STATUSES, size.p, size.interval, _power(size.G, size.p, C)),
            (law.status, loss_surface.STATUSES, law.values.get("a"), law.intervals.get("a"),
             law.optimal_size(C)),
        ]  # fmt: skip
        for approach, (status, statuses, a, interval, at) in enumerate(found, 1):
            yield {
                **_of(key, group, "attention", "context"), "approach": approach, "status": status,
                "why": statuses[status], "compute": C, "best": at, **number("a", a, interval),
            }  # fmt: skip


def _power(factor: float | None, exponent: float | None, x: float) -> float | None:
    return None if factor is None or exponent is None else factor * x**exponent


def _best_sizes(groups: Groups, found: Mapping[tuple, IsoTime]) -> Iterator[Row]:
    for key, law in found.items():
        group = groups[key]
        head = _of(key, group, "attention", "context") | {
            "unit": group.unit, "law_status": law.status, "law_lack": law.lack, "G": law.G,
            "law_why": isotime.STATUSES[law.status], "excluded": _excluded(law, group.unit),
            "p_assumed": law.interval and law.interval.assumed, **number("p", law.p, law.interval),
        }  # fmt: skip
        if not law.optima:
            yield {**head, "status": law.status, "why": isotime.STATUSES[law.status]}
        for budget, best in law.optima.items():
            yield {**head, "budget": budget, **_optimum(best, optimum.STATUSES)}


def _best_contexts(groups: Groups) -> Iterator[Row]:
    for key, best in optimum.fit_contexts(groups).items():
        yield {
            **_of(key, groups[key], "attention", "size"), "lowest": best.lowest,
            "excluded": _excluded(best, groups[key].unit), **_optimum(best, optimum.STATUSES),
        }  # fmt: skip


def _optimum(best: Optimum, statuses: Mapping[str, str]) -> Row:
    x, loss = zip(*best.curve, strict=True) if best.curve else ((), ())
    return {
        "status": best.status, "why": statuses[best.status], "lack": best.lack, "loss": best.loss,
        "curve_x": list(map(float, x)), "curve": list(map(float, loss)),
        "best_assumed": best.interval and best.interval.assumed,
        **number("best", best.at, best.interval), **_without(best.moved),
    }  # fmt: skip


def _without(moved: tuple[str, float] | None) -> Row:
    """The result without the run that moves it most."""
    return dict(zip(("without", "moved"), moved or (None, None), strict=True))


def _excluded(law: IsoTime | Optimum, unit: str) -> str:
    """Runs that were not fitted, and why."""
    lines = [f"{run} deviates from its other seeds" for run in law.left_out]
    lines += [f"{run} spent {spent:.3g} of {budget:.3g} {unit}"
              for run, _, spent, budget in law.short]  # fmt: skip
    return "; ".join(lines)


def best_rates(rows: Iterable[tuple]) -> Iterator[Row]:
    """From the rows of ``lr_optimum.QUERY``."""
    for group in lr_optimum.groups(rows):
        best: Any = group.optimum
        why = lr_optimum.STATUSES[best.status]
        if best.scale is None and best.lowest_scale is not None and best.tried > 1:
            why += f"; lowest loss at {best.lowest_scale:g} x"
        if best.left_out:
            why += f"; without {best.left_out} deviating runs"
        yield {
            "source": "measured", "attention": group.attention, "size": group.size,
            "context": group.context, "tried": best.tried, "status": best.status, "why": why,
            "scale": best.scale, "gain": best.gain, "loss": best.loss,
            "rate_assumed": group.interval and group.interval.assumed,
            **number("rate", group.rate, group.interval),
        }  # fmt: skip
