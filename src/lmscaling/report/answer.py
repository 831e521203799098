"""The answer of a study in words: verdicts, their uncertainty, what would decide, what is not told.

Every sentence follows from the numbers of ``contest`` and of the store. A sentence about a gap says
which noise was measured, or which scatter it assumes.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from math import ceil
from statistics import median
from typing import Any

from lmscaling.config import study_file
from lmscaling.fits.noise import FEWEST_DEGREES
from lmscaling.report import timing, words
from lmscaling.report.contest import AXES, Cell, Contest, Edge, Evidence, Row
from lmscaling.report.question import join_names
from lmscaling.report.table import format_context
from lmscaling.report.timing import Timing

SIGNS = {"ahead": "▲", "behind": "▼", "undecided": "◆", "": ""}
MOST_SEEDS = 20
"""More seeds are not advised."""
FEW = 3
"""Cells that are named; more are counted."""
EMPTY = ("not told", "not timed")
"""What a tile says that has no numbers."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One verdict of a candidate."""

    title: str
    side: str
    """``ahead``, ``behind``, ``undecided`` or, without numbers, empty."""
    says: str
    text: str

    @property
    def sign(self) -> str:
        return SIGNS[self.side]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A row of the scoreboard: texts with the numbers by which they are sorted."""

    attention: str
    size: str
    cells: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the page says first."""

    question: str
    heading: str
    lede: tuple[str, ...]
    tiles: tuple[tuple[str, tuple[Tile, ...]], ...]
    """By candidate."""
    next: tuple[str, ...]
    command: str
    untold: tuple[tuple[str, str], ...]
    score_head: tuple[tuple[str, str], ...]
    scores: tuple[Score, ...]


def write(
    contest: Contest,
    evidence: Evidence,
    budget: str,
    command: str,
    warnings: Iterable[tuple[str, str]] = (),
) -> Answer:
    """The answer.

    Args:
        contest: The gaps.
        evidence: What they were computed from.
        budget: The budget of a run, in words.
        command: What runs the study again; empty of published numbers.
        warnings: Further entries of what is not told.
    """
    timings = {
        (kind, candidate): timing.compare(evidence.speeds, kind, candidate, contest.baseline)
        for kind in ("time_step", "time_decode")
        for candidate in contest.candidates
    }
    steps, todo = _next(contest, evidence.cells, command)
    head, scores = _scores(contest, evidence.cells, timings)
    return Answer(
        question=_question(contest, budget),
        heading=heading(contest, evidence.cells),
        lede=_lede(contest),
        tiles=_all_tiles(contest, timings),
        next=steps,
        command=todo,
        untold=(*_untold(contest, evidence, timings), *warnings),
        score_head=head,
        scores=scores,
    )  # fmt: skip


def heading(contest: Contest, cells: list[Row]) -> str:
    """The verdict on each candidate, the best one first."""
    known = contest.edges[contest.axis]
    if not any(row["status"] == "done" for row in cells):
        planned = [row for row in cells if not row["skipped"]]
        return f"No run has finished: {_statuses(planned)}."
    if not contest.candidates:
        return f"{contest.baseline} was trained alone: there is nothing to compare."
    order = _best_first(contest)
    shown = order if len(order) <= FEW else order[: FEW - 1]
    parts = [_verdict(contest, name, contest.tally(name, contest.axis)) for name in shown]
    if len(shown) < len(order):
        parts.append(f"{words.count(len(order) - len(shown))} others below")
    said = "; ".join(parts)
    if not known:
        return f"{said}."
    lone = [edge.seeds == 1 and not edge.is_tested for of in known.values() for edge in of.values()]
    seeds = ", by one seed each" if all(lone) else ""
    return f"After equal {AXES[contest.axis]}, {said}{seeds}."


