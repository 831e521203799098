"""How far the cells of a study have come while the workflow runs, for the terminal."""

from collections.abc import Mapping
from pathlib import Path

from lmscaling.config.cell import Cell
from lmscaling.runtime.console import Cells
from lmscaling.status import table


class Watch:
    """Looks at cells again and again, and reads the record of each only once.

    Args:
        study: ``results/<study>``.
        cells: The cells by run.
        finished: Runs that have a record already.
    """

    def __init__(self, study: Path, cells: Mapping[str, Cell], finished: set[str]) -> None:
        self._study, self._total = study, len(cells)
        self._open = {run: cell.name for run, cell in cells.items() if run not in finished}
        self._ended: list[tuple[str, ...]] = []

    def look(self) -> Cells:
        """The present state."""
        running, spent = [], 0.0
        for run, name in list(self._open.items()):
            over = (self._study / "runs" / run / "run.json").is_file()
            if not over and not (self._study / "scratch" / run).is_dir():
                continue
            row = table.row(self._study, run, name)
            if over:
                del self._open[run]
                self._ended.append((name, row.updates, row.status, "", row.val_loss))
            else:
                spent += row.share
            if row.status == "running":
                running.append((name, row.updates, row.budget, row.train_loss, row.val_loss))
        done = self._total - len(self._open)
        share = (done + spent) / max(1, self._total)
        return Cells(done, self._total, share, running, self._ended)
