"""What there is to do on a device, in the order in which it tells most.

A piece is one command and the file that it leaves. Checks come before what they decide on, for what
is wrong is not timed. First the ceilings and the kernels that matter, then MFU, the smallest model,
training from small to large; what is expensive and tells less comes last.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lmscaling import registry
from lmscaling.config import sweeps
from lmscaling.config.budget import SECONDS, parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.config.schedule import BRANCH_AT
from lmscaling.config.speed import Sweep

PARTS = {
    "checks": "every kernel against exact results",
    "kernels": "ceilings of the device, and time of its main kernels",
    "throughput": "training steps that fill the device: MFU",
    "steps": "training steps of one sequence: time and memory",
    "decode": "sampling of a token",
    "tokens": "text to tokens",
    "study": "a small study of two attentions",
    "branches": "decayed ends of its runs",
    "numerics": "lost digits of dq in its models",
    "evaluate": "its loss by position",
}
"""Parts by name, with what each measures; in this order where nothing else decides."""

FIRST = ("linear/chunked", "softmax/flash", "softmax/cudnn", "peer/fla_chunk")
"""Kernels that are timed before anything else, with what sweeps use; others come last."""
SWEEPS = {
    "time_ceiling": "kernels", "time_layer": "kernels", "time_throughput": "throughput",
    "time_step": "steps", "time_decode": "decode",
}  # fmt: skip
"""The part of each kind of sweep that is measured."""

START_SECONDS = {True: 25.0, False: 8.0}
"""To load, find the device and compile, with a GPU and without; guesses, on the safe side."""
POINT_SECONDS = {True: 30.0, False: 3.0}
"""Of one point of a sweep, which has a process and a compilation of its own."""
TOKENIZE_SECONDS = {True: 150.0, False: 8.0}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One thing to do."""

    part: str
    """A key of ``PARTS``."""
    name: str
    """For people, and for the record of the session."""
    command: tuple[str, ...]
    """Arguments of Python; ``{out}`` stands for the file in the making."""
    made: Path
    """The file that is there when it is done."""
    seconds: float
    """About how long it takes."""
    least: float = 0.0
    """Seconds that it must have to be begun, if what it has done is kept when it is stopped."""
    given: str = ""
    """Its standard input."""
    sweep: Sweep | None = None
    """What it measures, if points can be added to that later."""
    needs: tuple[Path, ...] = ()
    """Files without which it cannot begin."""
    uses: tuple[str, ...] = ()
    """What must have passed its checks; of a sweep each point asks for itself."""

    @property
    def done(self) -> bool:
        """By its file alone."""
        if self.sweep:
            return not sweeps.is_pending(self.made.parent, self.sweep)
        return self.made.is_file()


def lay_out(grid: Grid, out: Path, others: list[str]) -> list[Piece]:
    """Every piece of a study that is laid out in a folder, in order.

    Args:
        others: Implementations of other libraries that are installed, as ``peer/name``.
    """
    on_gpu = bool(grid.study.gpus)
    planned = [sweep for sweep in sweeps.expand(grid.study).values() if sweep.kind in SWEEPS]
    known = [f"{a}/{i}" for a in registry.attentions() for i in registry.implementations(a)]
    kernels = sorted([*known, *others], key=partial(_rank, FIRST))
    timed = {point.way for sweep in planned for point in sweep.points}
    early = [name for name in kernels if name in FIRST or name in timed]
    made = [_check(name, out, on_gpu) for name in [*registry.attentions(), *early]]
    smallest = {sweep.kind: sweep.name for sweep in reversed(planned)}
    full = ("time_layer", "time_throughput")
    small = [s for s in planned if s.kind in full or s.name == smallest[s.kind]]
    small.sort(key=lambda sweep: list(SWEEPS).index(sweep.kind))
    checked = {*registry.attentions(), *kernels}
    made += [_sweep(sweep, out, on_gpu, checked) for sweep in small]
    made += _tokens(grid, out, on_gpu)
    for cell in sorted(grid.cells.values(), key=lambda cell: (cell.model.d_model, cell.context)):
        made += [_train(cell, grid, out, "study")]
        if cell.attention == "linear":
            made += [_numerics(cell, grid, out)]
    made += [_sweep(sweep, out, on_gpu, checked) for sweep in planned if sweep not in small]
    made += [_train(cell, grid, out, "branches") for cell in grid.branches.values()]
    made += [_evaluate(grid.cells[run], grid, out) for run in grid.evaluated]
    for name in kernels:
        if name not in early:
            made += [_check(name, out, on_gpu)]
    return made


def of_parts(pieces: list[Piece], parts: list[str]) -> list[Piece]:
    """The pieces of some parts, and what they need of others."""
    by_file = {piece.made: piece for piece in pieces}
    wanted = [piece for piece in pieces if piece.part in parts]
    files: set[Path] = set()
    while wanted:
        piece = wanted.pop()
        if piece.made not in files:
            files.add(piece.made)
            wanted += [by_file[need] for need in piece.needs]
    return [piece for piece in pieces if piece.made in files]