def _best_first(contest: Contest) -> list[str]:
    """Candidates by cells won less cells lost, then by their mean gap; those without a gap last."""
    known = contest.edges[contest.axis]

    def key(name: str) -> tuple[bool, int, float]:
        tally = contest.tally(name, contest.axis)
        gap = _mean_gap(known.get(name, {}).values())
        return name not in known, tally["behind"] - tally["ahead"], gap

    return sorted(contest.candidates, key=key)


def _verdict(contest: Contest, name: str, tally: Counter[str]) -> str:
    base, n = contest.baseline, tally.total()
    if not n:
        return f"{name} is not yet compared with {base}"
    if n == 1:
        (cell,) = contest.edges[contest.axis][name]
        (side,) = tally
        said = {
            "ahead": f"{name} is ahead of {base}", "behind": f"{name} is behind {base}",
            "undecided": f"{name} cannot be told from {base}",
        }[side]  # fmt: skip
        return f"{said} at {words.at(cell)}"
    for side, said in (("ahead", f"ahead of {base}"), ("behind", f"behind {base}")):
        if tally[side] == n:
            return f"{name} is {said} in {'both' if n == 2 else f'all {words.count(n)}'} cells"
    if tally["undecided"] == n:
        return f"{name} cannot be told from {base} in any of {words.count(n)} cells"
    parts = []
    if tally["ahead"]:
        parts.append(f"ahead of {base} in {words.count(tally['ahead'])}")
    if tally["behind"]:
        where = f"behind {'' if tally['ahead'] else base + ' '}"
        parts.append(f"{where}in {words.count(tally['behind'])}")
    if tally["undecided"]:
        parts.append(f"undecided in {words.count(tally['undecided'])}")
    return f"{name} is {join_names(parts)} of {words.count(n)} cells"


def _mean_gap(edges: Iterable[Edge]) -> float:
    gaps = [edge.gap for edge in edges]
    return sum(gaps) / len(gaps) if gaps else float("inf")


def _question(contest: Contest, budget: str) -> str:
    names = [contest.baseline, *contest.candidates]
    if len(names) == 1:
        return f"Which loss does {names[0]} attention reach within {budget} a run?"
    return f"Which attention, {join_names(names, 'or')}, learns more within {budget} a run?"


def _lede(contest: Contest) -> tuple[str, ...]:
    """Where the gaps are smallest and largest, how sure they are, and what they cost."""
    known = contest.edges[contest.axis]
    order = [name for name in _best_first(contest) if name in known]
    said = [_range(contest, name, known[name]) for name in order[:FEW]]
    said += _sure([edge for edges in known.values() for edge in edges.values()])
    if len(order) == 1:
        said += _cost(contest, order[0])
    return tuple(said)


def _range(contest: Contest, name: str, edges: Mapping[Cell, Edge]) -> str:
    """The gaps that are nearest to and farthest from 0, or the lowest and the highest."""
    ordered = sorted(edges.items(), key=lambda item: item[1].gap)
    (near, least), (far, most) = ordered[0], ordered[-1]
    if least.gap > 0 or most.gap < 0:
        near, far = sorted((near, far), key=lambda cell: abs(edges[cell].gap))
    which = f"The loss of {name} minus that of {contest.baseline} is"
    if len(edges) == 1:
        return f"{which} {words.gap(edges[near])}."
    return (
        f"{which} {_mean(contest, name, edges)} on average, from {words.gap(edges[near])} at "
        f"{words.at(near)} to {_number(edges[far])} at {words.at(far)}."
    )


def _number(edge: Edge) -> str:
    """A gap with its interval, without what has been said of it."""
    text, assumes, _ = words.gap(edge).partition(" if seeds")
    return text + ")" * bool(assumes)


def _mean(contest: Contest, name: str, edges: Mapping[Cell, Edge]) -> str:
    mean = contest.means.get(name)
    if mean and mean.get("gap_low") is not None and mean["cells"] == len(edges):
        value, low, high = (words.signed(mean[end]) for end in ("gap", "gap_low", "gap_high"))
        return f"{value} ({low} to {high})"
    gaps = [edge.gap for edge in edges.values()]
    n = max(words.digits(edge) for edge in edges.values())
    return words.signed(sum(gaps) / len(gaps), n)


