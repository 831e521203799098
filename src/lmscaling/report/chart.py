"""The chart of curves and the map of gaps, as what the page's template writes.

Every curve is written once for hours and once for updates, in the logarithm of what was spent, so
that a view (a cell on one axis) is the same path under another transformation: tokens and FLOPs are
multiples of updates. Style sheets show the chosen view and scripts read values from the paths;
nothing is drawn again. Positions are in thousandths of the frame, whose text is HTML, so letters
keep their size at every width.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, floor, inf, log, log10
from statistics import median

import numpy as np

from lmscaling.formatting import short
from lmscaling.report import words
from lmscaling.report.contest import AXES, Cell, Contest, Edge, Row
from lmscaling.report.table import format_context

RANGES = {"end": 16.0, "whole": inf}
"""Ranges of the horizontal axis by the ratio of its ends at most: the end of the runs, or all."""
LETTERS = 60
"""Least distance of two labels, thousandths of the frame's height."""
LABELS = {
    "hours": "training time (hours)", "updates": "updates", "tokens": "training tokens",
    "flops": "training compute (FLOPs)",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Path:
    """One run over updates or hours, as SVG path data: x in thousandths of ln of its end, y in
    thousandths of a nat."""

    name: str
    line: str
    band: str
    """From the line up to the highest spike of each interval; empty without spikes."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """A path in a view."""

    path: str
    attention: str
    transform: str
    log_end: float
    has_band: bool
    is_first: bool
    """Whether it is the first seed of its attention; the others are drawn thinner."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A text in a view."""

    at: float
    """Thousandths of the width from the left, or of the height from the top."""
    text: str
    attention: str = ""


@dataclass(frozen=True, kw_only=True)
class View:
    """A cell on one axis over one range."""

    axis: str
    range: str
    """A key of ``RANGES``."""
    label: str
    """Says what is seen."""
    x_label: str
    low: float
    high: float
    """Ends of the horizontal axis, ln."""
    bottom: float
    top: float
    """Ends of the vertical axis, nats."""
    uses: tuple[Use, ...]
    x_ticks: tuple[Mark, ...]
    y_ticks: tuple[Mark, ...]
    ends: tuple[Mark, ...]
    spikes: tuple[Mark, ...]
    compared: tuple[Mark, ...]
    """Where each candidate is compared, as ``attention``, and its gap."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A cell of the map."""

    cell: int
    title: str
    has_curves: bool
    is_planned: bool
    values: tuple["Value", ...]


@dataclass(frozen=True, kw_only=True)
class Value:
    """What a cell of the map says about one candidate on one axis."""

    axis: str
    candidate: str
    text: str
    said: str
    """For screen readers, and when pointed at."""
    leader: str
    """The attention with the lower loss; empty if undecided."""
    share: int
    """Strength of its colour, percent."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Everything that is drawn."""

    paths: tuple[Path, ...]
    views: dict[int, tuple[View, ...]]
    """By the cell's place in the map."""
    rows: tuple[tuple[str, tuple[Place, ...]], ...]
    """Rows of the map by context."""
    first: int
    """The cell that is shown first."""


def draw(contest: Contest, curves: Iterable[Row], names: Iterable[str]) -> Chart:
    """The chart of a contest.

    Args:
        contest: Its cells and gaps.
        curves: Rows of ``contest.CURVES``.
        names: All attentions, the baseline first.
    """
    runs: dict[Cell, dict[str, dict[str, list[Row]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in curves:
        runs[row["size"], row["context"]][row["attention"]][row["run"]].append(row)
    cells = [(size, context) for context in contest.contexts for size in contest.sizes]
    paths: list[Path] = []
    views: dict[int, tuple[View, ...]] = {}
    for i, cell in enumerate(cells):
        ordered = {name: runs[cell][name] for name in names if name in runs.get(cell, {})}
        drawn = {name: _of_runs(one, len(paths), paths) for name, one in ordered.items()}
        seen = (_view(contest, cell, axis, r, drawn) for axis in AXES for r in RANGES)
        if drawn:
            views[i] = tuple(view for view in seen if view)
    closest = contest.closest
    first = cells.index(closest[1]) if closest and closest[1] in cells else -1
    most = max(
        (
            abs(edge.gap)
            for of in contest.edges.values()
            for c in of.values()
            for edge in c.values()
        ),
        default=1.0,
    )
    rows = [
        (
            format_context(context),
            tuple(
                _place(contest, cells.index((size, context)), (size, context), views, most)
                for size in contest.sizes
            ),
        )
        for context in contest.contexts
    ]
    return Chart(
        paths=tuple(paths), views=views, rows=tuple(rows),
        first=first if first in views else next(iter(views), -1),
    )  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """A run with the names of its paths."""

    ends: dict[str, float]
    """ln of what was spent, by axis."""
    paths: dict[str, str]
    log_spent: dict[str, list[float]]
    loss: list[float]
    spikes: list[tuple[int, float]]
    """Place in ``loss`` and height of each spike."""


def _of_runs(runs: dict[str, list[Row]], number: int, paths: list[Path]) -> list[_Run]:
    found = []
    for rows in runs.values():
        loss = [row["loss"] for row in rows]
        spent = {axis: [row[axis] for row in rows] for axis in AXES}
        known = {a: [log(x) for x in xs] for a, xs in spent.items() if None not in xs}
        names = {}
        for axis in ("hours", "updates"):
            names[axis] = f"r{len(paths)}"
            paths.append(_path(names[axis], known[axis], loss, [row["spike"] for row in rows]))
        names |= {axis: names["updates"] for axis in ("tokens", "flops") if axis in known}
        spikes = [(i, row["spike"]) for i, row in enumerate(rows) if row["spike"] is not None]
        ends = {axis: xs[-1] for axis, xs in known.items()}
        found.append(_Run(ends, names, known, loss, spikes))
    return found


def _path(name: str, log_x: list[float], loss: list[float], spike: list[float | None]) -> Path:
    x = [round(1000 * (one - log_x[-1])) for one in log_x]
    low = [round(1000 * one) for one in loss]
    high = [
        max(a, round(1000 * b)) if b is not None else a for a, b in zip(low, spike, strict=True)
    ]
    band = ""
    if high != low:
        ring = [*zip(x, high, strict=True), *reversed([*zip(x, low, strict=True)])]
        band = f"M{_points(ring)}z"
    return Path(name=name, line=f"M{_points(zip(x, low, strict=True))}", band=band)


def _points(points: Iterable[tuple[int, int]]) -> str:
    return "L".join(f"{x} {y}" for x, y in points)


def _view(
    contest: Contest, cell: Cell, axis: str, shown: str, drawn: dict[str, list[_Run]]
) -> View | None:
    runs = [(name, run) for name, own in drawn.items() for run in own if axis in run.paths]
    if not runs:
        return None
    high = max(run.ends[axis] for _, run in runs)
    low = max(high - log(RANGES[shown]), min(run.log_spent[axis][0] for _, run in runs))
    if high - low < 1e-6:
        low = high - log(2)
    inside = [
        [loss for x, loss in zip(run.log_spent[axis], run.loss, strict=True) if x >= low - 1e-9]
        for _, run in runs
    ]
    inside = [losses for losses in inside if losses]  # some runs end before the range
    least = min(min(losses) for losses in inside)
    top = max(median(losses[0] for losses in inside), least + 0.02)
    bottom, top = least - 0.06 * (top - least), top + 0.02 * (top - least)

    def across(log_x: float) -> float:
        return 1000 * (log_x - low) / (high - low)

    def down(loss: float) -> float:
        return 1000 * (top - loss) / (top - bottom)

    uses = tuple(
        Use(
            path=run.paths[axis], attention=name, log_end=run.ends[axis],
            transform=f"matrix({1 / (high - low):.6g} 0 0 {-1 / (top - bottom):.6g} "
            f"{across(run.ends[axis]):.2f} {1000 * top / (top - bottom):.2f})",
            has_band=bool(run.spikes),
            is_first=run is drawn[name][0],
        )
        for name, run in runs
    )  # fmt: skip
    losses = {name: float(np.mean([run.loss[-1] for run in own])) for name, own in drawn.items()}
    edges = {name: of[cell] for name, of in contest.edges.get(axis, {}).items() if cell in of}
    end = {name: max(run.ends[axis] for run in own) for name, own in drawn.items()}
    return View(
        axis=axis,
        range=shown,
        label=f"Training loss over {AXES[axis]}, {words.at(cell)}: "
        + ", ".join(f"{name} ends at {loss:.3f}" for name, loss in losses.items()),
        x_label=LABELS[axis],
        low=low,
        high=high,
        bottom=bottom,
        top=top,
        uses=uses,
        x_ticks=tuple(Mark(at=across(log(x)), text=_tick(x, axis)) for x in _log_ticks(low, high)),
        y_ticks=tuple(
            Mark(at=down(y), text=text) for y, text in _ticks(bottom, top) if 30 < down(y) < 985
        ),
        ends=_apart(
            Mark(at=min(max(down(loss), 0), 985), text=f"{loss:.3f}", attention=name)
            for name, loss in losses.items()
        ),
        spikes=_spikes(runs, axis, across, top),
        compared=tuple(
            Mark(
                at=across(log(edge.spent) if edge.spent else min(end[name], end[contest.baseline])),
                text=_said(edge), attention=name,
            )
            for name, edge in edges.items()
            if name in end and contest.baseline in end
        ),
    )  # fmt: skip


def _said(edge: Edge) -> str:
    return f"gap {words.signed(edge.gap, words.digits(edge))}"


def _spikes(runs: list[tuple[str, _Run]], axis: str, across, top: float) -> tuple[Mark, ...]:
    """Spikes above the frame, the highest within a distance."""
    found = [
        Mark(at=across(run.log_spent[axis][i]), text=f"{height:.1f}", attention=name)
        for name, run in runs
        for i, height in run.spikes
        if height > top > run.loss[i]
    ]
    kept: list[Mark] = []
    for mark in sorted(found, key=lambda m: -float(m.text)):
        if mark.at >= 0 and all(abs(mark.at - other.at) > LETTERS for other in kept):
            kept.append(mark)
    return tuple(kept)


def _apart(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    """Labels moved so far that none covers another."""
    placed: list[Mark] = []
    for mark in sorted(marks, key=lambda m: m.at):
        at = max(mark.at, placed[-1].at + LETTERS) if placed else mark.at
        placed.append(Mark(at=at, text=mark.text, attention=mark.attention))
    over = max(placed[-1].at - 985, 0)
    return tuple(Mark(at=m.at - over, text=m.text, attention=m.attention) for m in placed)


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    raw = (high - low) / 5
    power = 10 ** floor(log10(raw))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= raw)
    n = max(0, -floor(log10(step)))
    first = int(-(-low // step))
    return [(i * step, f"{i * step:.{n}f}") for i in range(first, int(high // step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(floor(low / log(10)), floor(high / log(10)) + 1)
    every = [k * 10.0**p for p in powers for k in (1, 2, 5)]
    return [x for x in every if low - 1e-9 <= log(x) <= high + 1e-9]


def _tick(value: float, axis: str) -> str:
    if axis == "flops":
        power = floor(log10(value) + 1e-9)
        return f"{round(value / 10**power)}e{power}"
    if axis == "hours" and value < 1e-2:
        return f"{3600 * value:.3g} s"
    return short(value) if value >= 1 else f"{value:g}"


def _place(contest: Contest, number: int, cell: Cell, known: Iterable[int], most: float) -> Place:
    values = []
    for axis, of in contest.edges.items():
        for candidate in contest.candidates:
            edge = of.get(candidate, {}).get(cell)
            if edge is None:
                why = contest.why.get((candidate, cell), "not run")
                values.append(Value(axis=axis, candidate=candidate, text="", said=why, leader="",
                                    share=0))  # fmt: skip
                continue
            leader = {"ahead": candidate, "behind": contest.baseline, "undecided": ""}[edge.side]
            values.append(
                Value(
                    axis=axis, candidate=candidate,
                    text=words.signed(edge.gap, words.digits(edge)),
                    said=f"{candidate} {edge.side}, {words.gap(edge)}", leader=leader,
                    share=round(12 + 38 * min(abs(edge.gap) / (most or 1.0), 1)),
                )
            )  # fmt: skip
    return Place(
        cell=number, title=words.at(cell), has_curves=number in known,
        is_planned=cell in contest.planned, values=tuple(values),
    )  # fmt: skip


def colours(names: Iterable[str], palette: dict[str, str]) -> dict[str, tuple[str, str]]:
    """For each attention its colour on light and on dark paper, moved towards black or white until
    text in it has a contrast of 4.6 against the wells of ``page.css``."""
    return {
        name: (
            _readable(palette[name], "#eef0f2", "#000000"),
            _readable(palette[name], "#272b31", "#ffffff"),
        )
        for name in names
    }


def _readable(colour: str, paper: str, ink: str) -> str:
    rgb, towards = _rgb(colour), _rgb(ink)
    for step in range(101):
        mixed = [a + (b - a) * step / 100 for a, b in zip(rgb, towards, strict=True)]
        if _contrast(mixed, _rgb(paper)) >= 4.6:
            return "#" + "".join(f"{round(255 * value):02x}" for value in mixed)
    return ink


def _rgb(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def _contrast(one: list[float], two: list[float]) -> float:
    """As the Web Content Accessibility Guidelines 2.2 define it."""

    def luminance(rgb: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else exp(2.4 * log((c + 0.055) / 1.055)) for c in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(two)))
    return (light + 0.05) / (dark + 0.05)
