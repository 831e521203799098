"""The answer of a study in words: who is ahead, how sure that is, and what to run next.

The facts are computed here from the numbers of ``contest`` and of the store; ``answer.j2`` has the
sentences. A sentence about a gap says which noise was measured, or which seed variance it assumes.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from math import ceil, inf
from statistics import fmean, median
from typing import Any

from lmscaling.config import study_file
from lmscaling.fits.noise import FEWEST_DEGREES
from lmscaling.formatting import short
from lmscaling.report import scores, timing, words
from lmscaling.report.contest import AXES, Cell, Contest, Edge, Evidence, Row
from lmscaling.report.scores import FAILED, Score
from lmscaling.report.sentences import Sentences
from lmscaling.report.timing import KINDS, Timing, Timings

SIGNS = {"ahead": "▲", "behind": "▼", "undecided": "◆", "": ""}
MOST_SEEDS = 20
"""More seeds are not advised."""
FEW = 3
"""Cells and attentions that are named; more are counted."""
FLOOR = "FROM floor_counts WHERE name = '3-gram' AND cells > 0"
"""The cells that a table of 3-grams is ahead of."""
NO_LAW = """
    SELECT why FROM surfaces WHERE NOT EXISTS (FROM surfaces WHERE drawn IS NOT NULL)
    GROUP BY why ORDER BY count(*) DESC LIMIT 1
"""
"""Why no law of the loss was fitted."""
OPTIMUM = """
    SELECT budget, best, p, p_low, p_high, p_assumed FROM best_sizes
    WHERE unit = 'flops' AND least(best, p) IS NOT NULL ORDER BY budget DESC LIMIT 1
