"""What the rules that train ask: what a job reads and what it needs."""

import json
import shlex
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.errors import UserError, choose
from lmscaling.plan import calibrations, jobs
from lmscaling.records import ledger
from lmscaling.runtime import planned

Wildcards = Any
"""``snakemake.io.Wildcards``: an attribute for each wildcard of a rule."""

BRANCHES = r"[^/]+-branches-[^/-]+"
TRUNK = rf"(?!{BRANCHES}\.json)[^/]+"
"""Patterns of the outputs of the branches of a trunk, and of trunks: ``planned.groups``."""


class Runs:
    """Trunks and branches, and the jobs that train them.

    A job is named like its output: it trains a trunk, or all branches of one.
    """

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
        self.groups = planned.groups(self.cells)
        self.names = {run: name for name, runs in self.groups.items() for run in runs}
        self.again, self.in_job, self.gpu_cores = again, in_job, gpu_cores
        self.calibrated = calibrations.chosen(grid, self.measured)
        self.is_auto = grid.study.calibrate == calibrations.AUTO

    @cached_property
    def ended(self) -> set[str]:
        """Jobs whose output exists, and none of whose runs is asked for again."""
        folder = Path(self.results, "runs")
        found = {path.stem for path in folder.glob("*.json")}
        return (found & self.groups.keys()) - {self.names.get(run) for run in self.again}

    @cached_property
    def measured(self) -> set[str]:
        """Calibrations that exist."""
        return {path.stem for path in Path(self.results, "calibrations").glob("*.json")}

    def group(self, name: str) -> list[Cell]:
        """The cells that a job trains, one after another.

        Raises:
            UserError: The study has no such job.
        """
        if name not in self.groups and self.cell(name):
            raise UserError(
                f"{name} is trained together with the other branches of its trunk; "
                f"type {self.output(name)}"
            )
        return [self.cells[run] for run in self.groups[name]]

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
        """The output of the job that trains a run."""
        return self.path(self.names[self.cell(run).run])

    def path(self, name: str) -> str:
        return f"{self.results}/runs/{name}.json"

    def has_ended(self, wildcards: Wildcards) -> bool:
        return self.names.get(wildcards.run, wildcards.run) in self.ended

    def gpus(self, wildcards: Wildcards) -> int:
        return self.group(wildcards.run)[0].gpus

    def threads(self, wildcards: Wildcards) -> int:
        return self.gpu_cores * self.gpus(wildcards) or 1

    def mem_mb(self, wildcards: Wildcards) -> int:
        return 1000 * (32 * self.gpus(wildcards) or 4)

    def minutes(self, wildcards: Wildcards) -> int:
        """Time limit of the next job, for what is left of the budgets."""
        return jobs.job_minutes(self._left(wildcards.run), self.job_hours)

    def _calibration(self, cell: Cell) -> str:
        """Name of the calibration that a run uses: its own, or the nearest if the study measures
        only a few; empty if it uses none. A branch uses that of its trunk."""
        if cell.task:
            return ""
        if self.is_auto:
            return calibrations.nearest(cell, self.calibrated)
        return cell.calibration if cell.calibration in self.calibrated else ""

    def inputs(self, wildcards: Wildcards) -> list[str]:
        """The record of the study, with which cells are written, the check of a run's kernels, the
        mark that its text is sound, and its calibration."""
        cell = self.group(wildcards.run)[0]
        name = self._calibration(cell)
        return [
            f"{self.results}/study.json",
            *([f"{self.results}/checks/{cell.check}.json"] if cell.gpus else []),
            f"{self.results}/tokens/{cell.data.folder}/verified.json",
            *([f"{self.results}/calibrations/{name}.json"] if name else []),
        ]

    def branch_inputs(self, wildcards: Wildcards) -> list[str]:
        """The record of the trunk from which runs branch off, which has waited for the rest."""
        trunk = self.group(wildcards.run)[0].trunk
        rest = self.inputs(wildcards) if trunk in self.ended else []
        return [self.path(trunk), *rest]

    def words(self, wildcards: Wildcards) -> str:
        """Arguments of ``train`` but its output."""
        cells, results = self.group(wildcards.run), self.results
        name = self._calibration(cells[0])
        words = [f"{results}/cells/{cell.run}.json" for cell in cells]
        words += ["--manifest", f"{results}/tokens/{cells[0].data.folder}/manifest.json"]
        words += ["--scratch", f"{results}/scratch"]
        if name:
            words += ["--calibration", f"{results}/calibrations/{name}.json"]
        if name and name != cells[0].calibration:
            words += ["--calibrated", f"{results}/cells/{self.calibrated[name].run}.json"]
        if self.in_job:
            seconds = jobs.stop_seconds(self._left(wildcards.run), self.job_hours)
            words += ["--stop-after", f"{seconds:g}"]
        if self.loggers:
            words += ["--loggers", json.dumps(self.loggers)]
        return shlex.join(words)

    def _left(self, name: str) -> float | None:
        """Productive seconds that a job's runs still need; None without a budget in time."""
        seconds = 0.0
        for cell in self.group(name):
            entries = ledger.latest(Path(self.results, "scratch", cell.run, ledger.NAME))
            own = jobs.productive_seconds(cell, ledger.reached(entries))
            if own is None:
                return None
            record = Path(self.results, "runs", cell.run, planned.RECORD)
            seconds += 0.0 if record.exists() and cell.run not in self.again else own
        return seconds
