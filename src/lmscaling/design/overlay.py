"""A design as a study file that is laid over the study: axes, cells to skip, budget, branches."""

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from numpy.typing import NDArray

from lmscaling.config import study_file
from lmscaling.config.budget import parse_budget
from lmscaling.config.grid import Grid
from lmscaling.design.asked import Candidate, Option
from lmscaling.design.setting import Run
from lmscaling.files import write_text

AXES = ("attention", "size", "context", "seed")


def runs_of(candidates: Iterable[Candidate], counts: NDArray) -> frozenset[Run]:
    """The runs of a design: finished seeds, then the smallest that are free."""
    found = set()
    for one, k in zip(candidates, counts.tolist(), strict=True):
        free = [seed for seed in range(k + max(one.seeds, default=0) + 1) if seed not in one.seeds]
        for seed in [*one.seeds, *free][:k]:
            found |= {(name, one.size, one.context, seed) for name in one.attentions}
    return frozenset(found)


def values(
    grid: Grid, study: Mapping[str, Any], runs: frozenset[Run], option: Option, why: str
) -> dict:
    """What a study file has to say so that the study has these runs and no others.

    Args:
        grid: The study.
        study: Its file, as ``study_file.read_study`` returns it.
        runs: What is to be trained.
        option: Budget and branches of all runs.
        why: Reason of the cells that are skipped.
    """
    used = {axis: {run[i] for run in runs} for i, axis in enumerate(AXES)}
    axes: dict[str, Any] = {
        axis: [v for v in grid.study.axes.values(axis) if v in used[axis]] for axis in AXES[:3]
    }
    rows = study["axes"]["attention"]
    axes["attention"] = [
        row
        for row, label in zip(rows, grid.study.axes.values("attention"), strict=True)
        if label in used["attention"]
    ]
    labels = [v for v in grid.study.axes.values("attention") if v in used["attention"]]
    axes["seed"] = sorted(used["seed"])
    found: dict[str, Any] = {"axes": axes}
    names = {**axes, "attention": labels}
    found["skip"] = [{**part, "reason": why} for part in _skips(names, runs)]
    if study.get("tasks"):
        found["tasks"] = {}  # a design asks about the grid
    if option.budget != 1:
        amount = parse_budget(grid.study.budget)
        found["budget"] = f"{amount.amount * option.budget:.12g} {amount.unit}"
    before = {axis: grid.study.axes.values(axis) for axis in AXES}
    narrowed = study_file.narrowed(study, before, names)
    shares = grid.study.branches.shares if grid.study.branches else []
    if shares and sorted(option.shares) != sorted(shares):
        narrowed["branches"] = {"shares": list(option.shares)} if option.shares else None
    return found | {key: part for key, part in narrowed.items() if key != "skip"}


def _skips(axes: Mapping[str, list], runs: frozenset[Run]) -> list[dict[str, Any]]:
    """Parts of the grid that together are all combinations but the runs: those with the same
    missing seeds are joined, over attentions, then contexts, then sizes."""
    missing = {
        (a, s, c): tuple(seed for seed in axes["seed"] if (a, s, c, seed) not in runs)
        for a, s, c in product(axes["attention"], axes["size"], axes["context"])
    }
    known = {((a,), (s,), (c,)): seeds for (a, s, c), seeds in missing.items() if seeds}
    for place in (0, 2, 1):
        joined: dict[tuple, list] = {}
        for key, seeds in known.items():
            rest = *key[:place], None, *key[place + 1 :], seeds
            joined.setdefault(rest, []).extend(key[place])
        known = {
            (*rest[:place], tuple(values), *rest[place + 1 : 3]): rest[3]
            for rest, values in joined.items()
        }
    parts = []
    for key, seeds in known.items():
        named = dict(zip(AXES, (*key, seeds), strict=True))
        # An axis that is left out matches all its values; at least one must be given.
        part = {axis: list(v) for axis, v in named.items() if len(v) < len(axes[axis])}
        parts.append(part or {"context": list(named["context"])})
    return parts


def write(path: Path, content: Mapping[str, Any], said: Iterable[str]) -> None:
    """Write a study file with comments above it."""
    comments = "".join(f"# {line}\n" for line in said)
    text = yaml.safe_dump(dict(content), sort_keys=False, default_flow_style=None, width=100)
    write_text(path, comments + text)