"""
"""The best size of the largest compute, and the exponent of its growth."""
TO_COME = ("pending", "running", "interrupted", "held")


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
class Answer:
    """What the page says first."""

    question: str
    heading: str
    lede: tuple[str, ...]
    tiles: tuple[Tile, ...]
    """Of the only candidate; several are compared by a figure."""
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
    verdicts: Iterable[str] = (),
    rate_warnings: Iterable[str] = (),
    stale: int = 0,
    damaged: Sequence[str] = (),
    mixed: Sequence[Row] = (),
    stalled: Row | None = None,
    floor: Row | None = None,
    no_law: Row | None = None,
    optimum: Row | None = None,
) -> Answer:
    """The answer.

    Args:
        contest: The gaps.
        evidence: What they were computed from.
        budget: The budget of a run, in words.
        command: What runs the study again; empty of published numbers.
        verdicts: Those on the claims of the literature.
        rate_warnings: What makes the comparison unfair, see ``rates.warnings``.
        stale: Runs that other code of their attention or model has trained.
        damaged: What is not whole in the study, a sentence each.
        mixed: The rows of ``question.MIXED``.
        stalled: The row of ``question.STALLED``, if there is one.
        floor: The row of ``FLOOR``, if there is one.
        no_law: The row of ``NO_LAW``, if there is one.
        optimum: The row of ``OPTIMUM``, if there is one.
    """
    timings = {
        (kind, candidate): timing.compare(evidence.speeds, kind, candidate, contest.baseline)
        for kind in KINDS
        for candidate in contest.candidates
    }
    wanted, todo = _wanted(contest, evidence.cells, command)
    says = Sentences(
        "answer", words=words, join_names=words.join_names, counted=_counted, axes=AXES, few=FEW,
        most_seeds=MOST_SEEDS, failures=FAILED, to_come=TO_COME, budget=budget, command=command,
        wanted=wanted, verdicts=[*verdicts], rate_warnings=rate_warnings, stale=stale,
        damaged=damaged, mixed=mixed, stalled=stalled, floor=floor or {"above": 0},
        no_law=no_law, optimum=optimum, short=short, widest=contest.widest,
        **_facts(contest, evidence, timings),
    )  # fmt: skip
    head, scored = scores.of(contest, evidence.cells, timings)
    untold = (entry.split(": ", 1) for entry in says.all("untold"))
    return Answer(
        question=says.one("question"),
        heading=says.one("heading"),
        lede=tuple(says.all("lede")),
        tiles=_tiles(says, contest, timings),
        next=tuple(says.all("next")),
        command=todo,
        untold=tuple((what, why) for what, why in untold),
        score_head=head,
        scores=scored,
    )


def _facts(contest: Contest, evidence: Evidence, timings: Timings) -> dict[str, Any]:
    """What the sentences of the page are made of, but those of the tiles."""
    edges = contest.edges[contest.axis]
    gaps = [edge for of in edges.values() for edge in of.values()]
    lone = [edge for edge in gaps if not edge.is_tested]
    order = _best_first(contest)
    known = [name for name in order if name in edges]
    widest = {name: of[contest.widest] for name, of in edges.items() if contest.widest in of}
    missing = Counter(
        why
        for (name, cell), why in contest.why.items()
        if cell in contest.planned and cell not in edges.get(name, {})
    )
    timed = {kind for (kind, _), found in timings.items() if found}
    return {
        "names": [contest.baseline, *contest.candidates],
        "base": contest.baseline,
        "source": contest.source,
        "axis": AXES[contest.axis],
        "compared": [*contest.edges],
        "sizes": [*contest.sizes],
        "order": order,
        "ranked": sorted(widest, key=lambda name: widest[name].gap),
        "tallies": {name: contest.tally(name, contest.axis) for name in order},
        "cells": [row for row in evidence.cells if not row["skipped"]],
        "speeds": evidence.speeds,
        "edges": edges,
        "gaps": gaps,
        "lone": lone,
        "tested": [edge for edge in gaps if edge.is_tested],
        "firm": sum(abs(edge.gap) > 1.96 * 10 * edge.spread.error for edge in lone),
        "reaches": [_reach(contest, name, edges[name]) for name in known if len(order) == 1],
        "cost": _cost(contest, known[0]) if len(known) == 1 else None,
        "missing": missing.most_common(FEW),
        "untimed": [what for kind, what in KINDS.items() if order and kind not in timed],
    }


def _counted(rows: Iterable[Row], column: str) -> list[tuple[Any, int]]:
    return Counter(row[column] for row in rows).most_common()


def _best_first(contest: Contest) -> list[str]:
    """Candidates by cells won less cells lost, then by their mean gap; those without a gap last."""
    known = contest.edges[contest.axis]

    def key(name: str) -> tuple[bool, int, float]:
        tally = contest.tally(name, contest.axis)
        gaps = [edge.gap for edge in known.get(name, {}).values()]
        return name not in known, tally["behind"] - tally["ahead"], fmean(gaps) if gaps else inf

    return sorted(contest.candidates, key=key)


def _reach(contest: Contest, name: str, edges: Mapping[Cell, Edge]) -> dict[str, Any]:
    """The gaps that are nearest to and farthest from 0, or the lowest and the highest."""
    near, *_, far = sorted(edges, key=lambda cell: edges[cell].gap) * 2
    if edges[near].gap > 0 or edges[far].gap < 0:
        near, far = sorted((near, far), key=lambda cell: abs(edges[cell].gap))
    digits = max(words.digits(edge) for edge in edges.values())
    mean = words.signed(fmean(edge.gap for edge in edges.values()), digits)
    found = contest.means.get(name)
    if found and found.get("gap_low") is not None and found["cells"] == len(edges):
        gap, low, high = (words.signed(found[end]) for end in ("gap", "gap_low", "gap_high"))
        mean = f"{gap} ({low} to {high})"
    return {"name": name, "cells": len(edges), "mean": mean, "near": near, "far": far,
            "least": edges[near], "most": edges[far]}  # fmt: skip


def _cost(contest: Contest, name: str) -> dict[str, Any] | None:
    """How much sooner one of the two reached the same loss; None if hardly."""
    ratios = contest.ratios(name)
    middle = median(ratios.values()) if ratios else 1.0
    first, second = (contest.baseline, name) if middle < 1 else (name, contest.baseline)
    middle = max(middle, 1 / middle)
    if middle < 1.05:
        return None
    return {"first": first, "second": second, "ratio": middle, "cells": len(ratios)}


def _tiles(says: Sentences, contest: Contest, timings: Timings) -> tuple[Tile, ...]:
    """Of one candidate what it was compared by."""
    if len(contest.candidates) != 1 or not (contest.edges[contest.axis] or any(timings.values())):
        return ()
    (name,) = contest.candidates
    other = "updates" if contest.axis == "hours" else "hours"
    second = [axis for axis in (other, "flops") if contest.edges.get(axis, {}).get(name)]
    return (
        _loss_tile(says, contest, name, [contest.axis]),
        _loss_tile(says, contest, name, second or [other]),
        _time_tile(says, timings["time_step", name], "Time of a training step"),
        _time_tile(says, timings["time_decode", name], "Time to decode a token"),
    )


def _loss_tile(says: Sentences, contest: Contest, name: str, axes: list[str]) -> Tile:
    title = f"After equal {words.join_names([AXES[axis] for axis in axes])}"
    parts = []
    for axis in axes:
        edges = contest.edges.get(axis, {}).get(name, {}).values()
        if not edges:
            return Tile(
                title=title, side="", says="no data", text="No two runs are comparable here."
            )
        half = median(edge.spread.quantile() * edge.spread.error for edge in edges)
        assumed = [edge.spread.sd for edge in edges if not edge.is_tested]
        reason = f"if seeds differ by {max(assumed):.2g}" if assumed else "(95 %)"
        parts.append({
            "axis": AXES[axis], "record": says.one("record", name, contest.tally(name, axis)),
            "reach": words.span(edges), "sure": f"each ±{half:.2g} {reason}",
        })  # fmt: skip
    tally = contest.tally(name, axes[0])
    side = max(("undecided", "ahead", "behind"), key=lambda s: tally[s])
    side = "undecided" if tally["ahead"] == tally["behind"] else side
    return Tile(title=title, side=side, says=parts[0]["record"], text=says.one("losses", parts))


def _time_tile(says: Sentences, found: Timing | None, title: str) -> Tile:
    if found is None:
        text = "Not timed for both attentions, or only while other programs kept the core busy."
        return Tile(title=title, side="", says="no times", text=text)
    known: dict[int, list[float]] = defaultdict(list)
    for (_, context), ratio in sorted(found.ratios.items(), key=lambda item: item[0][1]):
        known[context].append(ratio.value)
    contexts = [*known]
    faster = {context: min(ratios) > 1 for context, ratios in known.items()}
    start = next((c for i, c in enumerate(contexts) if all(faster[d] for d in contexts[i:])), None)
    if start is not None:
        from_ = "throughout" if start == contexts[0] else f"from {words.format_context(start)}"
        side, verdict = "ahead", f"is faster {from_}"
    elif max(map(max, known.values())) < 1:
        side, verdict = "behind", "is slower throughout"
    else:
        side, verdict = "undecided", "is faster at some places"
    # The longest context at which as many sizes were timed as anywhere.
    most = max(map(len, known.values()))
    longest = max(context for context, ratios in known.items() if len(ratios) == most)
    ends = {context: known[context] for context in (contexts[0], longest)}
    spread = 100 * median((r.high - r.low) / 2 / r.value for r in found.ratios.values())
    text = says.one("timed", found, ends, spread)
    return Tile(title=title, side=side, says=f"{found.candidate.split()[0]} {verdict}", text=text)


def _wanted(contest: Contest, cells: list[Row], command: str) -> tuple[dict[str, Any], str]:
    """What to run next, and the command for the first of it."""
    goes_on = any(row["status"] in TO_COME for row in cells if not row["skipped"])
    edges = {
        (name, cell): edge
        for name, of in contest.edges[contest.axis].items()
        for cell, edge in of.items()
    }
    assumed = [key for key, edge in edges.items() if not edge.is_tested]
    needed = {
        key: edge.needed
        for key, edge in edges.items()
        if edge.is_tested and edge.side == "undecided"
    }
    found = {key: n for key, n in needed.items() if n and n <= MOST_SEEDS}
    # A few lone gaps can wait; where most have no measured noise, no contest is decided without it.
    is_noise = 2 * len(assumed) > len(edges) or bool(assumed and not needed)
    far = 0 if is_noise else sum(n is None or n > MOST_SEEDS for n in needed.values())
    wanted = {"is_noise": is_noise, "more": 0, "far": far, "open": len(needed)}
    key, n = None, 0
    if is_noise:
        key = min(assumed, key=lambda key: abs(edges[key].gap) / edges[key].spread.error)
        n = max(2, 1 + ceil(FEWEST_DEGREES / len(assumed)))
        wanted["more"] = n - min(edges[one].seeds for one in assumed)
    elif found:
        key = min(found, key=lambda key: found[key])
        n = max(found[key], edges[key].seeds + 1)
        wanted["more"] = n - edges[key].seeds
    if key:
        hours = _hours(cells) * wanted["more"]
        wanted |= {"name": key[0], "cell": key[1], "edge": edges[key], "hours": hours}
    if goes_on and command:
        return wanted, command
    of = [(name, *key[1]) for name in (key[0], contest.baseline)] if key else []
    skipped = {
        row["seed"]
        for row in cells
        if row["skipped"] and (row["attention"], row["size"], row["context"]) in of
    }
    free = (seed for seed in count() if seed not in skipped)
    seeds = sorted({*(row["seed"] for row in cells), *islice(free, n)})
    return wanted, _seeds_command(contest, command, seeds, key) if 0 < n <= MOST_SEEDS else ""


def _seeds_command(
    contest: Contest, command: str, seeds: list[int], closest: tuple[str, Cell] | None
) -> str:
    if command:
        return study_file.with_overrides(command, _set({"axes.seed": seeds}))
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
    return sum(row["hours"] for row in done) / (len({row["seed"] for row in done}) or 1)
