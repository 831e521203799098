"""From the speed section of a study to its sweeps: what one job measures, point by point.

A sweep holds all implementations and contexts of one size or preset, so that what is compared was
measured by one job on one device. A series is what differs in the context only; it ends where
memory or patience does.
"""

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from lmscaling.config import grid
from lmscaling.config.cell import Cell, Model
from lmscaling.config.speed import CopyTask, Speed, TimeLayer
from lmscaling.config.study import Study
from lmscaling.config.types import STRICT, Name, Positive, digest, dump
from lmscaling.files import read_json, write_json

Kind = Literal[
    "tune_chunk", "time_step", "time_throughput", "time_decode", "time_layer", "copy_task"
]

KINDS: dict[Kind, str] = {
    "tune_chunk": "Find the fastest chunk size of a training step at every context.",
    "time_step": "Time a training step of one size at every context.",
    "time_throughput": "Time a training step of many sequences: what a device makes of its peak.",
    "time_decode": "Time the sampling of a token behind every context.",
    "time_layer": "Time one attention alone at every context.",
    "copy_task": "Learn to copy a sequence, and time a step, at every context.",
}
"""What a rule measures, by its name."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Point:
    """One thing to measure."""

    attention: Name
    """File stem in ``attention/``."""
    implementation: str = ""
    """File stem in ``kernels/<attention>/``; empty stands for what the attention uses itself."""
    context: Positive
    """Tokens of a sequence; of ``time_decode`` those before the one that is sampled."""
    batch: Positive = 1
    """Sequences at once."""
    chunk: Positive | None = None
    """Tokens per chunk; None leaves it to the implementation, or to what was tuned."""
    passes: str = ""
    """``forward`` or ``forward+backward`` of a layer."""
    updates: int = 0
    """Updates for which the copy task is learned before it is timed."""

    @property
    def series(self) -> str:
        """Name of the points that differ from this one in their context (and batch) only."""
        parts = [
            f"{self.attention}.{self.implementation}" if self.implementation else self.attention
        ]
        parts += [f"c{self.chunk}"] if self.chunk else []
        parts += [self.passes.replace("+", "_")] if self.passes else []
        return "-".join(parts)

    @property
    def name(self) -> str:
        """File stem of its record."""
        return f"{self.series}-b{self.batch}-ctx{self.context}"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Heads:
    """The shape of one attention alone."""

    n_head: Positive
    d_head: Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sweep:
    """``sweep.json``: one job of the speed study, with all its points."""

    kind: Kind
    name: Name
    """Size, or preset."""
    gpus: Literal[0, 1]
    """0 measures the CPU."""
    limit_seconds: float
    """See ``Speed``; here and below."""
    repeats: int
    point_seconds: float
    cell: Cell | None = None
    """What model is measured; attention and context are those of the point."""
    layer: Heads | None = None
    """What is measured where there is no model."""
    points: list[Point] = field(default_factory=list)
    """Of each series in growing order of context."""

    @property
    def folder(self) -> str:
        """Folder of its records below ``speed/``: points that are added change no name."""
        model = self.cell and dump(self.cell.model) | {"position": self.cell.position}
        layer = self.layer and dump(self.layer)
        values = {"model": model, "layer": layer, "gpus": self.gpus}
        return f"{self.kind}/{self.name}-{digest(values)}"

    def of(self, point: Point) -> Cell:
        """The cell of a point: its attention and its context."""
        assert self.cell
        return replace(self.cell, attention=point.attention, context=point.context)


def expand(study: Study) -> dict[str, Sweep]:
    """The sweeps of a study by their folder; none without a section ``speed:``."""
    made = _sweeps(study, study.speed) if study.speed else []
    return {sweep.folder: sweep for sweep in made}


def write(folder: Path, study: Study) -> None:
    """Write ``sweeps/<sweep.folder>.json`` for every sweep into a study's folder."""
    for name, sweep in expand(study).items():
        write_json(folder / "sweeps" / f"{name}.json", dump(sweep))


