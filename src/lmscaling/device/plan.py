"""The steps that measure a device, in order.

A step is one command of this package and the file that it leaves. Checks come before the steps that
depend on them. The first sweep of every kind and the small study come before the other sweeps.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lmscaling import registry
from lmscaling.config import sweeps
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.config.sweeps import Sweep


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command and its result."""

    part: str
    """Group of steps: ``checks``, ``speed``, ``tokens``, ``runs`` and so on."""
    name: str
    """Unique in its part."""
    command: tuple[str, ...]
    """Program and arguments."""
    result: Path
    """The command writes this file completely or not at all."""
    needs: tuple[Path, ...] = ()
    """Files that must exist before it starts; results of earlier steps."""
    stdin: str = ""
    """Its standard input."""
    attention: str = ""
    """An attention that must have passed its checks; a sweep asks for each of its points."""
    sweep: Sweep | None = None
    """What it measures; points that are added to the study later are measured too."""
    resumes: bool = False
    """Whether it keeps its progress when it is stopped."""

    @property
    def done(self) -> bool:
        """Whether its result is complete."""
        if self.sweep:
            return not sweeps.is_pending(self.result.parent, self.sweep)
        return self.result.is_file()


def steps(grid: Grid, out: Path, checkable: list[str]) -> list[Step]:
    """Every step of a study, each after those whose results it needs.

    Args:
        out: Folder of the device.
        checkable: Attentions, and implementations as ``linear/chunked`` or ``peer/name``.
    """
    cpu = () if grid.study.gpus else ("--cpu",)
    planned = list(sweeps.expand(grid.study).values())
    first = {sweep.kind: sweep for sweep in reversed(planned)}.values()
    timed = {name for sweep in planned for name in _names(sweep)}
    checked = [name for name in checkable if name in timed or name in registry.attentions()]
    runs = sorted(grid.cells.values(), key=lambda cell: (cell.model.d_model, cell.context))
    return [
        *(_check(name, out, cpu) for name in checked),
        *(_sweep(sweep, out, checked, planned) for sweep in planned if sweep in first),
        *_tokens(grid, out),
        *(step for cell in runs for step in _run(cell, grid, out)),
        *(_sweep(sweep, out, checked, planned) for sweep in planned if sweep not in first),
        *(step for cell in grid.branches.values() for step in _run(cell, grid, out)),
        *(_evaluation(grid.cells[run], grid, out) for run in grid.evaluated),
    ]


def checks_file(out: Path, name: str) -> Path:
    """The checks of an attention or of an implementation such as ``linear/chunked``."""
    return out / "checks" / f"{name.replace('/', '.')}.jsonl"


def _names(sweep: Sweep) -> set[str]:
    """What a sweep times, as checks name it."""
    return {"/".join(filter(None, (p.attention, p.implementation))) for p in sweep.points}


def _lmscaling(*arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-m", "lmscaling", *map(str, arguments))


def _check(name: str, out: Path, cpu: tuple[str, ...]) -> Step:
    result = checks_file(out, name)
    command = _lmscaling("check", "kernels", name, "--out", result, *cpu)
    return Step(part="checks", name=name, command=command, result=result)


def _sweep(sweep: Sweep, out: Path, checked: list[str], planned: list[Sweep]) -> Step:
    folder = out / "speed" / sweep.folder
    tuned = sweep.folder.replace("time_step/", "tune_chunk/")
    chunks = (out / "speed" / tuned / "sweep.json",) if sweep.kind == "time_step" else ()
    chunks = chunks if tuned in {other.folder for other in planned} else ()
    return Step(
        part="speed",
        name=f"{sweep.kind}/{sweep.name}",
        command=_lmscaling(
            sweep.kind, out / "sweeps" / f"{sweep.folder}.json", folder,
            "--checks", out / "checks", *(o for path in chunks for o in ("--chunks", path)),
        ),
        result=folder / "sweep.json",
        needs=(*(checks_file(out, name) for name in checked if name in _names(sweep)), *chunks),
        sweep=sweep,
        resumes=True,
    )  # fmt: skip


def _tokens(grid: Grid, out: Path) -> Iterator[Step]:
    manifest, shards = _manifest(grid, out), []
    n_train = grid.n_shards(grid.tokens, "train")
    n_validation = grid.n_shards(grid.tokens, "validation")
    for split, n_shards in (("validation", n_validation), ("train", n_train)):
        for shard in range(n_shards):
            path = manifest.with_name(f"{split}-{shard:05d}.bin")
            yield Step(
                part="tokens",
                name=f"{split}-{shard}",
                command=_lmscaling("tokenize", split, shard, path),
                result=path.with_suffix(".json"),
                stdin=grid.corpora[grid.tokens].to_json(n_train),
            )
            shards.append(path.with_suffix(".json"))
    yield Step(
        part="tokens",
        name="manifest",
        command=_lmscaling("manifest", manifest, n_train, n_validation),
        result=manifest,
        needs=tuple(shards),
    )


def _run(cell: Cell, grid: Grid, out: Path) -> Iterator[Step]:
    """Training of a cell and, for a run of linear attention, the errors of its gradients."""
    manifest, folder = _manifest(grid, out), out / "runs" / cell.run
    trunk = (out / "runs" / cell.trunk / "run.json",) if cell.branch else ()
    yield Step(
        part="branches" if cell.branch else "runs",
        name=cell.name,
        command=_lmscaling(
            "train", out / "cells" / f"{cell.run}.json", "--manifest", manifest,
            "--scratch", out / "scratch" / cell.run, "--record", folder / "run.json",
        ),
        result=folder / "run.json",
        needs=(manifest, checks_file(out, cell.attention), *trunk),
        attention=cell.attention,
        resumes=True,
    )  # fmt: skip
    if cell.attention == "linear" and not cell.branch:
        result = out / "numerics" / f"{cell.run}.jsonl"
        yield _of_weights("gradient-error", cell, grid, out, result)


def _evaluation(cell: Cell, grid: Grid, out: Path) -> Step:
    result = out / "evaluations" / cell.run / f"{grid.tokens}.jsonl"
    return _of_weights("evaluate", cell, grid, out, result)


def _of_weights(verb: str, cell: Cell, grid: Grid, out: Path, result: Path) -> Step:
    run = out / "runs" / cell.run
    return Step(
        part=verb,
        name=cell.name,
        command=_lmscaling(verb, run, "--manifest", _manifest(grid, out), "--out", result),
        result=result,
        needs=(run / "run.json",),
    )


def _manifest(grid: Grid, out: Path) -> Path:
    return out / "tokens" / grid.tokens / "manifest.json"