def _sure(edges: list[Edge]) -> list[str]:
    """What the uncertainty rests on, and what an assumed one would have to be."""
    assumed = [edge for edge in edges if not edge.is_tested]
    tested = [edge for edge in edges if edge.is_tested]
    said = []
    if tested:
        least, most = min(edge.seeds for edge in tested), max(edge.seeds for edge in tested)
        pairs = str(most) if least == most else f"{least} to {most}"
        rests = f"95 % intervals from {pairs} paired seeds a cell"
        if most == 1:
            rests = "95 % intervals from the seeds of cells around"
        corrected = f"; verdicts are corrected for {len(edges)} gaps" if len(edges) > 1 else ""
        said.append(f"{rests}{corrected}.")
    if assumed:
        sd = max(edge.spread.sd for edge in assumed)
        origin = assumed[0].spread.said.removeprefix("if seeds differ as in ")
        firm = sum(abs(edge.gap) > 1.96 * 10 * edge.spread.error for edge in assumed)
        lean = sum(edge.side != "undecided" for edge in assumed)
        lone = "No seed was repeated, so nothing measures the noise of a gap"
        if tested:
            lone = f"Nothing measures the noise of {words.many(len(assumed), 'other gap')}"
        said.append(
            f"{lone}; {sd:.2g} nats is assumed, as in {origin}. At that, {lean} of {len(assumed)} "
            f"gaps exceed chance; at ten times as much, {firm} still would."
        )
    return said


def _cost(contest: Contest, name: str) -> list[str]:
    """How much sooner one of the two reached the same loss."""
    ratios = [ratio for (candidate, _), ratio in contest.multipliers.items() if candidate == name]
    if not ratios:
        return []
    middle = median(ratios)
    first, second = (contest.baseline, name) if middle < 1 else (name, contest.baseline)
    middle = 1 / middle if middle < 1 else middle
    if middle < 1.05:
        return []
    return [
        f"To reach the same loss, {second} takes {middle:.2g} times the {AXES[contest.axis]} of "
        f"{first} (median over {words.many(len(ratios), 'cell')}, at the last loss of both)."
    ]


def _all_tiles(
    contest: Contest, timings: Mapping[tuple[str, str], Timing | None]
) -> tuple[tuple[str, tuple[Tile, ...]], ...]:
    """By candidate; of several candidates without the tiles that are empty for each."""
    if not contest.edges[contest.axis] and not any(timings.values()):
        return ()
    found = {name: _tiles(contest, name, timings) for name in _best_first(contest)}
    if len(found) > 1:
        columns = zip(*found.values(), strict=True)
        filled = [any(tile.says not in EMPTY for tile in column) for column in columns]
        found = {name: tuple(compress(tiles, filled)) for name, tiles in found.items()}
    return tuple(found.items())


def _tiles(
    contest: Contest, name: str, timings: Mapping[tuple[str, str], Timing | None]
) -> tuple[Tile, ...]:
    other = "updates" if contest.axis == "hours" else "hours"
    second = [axis for axis in (other, "flops") if contest.edges.get(axis, {}).get(name)]
    return (
        _loss_tile(contest, name, [contest.axis]),
        _loss_tile(contest, name, second or [other]),
        _time_tile(timings["time_step", name], "Time of a training step"),
        _time_tile(timings["time_decode", name], "Time to sample a token"),
    )