def is_pending(folder: Path, sweep: Sweep) -> bool:
    """Whether a point of the sweep is not settled in ``speed/<sweep.folder>``.

    Raises:
        UserError: A record there is not whole.
    """
    path = folder / "sweep.json"
    if not path.is_file():
        return True
    settled = read_json(path, "record of a sweep")["statuses"]
    return any(point.name not in settled for point in sweep.points)


def _sweeps(study: Study, speed: Speed) -> list[Sweep]:
    sweep = partial(
        Sweep,
        gpus=1 if study.gpus else 0,
        limit_seconds=speed.limit_seconds,
        repeats=speed.repeats,
        point_seconds=speed.point_seconds,
    )
    made = [*_steps(study, speed, sweep), *_throughputs(study, speed, sweep)]
    made += _decodes(study, speed, sweep)
    made += [_layer(layer, sweep) for layer in speed.time_layer]
    if speed.copy_task:
        made.append(_copy(study, speed.copy_task, sweep))
    return made


def _steps(study: Study, speed: Speed, sweep: Callable[..., Sweep]) -> Iterator[Sweep]:
    if not (step := speed.time_step):
        return
    contexts = sorted(step.contexts)
    points = [_point(i, context=context) for context in contexts for i in step.implementations]
    for size in step.sizes:
        cell = _cell(study, size)
        if tune := speed.tune_chunk:
            chunks = [
                _point(implementation, context=context, chunk=chunk)
                for context in contexts
                for implementation in tune.implementations
                for chunk in tune.chunks
                if chunk <= context
            ]
            yield sweep(kind="tune_chunk", name=size, cell=cell, points=chunks)
        yield sweep(kind="time_step", name=size, cell=cell, points=points)


def _throughputs(study: Study, speed: Speed, sweep: Callable[..., Sweep]) -> Iterator[Sweep]:
    if not (full := speed.time_throughput):
        return
    points = [
        _point(implementation, context=context, batch=max(1, full.tokens // context))
        for context in sorted(full.contexts)
        for implementation in full.implementations
    ]
    for size in full.sizes:
        cell = _cell(study, size)
        yield sweep(kind="time_throughput", name=size, cell=cell, points=points)


def _decodes(study: Study, speed: Speed, sweep: Callable[..., Sweep]) -> Iterator[Sweep]:
    if not (decode := speed.time_decode):
        return
    points = [
        _point(attention, context=context, batch=batch)
        for context in sorted(decode.contexts)
        for batch in decode.batches
        for attention in decode.attentions
    ]
    for size in decode.sizes:
        yield sweep(kind="time_decode", name=size, cell=_cell(study, size), points=points)


def _point(implementation: str, **values: Any) -> Point:
    attention, _, stem = implementation.partition("/")
    return Point(attention=attention, implementation=stem, **values)


def _cell(study: Study, size: str) -> Cell:
    point = {axis: getattr(study.axes, axis)[0] for axis in grid.AXES}
    return replace(grid.cell(study, point | {"size": size}), keep=(), protocol={})


def _layer(layer: TimeLayer, sweep: Callable[..., Sweep]) -> Sweep:
    points = [
        _point(
            implementation,
            context=context,
            batch=layer.batch or max(1, (layer.tokens or 1) // context),
            passes=passes,
        )
        for context in sorted(layer.contexts)
        for passes in layer.passes
        for implementation in layer.implementations
    ]
    heads = Heads(n_head=layer.n_head, d_head=layer.d_head)
    return sweep(
        kind="time_layer", name=layer.name, layer=heads, points=points, repeats=layer.repeats
    )


def _copy(study: Study, task: CopyTask, sweep: Callable[..., Sweep]) -> Sweep:
    points = [
        _point(
            attention,
            context=context,
            batch=max(1, task.tokens // context),
            updates=task.updates if context in task.learned else 0,
        )
        for context in sorted(task.contexts)
        for attention in task.attentions
    ]
    model = Model(
        n_layer=task.n_layer,
        n_head=task.n_head,
        d_model=task.d_model,
        vocab_size=task.symbols + 1,
    )
    cell = replace(
        _cell(study, study.axes.size[0]), size="copy", model=model, lr=task.lr, seed=task.seed
    )
    return sweep(kind="copy_task", name="copy", cell=cell, points=points)
