"""Runs that were trained by other code than the present: which they are and what to type.

An edit of an attention or its kernels trains nothing again, see ``config/code.py``.
"""

from pathlib import Path

from lmscaling.config import code
from lmscaling.config.grid import Grid
from lmscaling.records import finished

NOTE = "trained by other code"


def runs(study: Path, grid: Grid) -> list[str]:
    """The stale runs of a study, in its order."""
    kept = {path.stem for path in study.glob("code/*.json")}
    cells = grid.cells | grid.branches
    if not kept or kept <= {code.present(cell) for cell in cells.values()}:
        return []  # without reading a thousand records
    records = {run: study / "runs" / run / "run.json" for run in cells}
    return [
        run
        for run, path in records.items()
        if path.is_file() and code.is_stale(cells[run], finished.look(path))
    ]


def line(study: str, stale: list[str]) -> list[str]:
    """A sentence on the stale runs of a study, if there are any."""
    n = len(stale)
    if not n:
        return []
    verb = "run was" if n == 1 else "runs were"
    again = f"python -m lmscaling reset --study {study} --stale"
    return [f"{n} {verb} {NOTE} than the present; to train again: {again}"]