def _loss_tile(contest: Contest, name: str, axes: list[str]) -> Tile:
    title = f"After equal {join_names([AXES[axis] for axis in axes])}"
    known = {axis: contest.edges.get(axis, {}).get(name, {}) for axis in axes}
    if not any(known.values()):
        return Tile(title=title, side="", says="not told", text="No pair of curves shares it.")
    records = {
        axis: _record(Counter(edge.side for edge in edges.values()))
        for axis, edges in known.items()
    }
    first = records[axes[0]]
    reaches, sures = [], []
    for axis, edges in known.items():
        gaps = [edge.gap for edge in edges.values()]
        n = max(words.digits(edge) for edge in edges.values())
        low, high = words.signed(min(gaps), n), words.signed(max(gaps), n)
        half = median(edge.spread.quantile() * edge.spread.error for edge in edges.values())
        by = f"{AXES[axis]}{'' if records[axis] == first else f' {records[axis]}'}: "
        reach = low if low == high else f"{low} to {high}"
        reaches.append(f"{by if len(axes) > 1 else ''}{reach}")
        if all(edge.is_tested for edge in edges.values()):
            sures.append(f"each ±{half:.2g} (95 %)")
        else:
            sures.append(f"each ±{half:.2g} if seeds differ by {_assumed(edges.values()):.2g}")
    if len(set(sures)) > 1:
        sures = [f"{axis}, {sure}" for axis, sure in zip(map(AXES.get, axes), sures, strict=True)]
    text = _upper(f"{', '.join(reaches)} nats; {'; '.join(dict.fromkeys(sures))}.")
    tally = Counter(edge.side for edge in known[axes[0]].values())
    side = max(("undecided", "ahead", "behind"), key=lambda s: tally[s])
    side = "undecided" if tally["ahead"] == tally["behind"] else side
    return Tile(title=title, side=side, says=first, text=text)


def _assumed(edges: Iterable[Edge]) -> float:
    return max(edge.spread.sd for edge in edges if not edge.is_tested)


def _record(tally: Counter[str]) -> str:
    n = tally.total()
    said = {"ahead": "wins", "behind": "loses", "undecided": "undecided in"}
    if n == 1:
        return {"ahead": "wins", "behind": "loses", "undecided": "undecided"}[next(iter(tally))]
    parts = [f"{said[side]} {tally[side]}" for side in said if tally[side]]
    return f"{', '.join(parts)} of {n}"


def _time_tile(found: Timing | None, title: str) -> Tile:
    if found is None:
        return Tile(title=title, side="", says="not timed", text="No time of both was measured.")
    contexts = sorted({context for _, context in found.ratios})
    by_context = {
        context: [ratio for (_, c), ratio in found.ratios.items() if c == context]
        for context in contexts
    }
    faster = {c: all(ratio.value > 1 for ratio in known) for c, known in by_context.items()}
    slower = {c: all(ratio.value < 1 for ratio in known) for c, known in by_context.items()}
    start = next((c for i, c in enumerate(contexts) if all(faster[d] for d in contexts[i:])), None)
    if start == contexts[0]:
        side, says = "ahead", "faster throughout"
    elif start is not None:
        side, says = "ahead", f"faster from {format_context(start)}"
    elif all(slower.values()):
        side, says = "behind", "slower throughout"
    else:
        side, says = "undecided", "faster at some places"
    ends = dict.fromkeys([contexts[0], _longest(by_context)])
    parts = [
        f"{words.times(ratio.value for ratio in by_context[c])} at {format_context(c)}"
        for c in ends
    ]
    if found.is_repeated:
        spreads = [(r.high - r.low) / 2 / r.value for r in found.ratios.values()]
        sure = f"quartiles ±{100 * median(spreads):.0f} %"
    else:
        sure = "timed once"
    names = f"{found.candidate} against {found.baseline}"
    source = ", published" if found.source == "published" else ""
    return Tile(
        title=title, side=side, says=says, text=f"{', '.join(parts)}; {sure}. {names}{source}."
    )


def _longest(by_context: Mapping[int, list[Any]]) -> int:
    """The longest context at which as many sizes were timed as anywhere."""
    most = max(len(known) for known in by_context.values())
    return max(context for context, known in by_context.items() if len(known) == most)