def _rank(order: tuple[str, ...], name: str) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)


def _lmscaling(*arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-m", "lmscaling", *map(str, arguments))


def checks_of(out: Path, name: str) -> Path:
    """Where the checks of ``linear/chunked`` and the like lie."""
    return out / "checks" / f"{name.replace('/', '.')}.jsonl"


def _check(name: str, out: Path, on_gpu: bool) -> Piece:
    device = [] if on_gpu else ["--cpu"]
    return Piece(
        part="checks",
        name=name,
        command=_lmscaling("check", "kernels", name, "--out", "{out}", *device),
        made=checks_of(out, name),
        seconds=START_SECONDS[on_gpu],
    )


def _sweep(sweep: Sweep, out: Path, on_gpu: bool, checked: set[str]) -> Piece:
    folder = out / "speed" / sweep.folder
    path = out / "sweeps" / f"{sweep.folder}.json"
    names = sorted({point.way for point in sweep.points} & checked)
    return Piece(
        part=SWEEPS[sweep.kind],
        name=sweep.name,
        command=_lmscaling(sweep.kind, path, folder, "--checks", out / "checks"),
        made=folder / "sweep.json",
        seconds=START_SECONDS[on_gpu] + POINT_SECONDS[on_gpu] * len(sweep.points),
        least=START_SECONDS[on_gpu] + 2 * POINT_SECONDS[on_gpu],
        sweep=sweep,
        needs=tuple(checks_of(out, name) for name in names),
    )


def _tokens(grid: Grid, out: Path, on_gpu: bool) -> Iterator[Piece]:
    folder = out / "tokens" / grid.tokens
    made: list[Path] = []
    counts = {split: grid.n_shards(grid.tokens, split) for split in ("validation", "train")}
    for split, count in counts.items():
        for shard in range(count):
            path = folder / f"{split}-{shard:05d}.bin"
            yield Piece(
                part="tokens",
                name=f"{split} {shard}",
                command=_lmscaling("tokenize", split, shard, path),
                made=path.with_suffix(".json"),
                seconds=TOKENIZE_SECONDS[on_gpu],
                given=grid.corpora[grid.tokens].to_json(counts["train"]),
                needs=tuple(made),
            )
            made.append(path.with_suffix(".json"))
    yield Piece(
        part="tokens",
        name="manifest",
        command=_lmscaling(
            "manifest", folder / "manifest.json", counts["train"], counts["validation"]
        ),
        made=folder / "manifest.json",
        seconds=START_SECONDS[False],
        needs=tuple(made),
    )


def _train(cell: Cell, grid: Grid, out: Path, part: str) -> Piece:
    manifest, record = _manifest(grid, out), out / "runs" / cell.run / "run.json"
    trunk = (out / "runs" / cell.trunk / "run.json",) if cell.branch else ()
    amount, unit = parse_budget(cell.budget)
    share = (1 - BRANCH_AT) * cell.branch if cell.branch else 1.0
    trained = share * amount * SECONDS.get(unit, 1.0)
    return Piece(
        part=part,
        name=cell.name,
        command=_lmscaling(
            "train", out / "cells" / f"{cell.run}.json", "--manifest", manifest,
            "--scratch", out / "scratch" / cell.run, "--record", record,
        ),
        made=record,
        seconds=START_SECONDS[bool(cell.gpus)] + 1.25 * trained,
        needs=(manifest, *trunk, checks_of(out, cell.attention)),
        uses=(cell.attention,),
    )  # fmt: skip


def _numerics(cell: Cell, grid: Grid, out: Path) -> Piece:
    run = out / "runs" / cell.run
    return Piece(
        part="numerics",
        name=cell.name,
        command=_lmscaling("numerics", run, "--manifest", _manifest(grid, out), "--out", "{out}"),
        made=out / "numerics" / f"{cell.run}.jsonl",
        seconds=START_SECONDS[bool(cell.gpus)] + POINT_SECONDS[bool(cell.gpus)],
        needs=(run / "run.json",),
    )


def _evaluate(cell: Cell, grid: Grid, out: Path) -> Piece:
    run = out / "runs" / cell.run
    return Piece(
        part="evaluate",
        name=cell.name,
        command=_lmscaling("evaluate", run, "--manifest", _manifest(grid, out), "--out", "{out}"),
        made=out / "evaluations" / cell.run / f"{grid.tokens}.jsonl",
        seconds=START_SECONDS[bool(cell.gpus)],
        needs=(run / "run.json",),
    )


def _manifest(grid: Grid, out: Path) -> Path:
    return out / "tokens" / grid.tokens / "manifest.json"
