"""Who is ahead: each attention against the baseline, after equal spending, in every cell.

A cell is a size and a context. On the axis of the budget the gap is that of the final losses, the
table ``gaps``, unless the runs of a source ended after unequal hours. Elsewhere it is the gap of
the curves after as much as both have spent, ``curve_gaps``. Gaps of several seeds are tested
and corrected for their number; for gaps of one seed the range says which scatter it assumes.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import duckdb

from lmscaling.fits.noise import Spread, seeds_needed
from lmscaling.fits.rows import Row, interval_of
from lmscaling.fits.uncertainty import LEVEL, Interval
from lmscaling.records.timing import BUSY
from lmscaling.report.table import query_rows

AXES = {"hours": "hours", "updates": "steps", "tokens": "tokens", "flops": "FLOPs"}
"""Axes of the page; tokens are updates times a constant."""

CELLS = """
    SELECT
        k.attention, k.size, k.context, k.seed, k.status, k.message, k.skipped, k.params, k.n_layer,
        k.d_model, k.update_tokens, k.flops_per_token, k.budget, k.budget_hours,
        k.train_seconds / 3600 AS hours, k.updates,
        k.baseline, k.place, k.name, k.lr_scale, f.loss, f.run IS NOT NULL AS is_final,
        s.spikes, s.highest_spike
    FROM known k
    LEFT JOIN final f USING (source, run)
    LEFT JOIN spike_rates s USING (source, run)
    WHERE k.source = $source AND k.branch IS NULL
    ORDER BY k.place, k.attention DESC, k.n_layer, k.d_model, k.size, k.context, k.seed
"""

CURVES = """
    SELECT attention, size, context, seed, run, updates, tokens, hours, flops, loss, spike
    FROM curves WHERE source = $source AND isfinite(loss) AND updates > 0 AND hours > 0
    ORDER BY attention DESC, size, context, seed, updates
"""

SPEEDS = f"""
    SELECT source, setup, kind, attention, method, size, params, batch, context, repeats, seconds,
        lower_seconds, upper_seconds
    FROM speeds
    WHERE kind IN ('time_step', 'time_decode') AND status = 'done' AND seconds > 0
        AND coalesce(wall_over_cpu, 1) < {BUSY}
    ORDER BY ALL
