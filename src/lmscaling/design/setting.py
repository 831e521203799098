"""What a study asks, what its cells cost, and what its finished runs say."""

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np

from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.design.asked import KINDS, PAIRS, Asked, Candidate, Option
from lmscaling.design.draws import Known, Noise
from lmscaling.errors import UserError, choose
from lmscaling.fits import gaps, noise, optimum, points
from lmscaling.fits.uncertainty import codes
from lmscaling.store.build import build, connect

NEEDS = {
    "gap": (), "multiplier": ("size", "loss"), "crossing": ("size",), "beta": (), "a": (),
    "gamma": ("size",), "size": (),
}  # fmt: skip
"""Keys besides the context that a question must have."""
SIZES = {"beta": 3, "a": 3, "size": 2 * optimum.AROUND + 1}
"""Fewest sizes of a law."""
KEYS = ("context", "size", "attention", "loss")
BUDGETS = (1.0, 0.5, 0.25)
"""Of that of the study, for answers that do not depend on it."""
FEWEST_SHARES = 3
LATE = 5
"""Warm-ups after which the first point of a shorter budget comes; earlier losses follow no law."""

DONE = """
    SELECT DISTINCT attention, size, context, seed FROM known
    WHERE source = 'measured' AND branch IS NULL AND status IN ('done', 'out_of_tokens')
"""
FINAL = """
    SELECT attention, size, context, params, loss FROM final
    WHERE source = 'measured' AND status = 'done' AND isfinite(loss)
"""


Run = tuple[str, str, int, int]
"""Attention, size, context and seed."""


class Price(NamedTuple):
    """What a trunk costs, and the tokens that it reads."""

    cost: float
    tokens: float


@dataclass(frozen=True)
class Setting:
    """All that a proposal needs."""

    asked: Asked
    candidates: list[Candidate]
    options: list[Option]
    known: Known | None
    noise: Noise | None
    said: str
    """Where the truths come from."""
    finished: frozenset[Run] = frozenset()
    """Of the study, also those on which the answer does not depend."""


def ask(text: str, grid: Grid) -> Asked:
    """A question such as ``gap:context=4096,size=124M``.

    Raises:
        UserError: The kind is unknown, a key is missing or unknown, or its value is not in the
            study.
    """
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise UserError(f"--question {kind!r} is no kind of question; {choose(kind, KINDS)}")
    given: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, _, given[key] = part.partition("=")
    for key in given:
        if key not in KEYS:
            raise UserError(f"--question {text}: {key!r} is no key; {choose(key, KEYS)}")
    axes = grid.study.axes
    found: dict[str, Any] = {}
    for axis in ("context", "size", "attention"):
        allowed = [str(value) for value in axes.values(axis)]
        if axis in given and given[axis] not in allowed:
            raise UserError(
                f"--question {text}: {axis} {given[axis]!r} is not in the study; "
                f"{choose(given[axis], allowed)}"
            )
        only = allowed[0] if len(allowed) == 1 else None
        found[axis] = given.get(axis, only)
    loss = given.get("loss")
    for key in ("context", *NEEDS[kind]):
        if (loss if key == "loss" else found[key]) is None:
            example = "3.2" if key == "loss" else str(axes.values(key)[0])
            raise UserError(f"--question {text} needs a {key}; write {key}={example} after a comma")
    baseline = grid.study.compared_with
    others = [name for name in axes.values("attention") if name != baseline]
    if kind in PAIRS:
        if not others:
            raise UserError(
                f"--question {kind} compares two attentions, and the study has {baseline} only; "
                "add another to axes.attention"
            )
        if found["attention"] == baseline:
            raise UserError(
                f"--question {text}: attention {baseline!r} is the baseline, which the others are "
                f"compared with; {choose(baseline, others)}"
            )
    try:
        nats = None if loss is None or kind != "multiplier" else float(loss)
    except ValueError:
        raise UserError(
            f"--question {text}: loss {loss!r} is no number; write nats per token, as loss=3.2"
        ) from None
    default = others[0] if kind in PAIRS else baseline
    return Asked(
        kind=kind,
        attention=found["attention"] or default,
        reference=baseline if kind in PAIRS else "",
        size=found["size"] if kind in (*PAIRS, "gamma") else None,
        context=int(found["context"]),
        loss=nats,
    )


def setting(asked: Asked, grid: Grid, prices: Mapping[str, Price], results: Path) -> Setting:
    """Candidates, options, and what finished runs say of a question.

    Args:
        asked: The question.
        grid: The study.
        prices: By run of a trunk; cells without a price cannot run.
        results: ``results/<study>``, which need not exist.

    Raises:
        UserError: The study has too few cells for the question.
    """
    candidates = _candidates(asked, grid, prices)
    if not candidates:
        raise UserError(f"no cell of {asked} can run; run lmscaling plan to see why")
    sizes, fewest = len({one.size for one in candidates}), SIZES.get(asked.kind, 1)
    if sizes < fewest:
        raise UserError(
            f"{asked} needs at least {fewest} sizes that can run at this context, and the study "
            f"has {sizes}; add others to axes.size"
        )
    options = _options(asked, grid, min(one.tokens for one in candidates))
    if not any(results.glob("runs/*/run.json")):
        return Setting(asked, candidates, options, None, None, "the prior")
    with tempfile.TemporaryDirectory() as folder:
        build(results, Path(folder))
        with connect(Path(folder)) as db:
            finished = _finished(grid, db)
            known = _known(asked, bool(grid.study.branches), db)
            scatter = _noise(asked, db)
    candidates = [replace(one, seeds=_seeds(one, finished)) for one in candidates]
    if finished:  # a budget of its own would make them useless, and their branches stay
        shares = grid.study.branches.shares if grid.study.branches else ()
        options = [Option(1.0, tuple(sorted(shares)))]
    sources = [
        f"{len(np.unique(known.run))} finished runs" if known is not None else "the prior",
        f"noise of {scatter.sd:.3g} nats by its seeds" if scatter else "noise of the prior",
    ]
    return Setting(asked, candidates, options, known, scatter, ", ".join(sources), finished)


