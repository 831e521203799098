"""From the section ``speed:`` of a study to its sweeps: what one job measures, point by point.

A series is the points that differ only in their context; it ends where memory or time runs out.
All are measured with one document per sequence, whatever ``documents`` says.
"""

from dataclasses import replace
from pathlib import Path

from lmscaling import registry
from lmscaling.config import grid, kinds
from lmscaling.config.cell import Cell
from lmscaling.config.speed import Planner, Sweep
from lmscaling.config.study import Study
from lmscaling.config.types import dump
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_json

KINDS = kinds.DESCRIPTIONS
"""What a rule measures, by its name."""


def expand(study: Study) -> dict[str, Sweep]:
    """The sweeps of a study by their folder; none without a section ``speed:``."""
    if study.speed is None:
        return {}
    planner = Planner(study.speed, study.gpus, lambda size: _cell(study, size), study.axes.layers)
    sweeps = [
        sweep
        for kind, module in kinds.MODULES.items()
        if (section := getattr(study.speed, kind))
        for sweep in module.sweeps(section, planner)
    ]
    return {sweep.folder: sweep for sweep in sweeps}


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
    cell = replace(cell, block_tokens=None, documents="mixed")
    return replace(cell, keep=(), protocol={}, layers=(), match=())