def _next(contest: Contest, cells: list[Row], command: str) -> tuple[tuple[str, ...], str]:
    """What would decide the rest, and the command for the first of it."""
    said, todo = [], ""
    unfinished = [
        row for row in cells
        if not row["skipped"] and row["status"] in ("pending", "running", "interrupted", "held")
    ]  # fmt: skip
    if unfinished and command:
        todo = command
        said.append(
            f"{_upper(words.many(len(unfinished), 'cell'))} to be trained "
            f"({_statuses(unfinished)}): the command below goes on."
        )
    edges = {
        (name, cell): edge
        for name, of in contest.edges[contest.axis].items()
        for cell, edge in of.items()
    }
    if not edges:
        return tuple(said), todo
    seeds = sorted({row["seed"] for row in cells})
    assumed = {key: edge for key, edge in edges.items() if not edge.is_tested}
    open_edges = {
        key: edge for key, edge in edges.items() if edge.is_tested and edge.side == "undecided"
    }
    wanted = 0
    # A few lone gaps can wait; where most have no measured noise, no contest is decided without it.
    if 2 * len(assumed) > len(edges) or (assumed and not open_edges):
        wanted = max(2, 1 + ceil(FEWEST_DEGREES / len(assumed)))
        more = wanted - min(edge.seeds for edge in assumed.values())
        hours = _hours(cells) * more
        said.append(
            f"{_upper(words.many(more, 'more seed'))} in every cell would measure the noise that "
            f"is assumed here{_price(hours)}."
        )
        key = min(assumed, key=lambda key: abs(edges[key].gap) / edges[key].spread.error)
        here = " The command trains it anew." if contest.source == "published" else ""
        said.append(
            f"The closest contest is {words.at(key[1])}, {_number(edges[key])}: "
            + _needs(edges[key])
            + here
        )
    elif open_edges:
        needed = {key: edge.needed for key, edge in open_edges.items()}
        known = {key: n for key, n in needed.items() if n}
        if known:
            key = min(known, key=lambda key: known[key])
            wanted = max(known[key], edges[key].seeds + 1)
            more = wanted - edges[key].seeds
            said.append(
                f"{_upper(words.many(more, 'more seed'))} would decide {words.at(key[1])} of "
                f"{key[0]}, the easiest of {words.many(len(open_edges), 'open contest')}, if the "
                f"gap is the one measured (power 80 %){_price(_hours(cells) * more)}."
            )
        far = [key for key, n in needed.items() if n is None or n > MOST_SEEDS]
        if far:
            said.append(
                f"{_upper(words.many(len(far), 'contest'))} would take more than {MOST_SEEDS} "
                "seeds."
            )
    if wanted and not todo and wanted <= MOST_SEEDS:
        todo = _seeds_command(contest, command, sorted({*seeds, *range(wanted)}))
    return tuple(said), todo


def _needs(edge: Edge) -> str:
    needed = edge.needed
    if needed is None:
        return "a gap so small that no number of seeds up to 1,000 would find it."
    n = max(needed, 2)
    return f"{words.many(n, 'seed')} would find a gap of this size (power 80 %)."


def _seeds_command(contest: Contest, command: str, seeds: list[int]) -> str:
    if command:
        return study_file.with_overrides(command, _set({"axes.seed": seeds}))
    closest = contest.closest
    if closest is None or contest.source != "published":
        return ""
    size, context = closest[1]
    one = {"axes.size": [size], "axes.context": [context], "axes.seed": seeds}
    # What the study skips may be no cell of these, and none of the rest is asked for.
    rest = {"skip": [], "branches": None, "speed": None}
    return study_file.with_overrides("snakemake --cores all", _set(one | rest))


def _set(values: Mapping[str, Any]) -> list[str]:
    """Values as texts of ``--set``."""
    return [f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in values.items()]


def _hours(cells: list[Row]) -> float:
    """Hours of training of one seed of all finished cells."""
    done = [row for row in cells if row["status"] == "done" and row["hours"]]
    seeds = len({row["seed"] for row in done}) or 1
    return sum(row["hours"] for row in done) / seeds


