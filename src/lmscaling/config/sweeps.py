"""From the section ``speed:`` of a study to its sweeps: what one job measures, point by point.

A series is the points that differ only in their context; it ends where memory or time runs out.
All are measured with one document per sequence, whatever ``documents`` says.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lmscaling import registry
from lmscaling.config import checks, grid
from lmscaling.config.cell import Cell
from lmscaling.config.places import StudyError
from lmscaling.config.speed import Heads, Speed, Sweep, TimeStep
from lmscaling.config.study import Study
from lmscaling.errors import UserError, choose
from lmscaling.files import read_json, write_json
from lmscaling.records.timing import Point
from lmscaling.types import dump

KINDS = tuple(field.name for field in fields(Speed) if field.name.startswith("time_"))
"""What a section of ``speed:`` measures, by its name, which is also that of its rule."""


def expand(study: Study) -> dict[str, Sweep]:
    """The sweeps of a study by their folder; none without a section ``speed:``.

    Raises:
        StudyError: A label is not on the axis, or an attention has not the heads of the block.
    """
    if study.speed is None:
        return {}
    return {sweep.folder: sweep for sweep in _sweeps(study, study.speed)}


def _sweeps(study: Study, speed: Speed) -> Iterator[Sweep]:
    if ceiling := speed.time_ceiling:
        sizes = {"copy": ceiling.copy_bytes, "matmul": ceiling.matmul_width}
        points = [Point(attention=name, context=size) for name, size in sizes.items()]
        yield _sweep(study, "time_ceiling", "device", points)
    if decode := speed.time_decode:
        points = [  # each batch is a series of its own
            _point(attention, context=context, batch=batch)
            for context in sorted(decode.contexts)
            for batch in decode.batches
            for attention in decode.attentions
        ]
        for size in decode.sizes:
            yield _sweep(study, "time_decode", size, points, cell=_cell(study, size))
    for layer in speed.time_layer or ():
        points = [
            _point(
                implementation,
                context=context,
                batch=layer.batch or _sequences(layer.tokens, context),
                passes=passes,
            )
            for context in sorted(layer.contexts)
            for passes in layer.passes
            for implementation in layer.implementations
        ]
        heads = Heads(n_head=layer.n_head, d_head=layer.d_head)
        own = {"target_seconds": speed.timeout_seconds} if layer.exactly else {}
        own |= {"layer": heads, "repeats": layer.repeats}
        yield _sweep(study, "time_layer", layer.name, points, **own)
    for step in speed.time_step or ():
        points = [
            _point(way, context=context, batch=_sequences(step.tokens, context), chunk=chunk)
            for context in sorted(step.contexts)
            for way in step.implementations
            for chunk in _chunks(step, way, context, study.gpus)
        ]
        for size in step.sizes:
            cell = _cell(study, size)
            if step.vocab_size:
                cell = replace(cell, model=replace(cell.model, vocab_size=step.vocab_size))
            yield _sweep(study, "time_step", size, points, tokens=step.tokens, cell=cell)


def _sweep(study: Study, kind: str, name: str, points: list[Point], **own: Any) -> Sweep:
    """A sweep with the numbers of the speed study, but for its own."""
    known = study.axes.layers
    labels = {point.attention for point in points if "." in point.attention}
    for label in labels - known.keys():
        problem = f"{label!r} is no row of axes.attention; {choose(label, known)}"
        raise StudyError(("speed", kind), problem)
    if cell := own.get("cell"):
        files = {layer.attention for label in labels for layer in known[label]}
        files |= {point.attention for point in points} - labels
        checks.check(checks.of_block(cell, sorted(files)))
    common = ("timeout_seconds", "repeats", "target_seconds")
    numbers = {key: getattr(study.speed, key) for key in common}
    return Sweep(
        kind=kind,
        name=name,
        gpus=1 if study.gpus else 0,
        points=points,
        layers={label: known[label] for label in sorted(labels)},
        **numbers | own,
    )


def _point(way: str, **values: Any) -> Point:
    """A point of ``attention/implementation`` or of an attention alone."""
    attention, _, implementation = way.partition("/")
    return Point(attention=attention, implementation=implementation, **values)


def _sequences(tokens: int | None, context: int) -> int:
    """How many sequences have so many tokens at once, at least one."""
    return max(1, (tokens or 1) // context)


def _chunks(step: TimeStep, way: str, context: int, gpus: int) -> list[int] | list[None]:
    """The chunk sizes that an implementation is timed at; None stands for its own."""
    takes_chunk = registry.takes_chunk(way) and not (gpus and way.endswith("/chunked"))
    return [c for c in step.chunks or () if takes_chunk and c <= context] or [None]


def kernels(study: Study) -> list[str]:
    """Names of the kernels that a study times on a GPU, as their checks are called; none on a
    CPU, where they are plain PyTorch."""
    if not study.gpus:
        return []
    points = [point for sweep in expand(study).values() for point in sweep.points]
    return sorted({registry.checked_by(p.way) for p in points if p.implementation})


def write(folder: Path, study: Study) -> None:
    """Write ``sweeps/<sweep.folder>.json`` for every sweep into a study's folder."""
    for name, sweep in expand(study).items():
        write_json(folder / "sweeps" / f"{name}.json", dump(sweep))


def is_pending(folder: Path, sweep: Sweep) -> bool:
    """Whether ``speed/<sweep.folder>`` lacks the result of a point of the sweep.

    A damaged ``sweep.json`` is made again from the records of the points.
    """
    try:
        settled = read_json(folder / "sweep.json", "record of a sweep")["statuses"]
    except (UserError, KeyError, TypeError):
        return True
    return any(point.name not in settled for point in sweep.points)


def _cell(study: Study, size: str) -> Cell:
    point = {axis: study.axes.values(axis)[0] for axis in grid.AXES}
    cell = grid.cell(study, point | {"size": size})
    cell = replace(cell, block_tokens=None, documents="mixed", width_rule=None, base_width=None)
    return replace(cell, keep=(), protocol={}, layers=(), match=())
