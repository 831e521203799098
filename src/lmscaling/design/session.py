"""One call of ``lmscaling design``: the proposal as text, as a study file, and as a record."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid, expand
from lmscaling.config.places import Values
from lmscaling.design import check, overlay, setting
from lmscaling.design.asked import KINDS, PAIRS
from lmscaling.design.draws import CORRELATION, PAIRED
from lmscaling.design.proposal import Proposal, propose
from lmscaling.design.setting import Price, Run, Setting
from lmscaling.errors import UserError
from lmscaling.files import write_json
from lmscaling.fits.noise import MOST_SEEDS, seeds_needed
from lmscaling.formatting import aligned, folded
from lmscaling.plan.estimate import Forecast, Shape, expected_seconds
from lmscaling.records.design import Design

CHECK_SECONDS = 60.0
"""Most that the simulations of ``--check`` take; the first is always finished."""
SHOWN_STEPS = 8
FLOPS = "PFLOP"
"""Unit of prices where no time is known."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was typed."""

    question: str
    hours: float | None
    share: float | None
    """Of the price of the whole grid."""
    studies: int
    """To check the design in."""
    gap: float | None
    """Nats that the seeds are to find."""
    files: tuple[str, ...]
    """The study files."""
    name: str
    out: Path | None
    seed: int


def priced(
    grid: Grid, forecasts: list[Forecast], shapes: Mapping[str, Shape]
) -> tuple[dict[str, Price], str]:
    """Price and tokens of each trunk that can run, and the unit: hours of GPUs or, on a CPU, of
    productive time where the plan knows it, otherwise FLOPs.

    Raises:
        UserError: The budget is a time, and the speed of a cell is unknown.
    """
    known = {
        run: forecast
        for (run, cell), forecast in zip(grid.cells.items(), forecasts, strict=True)
        if not forecast.cannot
    }
    unclear = [one.name for one in known.values() if one.tokens is None]
    if unclear:
        raise UserError(
            f"how much text {unclear[0]} reads within {grid.study.budget} is unknown until it is "
            "calibrated; write a budget of updates or tokens, as in --set budget='1000 updates'"
        )
    hours = {run: _hours(grid.cells[run], one) for run, one in known.items()}
    unit = "GPU-hours" if any(cell.gpus for cell in grid.cells.values()) else "CPU-hours"
    if None in hours.values():
        unit = FLOPS
    costs = {
        run: (one.tokens or 0) * shapes[run].flops_per_token / 1e15
        if unit == FLOPS
        else hours[run] or 0.0
        for run, one in known.items()
    }
    return {run: Price(costs[run], float(one.tokens or 0)) for run, one in known.items()}, unit


def _hours(cell: Cell, forecast: Forecast) -> float | None:
    if cell.gpus:
        return forecast.gpu_hours
    seconds = parse_budget(cell.budget).seconds or expected_seconds(cell, forecast.update_seconds)
    return seconds and seconds / 3600


def run(
    request: Request,
    grid: Grid,
    study: Mapping[str, Any],
    prices: Mapping[str, Price],
    unit: str,
    results: Path,
) -> str:
    """Propose, write and describe a design.

    Args:
        request: What was typed.
        grid: The study.
        study: Its values, as ``study_file.read_study`` returns them.
        prices: By run of a trunk.
        unit: Of the prices.
        results: ``results/<study>``.
    """
    asked = setting.ask(request.question, grid)
    set_up = setting.setting(asked, grid, prices, results)
    seeds = len(grid.study.axes.values("seed"))
    branches = 1 + 0.2 * sum(grid.study.branches.shares if grid.study.branches else ())
    whole = sum(price.cost for price in prices.values()) * branches
    budget = request.hours if request.hours is not None else (request.share or 0) * whole
    if budget <= 0:
        raise UserError(
            f"there is nothing to spend; write --gpu-hours, or --share 0.3 of the {whole:,.4g} "
            f"{unit} of the whole grid"
        )
    found = propose(
        asked, set_up.candidates, seeds, budget, set_up.options, known=set_up.known,
        noise=set_up.noise, seed=request.seed,
    )  # fmt: skip
    name = request.name or re.sub(r"[^\w.]+", "-", request.question).strip("-")
    runs = overlay.runs_of(found.candidates, found.counts) | set_up.finished
    why = f"not in the design for {asked}"
    content = overlay.values(grid, study, runs, found.option, why)
    names = _planned(study, content, runs)
    path = request.out or results / "designs" / f"{name}.yaml"
    made = datetime.now(UTC).isoformat(timespec="seconds")
    command = shlex.join(["snakemake", "--configfile", *request.files, str(path)])
    said = [
        f"A design for {asked}, made {made[:10]} by lmscaling design from {set_up.said}:",
        f"{found.spent:,.4g} {unit}, expected half-width {found.half_width:.3g} of the 95 % "
        f"interval of the {KINDS[asked.kind]}.",
        f"Lay it over the study: {command}",
    ]
    overlay.write(path, content, [line for text in said for line in folded(text)])
    record = results / "designs" / f"{name}.json"
    write_json(record, asdict(_record(found, name, unit, set_up.said, names, made)))
    lines = [*_told(found, set_up, unit, budget), *_seeds(found, request.gap)]
    if request.studies:
        lines += _checked(found, request.studies)
    lines.append(f"design: {path}, {record}")
    return "\n".join([*_table(found, unit), "", *(line for x in lines for line in folded(x))])


