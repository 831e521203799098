"""What the rules that train ask: what a job reads and what it needs."""

import json
import shlex
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.errors import UserError, choose
from lmscaling.plan import calibrations, jobs
from lmscaling.records import ledger

Wildcards = Any
"""``snakemake.io.Wildcards``: an attribute for each wildcard of a rule."""

BRANCH = r"[^/]*-b[\d.e-]+-[^/-]+"
TRUNK = rf"(?!{BRANCH}\.json)[^/]+"
"""Patterns of the outputs of branches and of trunks, see ``Cell.run``."""


class Runs:
    """Trunks and branches."""

    def __init__(
        self, grid: Grid, again: Collection[str] = (), in_job: bool = False, gpu_cores: int = 4
    ) -> None:
        """Plan the runs of a study.

        Args:
            grid: The study.
            again: Runs that are asked for again.
            in_job: Whether this Snakemake runs inside a job of another one.
            gpu_cores: Cores of a job for each of its GPUs.
        """
        self.results = grid.results
        self.job_hours = grid.study.job_hours
        self.loggers = grid.study.loggers
        self.trunks = grid.cells | grid.tasks
        self.cells = grid.runs
        self.again, self.in_job, self.gpu_cores = again, in_job, gpu_cores
        self.calibrated = calibrations.chosen(grid, self.measured)
        self.is_auto = grid.study.calibrate == calibrations.AUTO

    @cached_property
    def ended(self) -> set[str]:
        """Runs that have ended and are not asked for again."""
        found = Path(self.results, "runs").glob("*.json")
        return {path.stem for path in found} - set(self.again)

    @cached_property
    def measured(self) -> set[str]:
        """Calibrations that exist."""
        return {path.stem for path in Path(self.results, "calibrations").glob("*.json")}

    def cell(self, run: str) -> Cell:
        """The cell of a run.

        Raises:
            UserError: The study has no such run.
        """
        if run not in self.cells:
            nearest = choose(run, self.cells).partition("; ")[0]
            raise UserError(f"{run} is no run of this study; {nearest}")
        return self.cells[run]

    def output(self, run: str) -> str:
        return f"{self.results}/runs/{run}.json"

    def shared(self, ask: Callable[[Wildcards], int]) -> int | Callable[[Wildcards], int]:
        """A number that all runs share, or else the function, which Snakemake asks for each job."""
        values = {ask(SimpleNamespace(run=run)) for run in self.cells}
        return values.pop() if len(values) == 1 else ask

    def has_ended(self, wildcards: Wildcards) -> bool:
        return wildcards.run in self.ended

    def gpus(self, wildcards: Wildcards) -> int:
        return self.cell(wildcards.run).gpus

    def threads(self, wildcards: Wildcards) -> int:
        return self.gpu_cores * self.gpus(wildcards) or 1

    def mem_mb(self, wildcards: Wildcards) -> int:
        return 1000 * (32 * self.gpus(wildcards) or 4)

    def minutes(self, wildcards: Wildcards) -> int:
        """Time limit of the next job, for what is left of the budget."""
        return jobs.job_minutes(self._left(wildcards.run), self.job_hours)

    def _calibration(self, cell: Cell) -> str:
        """Name of the calibration that a run uses: its own, or the nearest if the study measures
        only a few; empty if it uses none."""
        if cell.task:
            return ""
        if self.is_auto:
            return calibrations.nearest(cell, self.calibrated)
        return cell.calibration if cell.calibration in self.calibrated else ""

    def inputs(self, wildcards: Wildcards) -> list[str]:
        """The record of the study, with which cells are written, the check of a run's kernels, the
        mark that its text is sound, and its calibration."""
        cell = self.cell(wildcards.run)
        name = self._calibration(cell)
        return [
            f"{self.results}/study.json",
            *([f"{self.results}/checks/{cell.check}.json"] if cell.gpus else []),
            f"{self.results}/tokens/{cell.data.folder}/verified.json",
            *([f"{self.results}/calibrations/{name}.json"] if name else []),
        ]

    def branch_inputs(self, wildcards: Wildcards) -> list[str]:
        """The record of the trunk from which a run branches off, which has waited for the rest."""
        trunk = self.cell(wildcards.run).trunk
        rest = self.inputs(wildcards) if trunk in self.ended else []
        return [self.output(trunk), *rest]

    def words(self, wildcards: Wildcards) -> str:
        """Arguments of ``train`` but its output."""
        cell = self.cell(wildcards.run)
        name, results = self._calibration(cell), self.results
        words = [f"{results}/cells/{cell.run}.json"]
        words += ["--manifest", f"{results}/tokens/{cell.data.folder}/manifest.json"]
        words += ["--scratch", f"{results}/scratch/{cell.run}"]
        if name:
            words += ["--calibration", f"{results}/calibrations/{name}.json"]
        if name and name != cell.calibration:
            words += ["--calibrated", f"{results}/cells/{self.calibrated[name].run}.json"]
        if self.in_job:
            seconds = jobs.stop_seconds(self._left(cell.run), self.job_hours)
            words += ["--stop-after", f"{seconds:g}"]
        if self.loggers:
            words += ["--loggers", json.dumps(self.loggers)]
        return shlex.join(words)

    def _left(self, run: str) -> float | None:
        """Productive seconds that a run still needs; None without a budget in time."""
        entries = ledger.latest(Path(self.results, "scratch", run, ledger.NAME))
        return jobs.productive_seconds(self.cell(run), ledger.reached(entries))
