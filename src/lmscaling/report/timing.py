"""How many times as fast a candidate is: training steps and sampled tokens."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lmscaling.report.contest import Cell


@dataclass(frozen=True)
class Ratio:
    """Time of the baseline divided by that of the candidate, at one size and context."""

    value: float
    low: float
    high: float
    """From the quartiles of both; equal to the value where each was timed once."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A candidate against the baseline, by the implementation of each that reached the longest
    context, the fastest there; of several batches at one context, for the smallest."""

    candidate: str
    baseline: str
    """Names of the implementations."""
    source: str
    ratios: dict[Cell, Ratio]

    @property
    def is_repeated(self) -> bool:
        """Whether quartiles are known."""
        return any(ratio.low != ratio.high for ratio in self.ratios.values())


KINDS = {"time_step": "training steps", "time_decode": "decoding"}

Timings = Mapping[tuple[str, str], Timing | None]
"""By kind and candidate."""


def compare(
    rows: Iterable[dict[str, Any]], kind: str, candidate: str, baseline: str
) -> Timing | None:
    """Compare two attentions by the rows of ``contest.SPEEDS``; None if they were not timed under
    the same conditions. Own measurements come before published ones."""
    groups: dict[tuple, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["kind"] == kind and row["attention"] in (candidate, baseline):
            # Steps have one batch per context.
            batch = row["batch"] if kind == "time_decode" else 0
            groups[row["source"], row["setup"], batch].append(row)
    found = []
    for (source, _, batch), known in groups.items():
        best = {name: _best([r for r in known if r["attention"] == name])
                for name in (candidate, baseline)}  # fmt: skip
        times = {
            name: {(r["size"], r["context"], r["batch"]): r for r in known if r["method"] == method}
            for name, method in best.items()
        }
        common = sorted(times[candidate].keys() & times[baseline].keys(), reverse=True)
        if common:
            ratios = {
                point[:2]: _ratio(times[baseline][point], times[candidate][point])
                for point in common
            }
            timing = Timing(candidate=best[candidate], baseline=best[baseline], source=source,
                            ratios=ratios)  # fmt: skip
            found.append((source != "measured", batch, -len(common), timing))
    return min(found, key=lambda one: one[:3])[-1] if found else None


def _best(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    first = min(rows, key=lambda r: (-r["context"], r["batch"], r["seconds"], r["method"]))
    return first["method"]


def _ratio(base: dict[str, Any], other: dict[str, Any]) -> Ratio:
    low, high = (
        base[one] / other[two] if base[one] and other[two] else base["seconds"] / other["seconds"]
        for one, two in (("lower_seconds", "upper_seconds"), ("upper_seconds", "lower_seconds"))
    )
    return Ratio(base["seconds"] / other["seconds"], low, high)