def _candidates(asked: Asked, grid: Grid, prices: Mapping[str, Price]) -> list[Candidate]:
    """One for each size and context that the answer can depend on."""
    names = (asked.reference, asked.attention) if asked.kind in PAIRS else (asked.attention,)
    cells: dict[tuple[str, int], dict[str, list[tuple[Cell, Price]]]] = defaultdict(dict)
    first: dict[tuple, int] = {}
    for run, cell in grid.cells.items():
        if cell.attention not in names or run not in prices:
            continue
        if asked.kind not in PAIRS and cell.context != asked.context:
            continue
        if asked.kind == "gamma" and cell.size != asked.size:
            continue
        if first.setdefault((cell.attention, cell.size, cell.context), cell.seed) == cell.seed:
            of_place = cells[cell.size, cell.context].setdefault(cell.attention, [])
            of_place.append((cell, prices[run]))
    found = []
    for (size, context), known in cells.items():
        if len(known) < len(names):
            continue
        model = next(iter(known.values()))[0][0].model
        width = model.d_model
        found.append(
            Candidate(
                attentions=names,
                size=size,
                context=context,
                params=model.n_layer * (12 * width**2 + 13 * width) + 2 * width,
                tokens=min(price.tokens for part in known.values() for _, price in part),
                cost=sum(price.cost for part in known.values() for _, price in part),
            )
        )
    return found


def _options(asked: Asked, grid: Grid, fewest: float) -> list[Option]:
    """Budgets and branches that the answer allows; the study's own first. ``fewest`` are tokens of
    a candidate."""
    study = grid.study
    shares = tuple(sorted(study.branches.shares)) if study.branches else ()
    if asked.kind == "size":
        return [Option(1.0, shares[-1:])]
    if asked.kind == "gap":
        return [Option()]
    sets = [()]
    if asked.kind not in PAIRS:
        thinner = shares[::-2][::-1], (shares[:1] + shares[1:-1][-1:] + shares[-1:])
        sets = [shares, *(one for one in thinner if len(set(one)) >= FEWEST_SHARES)]
    found = [Option(budget, one) for budget in BUDGETS for one in dict.fromkeys(sets)]
    return [one for one in found if one.budget == 1 or _holds(grid, one, fewest)]


def _holds(grid: Grid, option: Option, fewest: float) -> bool:
    """Whether the first point of a shorter budget comes well after the warm-up."""
    cell = next(iter(grid.cells.values()))
    updates = fewest / cell.update_tokens * float(option.points.min())
    return updates >= LATE * max(cell.optimizer.warmup_updates, 1)


def _finished(grid: Grid, db: duckdb.DuckDBPyConnection) -> frozenset[Run]:
    """Trunks of the study that have spent their budget or their text."""
    planned = {(c.attention, c.size, c.context, c.seed) for c in grid.cells.values()}
    return frozenset(planned.intersection(db.sql(DONE).fetchall()))


def _seeds(one: Candidate, finished: frozenset[Run]) -> tuple[int, ...]:
    """Seeds that all attentions of a candidate have finished."""
    of_each = (
        {run[3] for run in finished if run[:3] == (name, one.size, one.context)}
        for name in one.attentions
    )
    return tuple(sorted(set.intersection(*of_each)))


def _known(asked: Asked, decayed: bool, db: duckdb.DuckDBPyConnection) -> Known | None:
    """Losses of finished runs of the reference, or of the one attention."""
    name = asked.reference or asked.attention
    schedule = "decayed" if decayed and asked.kind not in PAIRS else "constant"
    found = [
        point
        for point in points.read(db.sql(points.QUERY).fetchall())
        if (point.source, point.schedule) == ("measured", schedule)
        and (point.attention, point.context) == (name, asked.context)
    ]
    if not found:
        return None
    N, D, loss = (np.array([getattr(p, f) for p in found]) for f in ("params", "tokens", "loss"))
    return Known(np.log(N), np.log(D), loss, codes(point.trunk for point in found))


def _noise(asked: Asked, db: duckdb.DuckDBPyConnection) -> Noise | None:
    """The scatter that the report would use, if seeds have shown it."""
    if asked.kind in PAIRS:
        known = [
            gap.spread
            for gap in gaps.compare(db.sql(gaps.QUERY).fetchall())
            if gap.source == "measured" and gap.attention == asked.attention and gap.size
            if gap.spread is not None and gap.spread.assumed is None
        ]
    else:
        samples: dict[tuple, list[float]] = defaultdict(list)
        places = {}
        for attention, size, context, params, loss in db.sql(FINAL).fetchall():
            samples[attention, size, context].append(loss)
            places[attention, size, context] = noise.Place(params, context, attention)
        measured = noise.Noise.measure(samples, places)
        spreads = [measured.at(key) for key in samples if key[0] == asked.attention]
        known = [one for one in spreads if one.assumed is None]
    if not known:
        return None
    middle = sorted(known, key=lambda one: one.sd)[len(known) // 2]
    return Noise(middle.sd, middle.degrees)