"""

SIDES = ("ahead", "behind", "undecided")

BASELINE = "FROM {table} WHERE source = $source AND with_baseline"

Cell = tuple[str, int]
"""Size and context."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a page is made of: rows of the queries above and of tables of fits, of one source."""

    source: str
    cells: list[Row]
    curves: list[Row]
    gaps: list[Row]
    """With the baseline, of the final losses."""
    curve_gaps: list[Row]
    multipliers: list[Row]
    speeds: list[Row]


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A candidate against the baseline in one cell, after equal spending on one axis."""

    gap: float
    """Loss of the candidate minus that of the baseline, nats per token."""
    interval: Interval
    spread: Spread
    seeds: int
    """Pairs of runs."""
    spent: float | None
    """On the axis; None for final losses."""
    p: float
    """Corrected for the number of gaps; NaN if the noise was not measured."""
    tests: int

    @property
    def is_tested(self) -> bool:
        """Whether noise was measured, by seeds of this cell or of cells around it."""
        return self.interval.assumed is None

    @property
    def side(self) -> str:
        """``ahead``, ``behind`` or ``undecided``; for an assumed noise, what its range says."""
        decided = self.p < 1 - LEVEL if self.is_tested else 0 not in self.interval
        return ("ahead" if self.gap < 0 else "behind") if decided else "undecided"

    @property
    def needed(self) -> int | None:
        """Seeds that would find a gap of this size with a probability of 80 %; None if more than
        ``noise.MOST_SEEDS``."""
        if not self.gap:
            return None
        return seeds_needed(self.gap, self.spread.sd, 1 - (1 - LEVEL) / self.tests)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """All cells of one source."""

    source: str
    baseline: str
    candidates: tuple[str, ...]
    sizes: dict[str, int | None]
    """Parameters without embeddings by size, in order; None before a run has started."""
    contexts: tuple[int, ...]
    axis: str
    """Axis of the budget: ``hours`` or ``updates``."""
    edges: dict[str, dict[str, dict[Cell, Edge]]]
    """By axis, candidate and cell."""
    means: dict[str, Row]
    """Mean gap of the final losses over cells, by candidate."""
    multipliers: dict[tuple[str, Cell], float]
    """On the axis of the budget, by candidate and cell."""
    why: dict[tuple[str, Cell], str]
    """Reason why a candidate is not compared in a cell, in a few words."""
    planned: frozenset[Cell]

    def tally(self, candidate: str, axis: str) -> Counter[str]:
        """Number of cells by side."""
        return Counter(edge.side for edge in self.edges[axis].get(candidate, {}).values())

    def ratios(self, candidate: str) -> dict[Cell, float]:
        """Spent by the baseline over spent by a candidate at the last loss of both, by cell."""
        return {cell: r for (name, cell), r in self.multipliers.items() if name == candidate}

    @property
    def clearest(self) -> tuple[str, Cell] | None:
        """Candidate and cell of the largest lead over the baseline that is significant, else of the
        largest significant gap, else of the largest gap."""
        edges = {
            (name, cell): e for name, of in self.edges[self.axis].items() for cell, e in of.items()
        }
        order = {key: (SIDES.index(e.side), -abs(e.gap), key) for key, e in edges.items()}
        return min(order, key=lambda key: order[key], default=None)

    @property
    def widest(self) -> Cell | None:
        """The cell in which most candidates are compared, of several the largest and longest."""
        n = Counter(cell for cells in self.edges[self.axis].values() for cell in cells)
        sizes = [*self.sizes]
        return max(n, key=lambda cell: (n[cell], sizes.index(cell[0]), cell[1]), default=None)


def read(db: duckdb.DuckDBPyConnection, source: str) -> Evidence:
    """The evidence of one source of a connected store."""
    values = {"source": source}
    return Evidence(
        source=source,
        cells=query_rows(db, CELLS, values),
        curves=query_rows(db, CURVES, values),
        gaps=query_rows(db, BASELINE.format(table="gaps"), values),
        curve_gaps=query_rows(db, BASELINE.format(table="curve_gaps"), values),
        multipliers=query_rows(db, BASELINE.format(table="multipliers"), values),
        speeds=query_rows(db, SPEEDS),
    )


def judge(evidence: Evidence) -> Contest:
    """Compare every attention with the baseline."""
    cells = evidence.cells
    baseline = next((row["baseline"] for row in cells if row["baseline"]), "softmax")
    trained = {row["attention"] for row in evidence.curves}
    names = dict.fromkeys(
        row["attention"] for row in cells if not row["skipped"] or row["attention"] in trained
    )
    candidates = tuple(name for name in names if name != baseline)
    in_hours = any(row["budget_hours"] is not None for row in cells)
    first = "hours" if in_hours else "updates"
    found = evidence.gaps
    along = {
        axis: _edges(row for row in evidence.curve_gaps if row["axis"] == axis)
        for axis in ("updates", "flops", "hours")
    }
    final = _edges(row for row in found if row["size"] is not None)
    if final and not any(row["status"] == "unequal" for row in found):
        along[first] = final
    edges = {
        axis: along["updates" if axis == "tokens" else axis]
        for axis in AXES
        if along["updates" if axis == "tokens" else axis] or axis == first
    }
    sizes: dict[str, int | None] = {}
    for row in cells:
        sizes[row["size"]] = sizes.get(row["size"]) or row["params"]
    shapes = {row["size"]: (row["n_layer"] or 0, row["d_model"] or 0) for row in cells}
    order = list(sizes)
    return Contest(
        source=evidence.source,
        baseline=baseline,
        candidates=candidates,
        sizes={
            size: sizes[size] for size in sorted(order, key=lambda s: (*shapes[s], order.index(s)))
        },
        contexts=tuple(sorted({row["context"] for row in cells})),
        axis=first,
        edges=edges,
        means={row["attention"]: row for row in found if row["size"] is None},
        multipliers={
            (row["attention"], (row["size"], row["context"])): row[first]
            for row in evidence.multipliers
            if row.get("loss") is not None
        },
        why=_reasons(cells, baseline, candidates, found),
        planned=frozenset((row["size"], row["context"]) for row in cells if not row["skipped"]),
    )


def _edges(rows: Iterable[Row]) -> dict[str, dict[Cell, Edge]]:
    """The compared ones, by candidate and cell."""
    edges: dict[str, dict[Cell, Edge]] = {}
    for row in rows:
        interval = interval_of(row, "gap")
        if interval is not None:
            edges.setdefault(row["attention"], {})[row["size"], row["context"]] = Edge(
                gap=row["gap"], interval=interval, seeds=row["seeds"], spent=row.get("spent"),
                spread=Spread(
                    row["sd"], row["degrees"], row["seeds"], row["basis"], row["sd_of"]
                ),
                p=math.nan if row["p"] is None else row["p"], tests=row["tests"],
            )  # fmt: skip
    return edges


def _reasons(
    cells: list[Row], baseline: str, candidates: Iterable[str], found: Iterable[Row]
) -> dict[tuple[str, Cell], str]:
    """Why a candidate has no gap: what became of the runs of both."""
    states: dict[tuple[str, Cell], Counter[str]] = {}
    for row in cells:
        key = row["attention"], (row["size"], row["context"])
        states.setdefault(key, Counter())[row["status"].replace("_", " ")] += 1
    unequal = {
        (row["attention"], (row["size"], row["context"]))
        for row in found
        if row["status"] == "unequal"
    }
    reasons = {}
    for candidate in candidates:
        for cell in {cell for _, cell in states}:
            key = candidate, cell
            said = []
            for name in (candidate, baseline):
                known = states.get((name, cell), Counter())
                if not known:
                    said.append(f"{name} not run")
                elif not known["done"]:
                    said.append(f"{name} {known.most_common(1)[0][0]}")
            if not said:
                said.append("unequal hours" if key in unequal else "no common seed")
            reasons[key] = ", ".join(said)
    return reasons