def _price(hours: float) -> str:
    if hours >= 1.5:
        return f", {hours:,.0f} hours of training"
    return f", {words.many(max(round(60 * hours), 1), 'minute')} of training" if hours else ""


def _untold(
    contest: Contest, evidence: Evidence, timings: Mapping[tuple[str, str], Timing | None]
) -> tuple[tuple[str, str], ...]:
    """What the study cannot answer, and why."""
    cells = [row for row in evidence.cells if not row["skipped"]]
    edges = [e for of in contest.edges[contest.axis].values() for e in of.values()]
    said = []
    if lone := sum(not edge.is_tested for edge in edges):
        said.append((
            "How much seeds differ",
            f"{lone} of {len(edges)} gaps {'rests' if lone == 1 else 'rest'} on one pair of runs, "
            "and no cell near enough has several.",
        ))  # fmt: skip
    failed = [row for row in cells if row["status"] in ("diverged", "exploded")]
    if failed:
        counts = Counter(row["attention"] for row in failed)
        said.append((
            "What failed runs would have reached",
            join_names([f"{name} {_of(n, cells, name)}" for name, n in counts.items()])
            + f" diverged or exploded: {_named(failed)}. They have no final loss.",
        ))  # fmt: skip
    broken = [
        row for row in cells
        if row["status"] not in ("done", "diverged", "exploded")
    ]  # fmt: skip
    if broken:
        said.append((
            "Cells without a result",
            f"{_upper(_statuses(broken))}: {_named(broken)}.",
        ))  # fmt: skip
    missing = Counter(
        contest.why[key] for key in contest.why
        if key[1] in contest.planned and key[1] not in contest.edges[contest.axis].get(key[0], {})
    )  # fmt: skip
    if missing and edges:
        reasons = "; ".join(f"{n} {reason}" for reason, n in missing.most_common(FEW))
        said.append(("Cells without a comparison", f"{reasons}."))
    rates = {row["lr_scale"] for row in cells if row["lr_scale"] is not None}
    if contest.candidates and len(rates) < 3 and contest.source == "measured":
        said.append((
            "Whether another learning rate would turn a verdict",
            f"{_upper(words.many(len(rates), 'rate'))} a size; three or more bracket the best one "
            "(axes.lr_scale).",
        ))  # fmt: skip
    kinds = {"time_step": "training steps", "time_decode": "sampling"}
    untimed = [
        what for kind, what in kinds.items()
        if contest.candidates and not any(timings[kind, c] for c in contest.candidates)
    ]  # fmt: skip
    if untimed:
        said.append((
            f"Speed of {join_names(untimed)}",
            "Not timed for both attentions; a section speed: in the study file times them.",
        ))  # fmt: skip
    lacking = [AXES[axis] for axis in AXES if axis not in contest.edges]
    if lacking and edges:
        said.append((
            f"Gaps after equal {join_names(lacking)}",
            "Not counted for these runs, or the learning rate decays, so that only ends compare.",
        ))  # fmt: skip
    untrained = sorted(
        {row["size"] for row in evidence.speeds if row["size"]} - set(contest.sizes)
    ) if contest.source == "published" else []  # fmt: skip
    if untrained:
        said.append((f"Losses of {join_names(untrained)}", "Timed, but never trained."))
    if contest.source == "published":
        said.append((
            "Validation loss and compute",
            "The published files hold training losses only and name no learning-rate schedule. "
            "FLOPs are counted from the shapes of the models, in chunks of 64 tokens.",
        ))  # fmt: skip
    return tuple(said)


def _of(n: int, cells: list[Row], name: str) -> str:
    return f"{n} of {sum(row['attention'] == name for row in cells)}"


def _named(rows: list[Row]) -> str:
    names = [row["name"] for row in rows]
    rest = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + rest


