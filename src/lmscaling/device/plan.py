"""The steps that measure a device, in order.

A step is one command of this package and the file that it leaves. Checks come before the steps that
depend on them. The first sweep of every kind and the small study come before the other sweeps.
"""

import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from lmscaling import registry
from lmscaling.config import sweeps
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.config.sweeps import Sweep

COMPLETE_FIRST = ("time_ceiling", "time_layer", "time_throughput")
"""Kinds of which every sweep comes before the study; of others the first, the smallest size."""


@dataclass(frozen=True)
class Step:
    """One command and its result."""

    part: str
    """Group of steps: ``checks``, ``speed``, ``tokens``, ``runs`` and so on."""
    name: str
    """Unique in its part."""
    result: Path
    """The command writes this file completely or not at all."""
    command: tuple[str, ...]
    """Program and arguments."""
    needs: tuple[Path, ...] = ()
    """Files that must exist before it starts; results of earlier steps."""
    attention: str = ""
    """An attention that must have passed its checks; a sweep checks each of its points."""
    sweep: Sweep | None = None
    """What it measures; points that are added to the study later are measured too."""
    stdin: str = ""
    """Its standard input."""

    @property
    def done(self) -> bool:
        """Whether its result is complete."""
        if self.sweep:
            return not sweeps.is_pending(self.result.parent, self.sweep)
        return self.result.is_file()

    @property
    def resumes(self) -> bool:
        """Whether it keeps its progress when it is stopped: training saves, a sweep has points."""
        return bool(self.sweep or self.attention)


def steps(grid: Grid, out: Path, checkable: list[str]) -> list[Step]:
    """Every step of a study, each after those whose results it needs.

    Args:
        out: Folder of the device.
        checkable: Attentions, and implementations as ``linear/chunked`` or ``peer/name``.
    """
    cpu = () if grid.study.gpus else ("--cpu",)
    planned = sweeps.expand(grid.study)
    # Steps of training may use the chunks that tune_chunk has found.
    in_order = sorted(planned.values(), key=lambda sweep: sweep.kind != "tune_chunk")
    smallest = {sweep.kind: sweep for sweep in reversed(in_order)}.values()
    first = [s for s in in_order if s.kind in COMPLETE_FIRST or s in smallest]
    later = [sweep for sweep in in_order if sweep not in first]
    timed = {name for sweep in in_order for name in _names(sweep)}
    checked = [name for name in checkable if name in timed or name in registry.attentions()]
    runs = sorted(grid.cells.values(), key=lambda cell: (cell.model.d_model, cell.context))
    return [
        *(_check(name, out, cpu) for name in checked),
        *(_sweep(sweep, out, checked, planned) for sweep in first),
        *_tokens(grid, out),
        *(step for cell in runs for step in _run(cell, grid, out)),
        *(_sweep(sweep, out, checked, planned) for sweep in later),
        *(step for cell in grid.branches.values() for step in _run(cell, grid, out)),
        *(_evaluation(grid.cells[run], grid, out) for run in grid.evaluated),
    ]


def checks_file(out: Path, name: str) -> Path:
    """The checks of an attention or of an implementation such as ``linear/chunked``."""
    return out / "checks" / f"{name.replace('/', '.')}.jsonl"


def _names(sweep: Sweep) -> set[str]:
    """What a sweep times, as checks name it."""
    return {registry.checked_by(point.way) for point in sweep.points}


def _lmscaling(*arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-m", "lmscaling", *map(str, arguments))


def _check(name: str, out: Path, cpu: tuple[str, ...]) -> Step:
    result = checks_file(out, name)
    command = _lmscaling("check", "kernels", name, "--out", result, *cpu)
    return Step("checks", name, result, command)


def _sweep(sweep: Sweep, out: Path, checked: list[str], planned: Container[str]) -> Step:
    path, folder = out / "sweeps" / f"{sweep.folder}.json", out / "speed" / sweep.folder
    command = _lmscaling(sweep.kind, path, folder, "--checks", out / "checks")
    needs = [checks_file(out, name) for name in checked if name in _names(sweep)]
    tuned = sweep.folder.replace("time_step/", "tune_chunk/")
    if tuned != sweep.folder and tuned in planned:
        chunks = out / "speed" / tuned / "sweep.json"
        command, needs = (*command, "--chunks", str(chunks)), [*needs, chunks]
    name = f"{sweep.kind}/{sweep.name}"
    return Step("speed", name, folder / "sweep.json", command, tuple(needs), sweep=sweep)


def _tokens(grid: Grid, out: Path) -> Iterator[Step]:
    manifest, shards = _manifest(grid, out), []
    n_train = grid.n_shards(grid.tokens, "train")
    n_validation = grid.n_shards(grid.tokens, "validation")
    corpus = grid.corpora[grid.tokens].to_json(n_train)
    for split, n_shards in (("validation", n_validation), ("train", n_train)):
        for shard in range(n_shards):
            path = manifest.with_name(f"{split}-{shard:05d}.bin")
            shards.append(path.with_suffix(".json"))
            command = _lmscaling("tokenize", f"{split}-{shard:05d}-{shard:05d}", path.parent)
            yield Step("tokens", f"{split}-{shard}", shards[-1], command, stdin=corpus)
    command = _lmscaling("manifest", manifest, n_train, n_validation)
    yield Step("tokens", "manifest", manifest, command, tuple(shards))


def _run(cell: Cell, grid: Grid, out: Path) -> Iterator[Step]:
    """Training of a cell and, for a run of linear attention, the errors of its gradients."""
    manifest, record = _manifest(grid, out), out / "runs" / cell.run / "run.json"
    command = _lmscaling(
        "train", out / "cells" / f"{cell.run}.json", "--manifest", manifest,
        "--scratch", out / "scratch" / cell.run, "--record", record,
    )  # fmt: skip
    trunk = [out / "runs" / cell.trunk / "run.json"] if cell.branch else []
    needs = (manifest, checks_file(out, cell.attention), *trunk)
    part = "branches" if cell.branch else "runs"
    yield Step(part, cell.name, record, command, needs, cell.attention)
    if cell.attention == "linear" and not cell.branch:
        result = out / "numerics" / f"{cell.run}.jsonl"
        yield _of_weights("gradient-error", cell, grid, out, result)


def _evaluation(cell: Cell, grid: Grid, out: Path) -> Step:
    result = out / "evaluations" / cell.run / f"{grid.tokens}.jsonl"
    return _of_weights("evaluate", cell, grid, out, result)


def _of_weights(verb: str, cell: Cell, grid: Grid, out: Path, result: Path) -> Step:
    run = out / "runs" / cell.run
    command = _lmscaling(verb, run, "--manifest", _manifest(grid, out), "--out", result)
    return Step(verb, cell.name, result, command, (run / "run.json",))


def _manifest(grid: Grid, out: Path) -> Path:
    return out / "tokens" / grid.tokens / "manifest.json"