def _planned(
    study: Mapping[str, Any], content: Mapping[str, Any], runs: frozenset[Run]
) -> list[str]:
    """Names of the cells of the study with the file laid over it, which must be those wanted."""
    values = Values()
    values.update({**study, **content, "axes": {**study["axes"], **content["axes"]}})
    cells = expand(values).cells.values()
    found = {(one.attention, one.size, one.context, one.seed) for one in cells}
    if found != runs:
        raise AssertionError(f"the study file has {len(found)} runs for {len(runs)} of the design")
    return [one.name for one in cells]


def _table(found: Proposal, unit: str) -> list[str]:
    """The steps of the design, then the other ways to spend as much."""
    rows = [["step", f"spent ({unit})", "half-width"]]
    shown = found.steps
    if len(shown) > SHOWN_STEPS:
        kept = np.unique(np.linspace(0, len(shown) - 1, SHOWN_STEPS).round().astype(int))
        shown = [found.steps[i] for i in kept]
    for spent, half, added in shown:
        cells = [
            f"{k} {'seed' if k == 1 else 'seeds'} of {one.size}, context {one.context}"
            for one, k in zip(found.candidates, added.tolist(), strict=True)
            if k
        ]
        what = cells[0] if len(cells) == 1 else f"{sum(added)} runs of {len(cells)} cells"
        rows.append([f"+ {what}", f"{spent:,.4g}", _half(half)])
    at = int(np.searchsorted(found.spend_s, found.spent))
    price, half = found.grid
    rows += [
        ["the design", f"{found.spent:,.4g}", _half(found.half_width)],
        ["random runs", f"{found.spent:,.4g}", _half(float(np.median(found.random_Rs[:, at])))],
        ["largest first", f"{found.spent:,.4g}", _half(float(found.largest_s[at]))],
        ["the grid's own", f"{price:,.4g}", _half(half)],
    ]
    return aligned(rows, left={0})


def _half(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "none"


def _told(found: Proposal, set_up: Setting, unit: str, budget: float) -> list[str]:
    shares = ", ".join(f"{share:g}" for share in found.option.shares)
    noun = "pairs of runs" if found.asked.kind in PAIRS else "runs"
    lines = [
        f"half-widths are of the 95 % interval of the {KINDS[found.asked.kind]}, medians over "
        f"{len(found.draws.run_sd_M)} truths from {set_up.said}; none: the report gives no "
        "interval",
        f"{int((found.counts - found.problem.start_C).sum())} new {noun} for "
        f"{found.spent:,.4g} of {budget:,.4g} {unit}"
        + (f", budgets {found.option.budget:g} of the study's" if found.option.budget != 1 else "")
        + (f", branches at {shares}" if shares else ""),
    ]
    if found.determined < 1:
        lines.append(f"the answer has an interval in {found.determined:.0%} of the truths")
    return lines


def _seeds(found: Proposal, gap: float | None) -> list[str]:
    """How many seeds a gap needs, at the median noise of the truths."""
    if gap is None:
        return []
    sd = float(np.median(found.draws.run_sd_M))
    needed = {
        "paired": seeds_needed(gap, PAIRED * sd), "unpaired": seeds_needed(gap, np.sqrt(2) * sd)
    }  # fmt: skip
    counts = [f"{n if n else f'more than {MOST_SEEDS}'} {name} seeds" for name, n in needed.items()]
    return [
        f"a gap of {gap:g} nats is found with a probability of 80 % by {' or '.join(counts)}, if "
        f"seeds differ by {sd:.3g} nats and pairs correlate by {CORRELATION:g}"
    ]


def _checked(found: Proposal, studies: int) -> list[str]:
    got = check.check(
        found.asked, found.candidates, found.counts, found.option, found.draws, studies,
        CHECK_SECONDS,
    )  # fmt: skip
    covered = "" if np.isnan(got.coverage) else f"; {got.coverage:.0%} of the intervals hold it"
    without = f"; {got.without:.0%} have no interval" if got.without else ""
    return [
        f"in {got.studies} simulated studies the estimator of the report has a median half-width "
        f"of {_half(got.half_width)} (linearised: {_half(found.half_width)}){covered}{without}"
    ]


def _record(
    found: Proposal, name: str, unit: str, basis: str, names: list[str], made: str
) -> Design:
    low, middle, high = np.quantile(
        np.nan_to_num(found.random_Rs, posinf=1e300), [0.25, 0.5, 0.75], axis=0
    )
    columns = {
        "spend": found.spend_s, "chosen": found.chosen_s, "random": middle, "random_low": low,
        "random_high": high, "largest": found.largest_s,
    }  # fmt: skip
    return Design(
        name=name,
        question=str(found.asked),
        quantity=KINDS[found.asked.kind],
        price=unit,
        basis=basis,
        spent=found.spent,
        half_width=found.half_width,
        grid_spent=found.grid[0],
        grid_half_width=_finite(found.grid[1]),
        frontier=[
            {key: _finite(float(column[i])) for key, column in columns.items()}
            for i in range(len(found.spend_s))
        ],
        runs=names,
        made=made,
    )


def _finite(value: float) -> float | None:
    return value if abs(value) < 1e290 else None