def _statuses(rows: list[Row]) -> str:
    counts = Counter(row["status"].replace("_", " ") for row in rows)
    return ", ".join(f"{n} {status}" for status, n in counts.most_common())


def _scores(
    contest: Contest, cells: list[Row], timings: Mapping[tuple[str, str], Timing | None]
) -> tuple[tuple[tuple[str, str], ...], tuple[Score, ...]]:
    """One row for each attention and size that has a finished run; columns without any value are
    left out."""
    axis = AXES[contest.axis]
    head = [
        ("best loss", "nats per token"), ("at context", "tokens"),
        (f"gap to {contest.baseline}", "nats, over contexts"), ("won", "cells"),
        ("open", "cells"), ("lost", "cells"),
        (f"{contest.baseline} needs", f"times the {axis}, median"),
        ("step", "times as fast, longest"), ("sampling", "times as fast, longest"),
        ("spikes", "per 10,000 updates"), ("failed", "runs"),
    ]  # fmt: skip
    rows = []
    for size in contest.sizes:
        for name in (contest.baseline, *contest.candidates):
            own = [r for r in cells if r["size"] == size and r["attention"] == name]
            if any(row["status"] == "done" for row in own):
                rows.append((name, size, _score(contest, name, size, own, timings)))
    kept = [i for i in range(len(head)) if any(cells[i][0] for *_, cells in rows)]
    return tuple(head[i] for i in kept), tuple(
        Score(attention=name, size=size, cells=tuple(values[i] for i in kept))
        for name, size, values in rows
    )


def _score(
    contest: Contest, name: str, size: str, rows: list[Row],
    timings: Mapping[tuple[str, str], Timing | None],
) -> list[tuple[str, float | None]]:  # fmt: skip
    empty: tuple[str, None] = ("", None)
    by_context: dict[int, list[float]] = {}
    for row in rows:
        if row["loss"] is not None and row["is_final"]:
            by_context.setdefault(row["context"], []).append(row["loss"])
    means = {context: sum(known) / len(known) for context, known in by_context.items()}
    best = min(means, key=lambda c: means[c], default=None)
    values: list[tuple[str, float | None]] = [empty, empty]
    if best is not None:
        values = [(f"{means[best]:.3f}", means[best]), (format_context(best), best)]
    edges = {c: e for c, e in contest.edges[contest.axis].get(name, {}).items() if c[0] == size}
    if name == contest.baseline or not edges:
        values += [("baseline" if name == contest.baseline else "", None), *[empty] * 3]
    else:
        n = max(words.digits(edge) for edge in edges.values())
        gaps = sorted(edge.gap for edge in edges.values())
        low, high = words.signed(gaps[0], n), words.signed(gaps[-1], n)
        tally = Counter(edge.side for edge in edges.values())
        values.append((low if low == high else f"{low} to {high}", median(gaps)))
        values += [(str(tally[s]), tally[s]) for s in ("ahead", "undecided", "behind")]
    ratios = [
        ratio
        for (candidate, cell), ratio in contest.multipliers.items()
        if candidate == name and cell[0] == size
    ]
    values.append(
        (f"{words.ratio(median(ratios))}{words.TIMES}", median(ratios)) if ratios else empty
    )
    for kind in ("time_step", "time_decode"):
        found = timings.get((kind, name))
        own = {c: r.value for (s, c), r in found.ratios.items() if s == size} if found else {}
        longest = max(own, default=0)
        values.append(
            (f"{words.ratio(own[longest])}{words.TIMES} at {format_context(longest)}", own[longest])
            if own
            else empty
        )
    updates = sum(row["updates"] or 0 for row in rows if row["spikes"] is not None)
    spikes = sum(row["spikes"] or 0 for row in rows)
    values.append((f"{1e4 * spikes / updates:.2g}", spikes / updates) if updates else empty)
    failed = sum(row["status"] in ("diverged", "exploded") for row in rows)
    values.append((str(failed), failed) if failed else empty)
    return values


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
