"""Which runs of a study were trained by other code than the present, see ``config/code.py``."""

from pathlib import Path

from lmscaling.config import code
from lmscaling.config.grid import Grid
from lmscaling.records import finished


def runs(study: Path, grid: Grid) -> list[str]:
    """The stale runs of a study, in its order."""
    kept = {path.stem for path in study.glob("code/*.json")}
    cells = grid.cells | grid.branches | grid.tasks
    if not kept or kept <= {
        of(cell) for cell in cells.values() for of in (code.present, code.program)
    }:
        return []  # without reading a thousand records
    records = {run: study / "runs" / run / "run.json" for run in cells}
    return [
        run
        for run, path in records.items()
        if path.is_file() and code.is_stale(cells[run], finished.look(path))
    ]
