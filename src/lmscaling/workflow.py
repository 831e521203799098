"""What the rules of the workflow ask: which jobs there are, what each reads and what it needs.

A class for each subject. The methods that take ``wildcards`` are functions of a rule's ``input:``,
``params:``, ``threads:`` or ``resources:``, which Snakemake calls with the wildcards of a job; the
others are read once, when the rules are defined. All paths are relative to the working directory.

A file that is expensive and exists is a source file: ``pattern`` of each class matches only what
is still to be made, so that no rule can make the rest again.
"""

import inspect
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from lmscaling import registry
from lmscaling.config import sweeps
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.plan import jobs
from lmscaling.plan.text_jobs import Shards
from lmscaling.records import ledger
from lmscaling.records.exports import EXPORTS, PUBLISHED
from lmscaling.runtime import slurm

Wildcards = Any
"""``snakemake.io.Wildcards``: an attribute for each wildcard of a rule."""


def any_of(names: Iterable[str]) -> str:
    """A wildcard pattern that matches these names and nothing else."""
    return "|".join(map(re.escape, names)) or "(?!)"


def study_record(config: dict[str, Any], configfiles: Iterable[Path]) -> str:
    """JSON of ``study.json``: the study and the command that makes it again."""
    files = [os.path.relpath(path) for path in configfiles]
    command = " --configfile ".join(["snakemake --cores all", *files])
    return json.dumps({"command": command, "study": config})


class Runs:
    """Trunks and branches, and the jobs that train them."""

    def __init__(
        self, grid: Grid, in_job: bool, on_slurm: Callable[[], bool], gpu_cores: int = 4
    ) -> None:
        """Plan the runs of a study.

        Args:
            grid: The study.
            in_job: Whether this Snakemake runs inside a job of another one.
            on_slurm: Says whether this Snakemake submits jobs to Slurm; asked when it does.
            gpu_cores: Cores of a job for each of its GPUs.
        """
        self.results = f"results/{grid.study.study}"
        self.job_hours = grid.study.job_hours
        self.node_scratch = grid.study.node_scratch
        self.trunks = grid.cells
        self.branches = grid.branches
        self.cells = grid.cells | grid.branches
        self.calibrated = grid.calibrated
        self.in_job = in_job
        self.on_slurm = on_slurm
        self.gpu_cores = gpu_cores

    @cached_property
    def pending(self) -> set[str]:
        """Runs without a record."""
        folder = Path(self.results, "runs")
        return {run for run in self.cells if not (folder / run / "run.json").is_file()}

    def pattern(self, runs: Iterable[str]) -> str:
        """A pattern of those of these runs that a rule may train.

        A Slurm job that waited for another one may find the record that it is to write: it writes
        the same record again.
        """
        return any_of(run for run in runs if self.in_job or run in self.pending)

    def gpus(self, wildcards: Wildcards) -> int:
        return self.cells[wildcards.run].gpus

    def threads(self, wildcards: Wildcards) -> int:
        return self.gpu_cores * self.gpus(wildcards) or 1

    def mem(self, wildcards: Wildcards) -> str:
        return f"{32 * self.gpus(wildcards) or 4}GB"

    def minutes(self, wildcards: Wildcards) -> int:
        return jobs.job_minutes(self.cells[wildcards.run], self.job_hours)

    def calibration(self, wildcards: Wildcards) -> list[str]:
        """The calibration of a run, if the study measures it."""
        name = self.cells[wildcards.run].calibration
        return [f"{self.results}/calibrations/{name}.json"] if name in self.calibrated else []

    def trunk(self, wildcards: Wildcards) -> str:
        """Record of the trunk from which a run branches off."""
        return f"{self.results}/runs/{self.cells[wildcards.run].trunk}/run.json"

    def options(self, wildcards: Wildcards, input: Any) -> str:
        """Options of ``train`` that not every job has."""
        options = f"--calibration {input.calibration}" if input.calibration else ""
        if self.in_job:
            seconds = jobs.stop_seconds(self.cells[wildcards.run], self.job_hours)
            options += f" --stop-after {seconds:g}"
        if self.node_scratch:
            options += f" --node-scratch {shlex.quote(self.node_scratch)}"
        return options.strip()

    def sbatch_options(self, wildcards: Wildcards) -> str:
        """Options of ``sbatch``: warn the job before its limit, queue it after an earlier one, and
        avoid the nodes on which it failed. Snakemake asks again before each try.

        The signal is SIGTERM: USR1 would kill the Snakemake inside the job and the training.
        """
        seconds = round(jobs.spare_seconds(self.job_hours))
        path = Path(self.results, "scratch", wildcards.run, ledger.NAME)
        sick = ledger.sick_nodes(ledger.entries(path)) if path.is_file() else []
        exclude = slurm.excluding(sick) if sick and self.on_slurm() else ""
        return f"--signal=TERM@{seconds}{self._dependencies.get(wildcards.run, '')}{exclude}"

    @cached_property
    def _dependencies(self) -> dict[str, str]:
        return slurm.dependencies(["train", "branch"]) if self.on_slurm() else {}

    def further_jobs(self) -> dict[str, int]:
        """How many jobs the longest run of a rule needs after its first, by rule.

        They are restarts beyond the retries of the profile, which are for failures.
        """
        rules: dict[str, dict[str, Cell]] = {"train": self.trunks, "branch": self.branches}
        return {
            rule: max(jobs.job_count(cell, self.job_hours) for cell in cells.values()) - 1
            for rule, cells in rules.items()
            if cells
        }


class Calibrations:
    """Measurements of how a cell is trained fastest on this device."""

    def __init__(self, grid: Grid) -> None:
        self.results = f"results/{grid.study.study}"
        self.cells = grid.calibrated

    @property
    def pattern(self) -> str:
        folder = Path(self.results, "calibrations")
        return any_of(name for name in self.cells if not (folder / f"{name}.json").is_file())

    def cell(self, wildcards: Wildcards) -> str:
        return f"{self.results}/cells/{self.cells[wildcards.calibration].run}.json"

    def gpus(self, wildcards: Wildcards) -> int:
        return min(1, self.cells[wildcards.calibration].gpus)


class Evaluations:
    """Pairs of a finished run and a text, named ``<run>/<tokens>``."""

    def __init__(self, grid: Grid, runs: Runs) -> None:
        self.results = runs.results
        self.cells = runs.cells
        self.pending_runs = runs.pending
        texts = grid.study.evaluate.datasets if grid.study.evaluate else []
        self.names = [
            f"{run}/{tokens}"
            for run in grid.evaluated
            for tokens, corpus in grid.corpora.items()
            if corpus.dataset in texts
        ]

    @property
    def pattern(self) -> str:
        """Pairs without an evaluation, and those whose run is to be trained again.

        Both names hold a hash of everything that an evaluation depends on.
        """
        folder = Path(self.results, "evaluations")
        return any_of(
            name
            for name in self.names
            if os.path.dirname(name) in self.pending_runs
            or not (folder / f"{name}.jsonl").is_file()
        )

    def record(self, wildcards: Wildcards) -> str:
        return f"{self.results}/runs/{os.path.dirname(wildcards.evaluation)}/run.json"

    def manifest(self, wildcards: Wildcards) -> str:
        return f"{self.results}/tokens/{os.path.basename(wildcards.evaluation)}/manifest.json"

    def gpus(self, wildcards: Wildcards) -> int:
        return min(1, self.cells[os.path.dirname(wildcards.evaluation)].gpus)


class Sweeps:
    """Sweeps of the speed study by their folder ``<kind>/<name>-<hash>``."""

    kinds = tuple(sweeps.KINDS)
    """A rule for each."""

    def __init__(self, grid: Grid) -> None:
        self.results = f"results/{grid.study.study}"
        self.names = sweeps.expand(grid.study)

    def pattern(self, kind: str) -> str:
        """Sweeps of a kind with a point that is not settled."""
        folder = Path(self.results, "speed")
        return any_of(
            name
            for name, sweep in self.names.items()
            if sweep.kind == kind and sweeps.is_pending(folder / name, sweep)
        )

    def gpus(self, wildcards: Wildcards) -> int:
        return self.names[wildcards.sweep].gpus

    def chunks(self, wildcards: Wildcards) -> list[str]:
        """The fastest chunks of this size, which the sweep of its training steps uses."""
        tuned = wildcards.sweep.replace("time_step/", "tune_chunk/")
        is_other = tuned != wildcards.sweep and tuned in self.names
        return [f"{self.results}/speed/{tuned}/sweep.json"] if is_other else []

    def options(self, wildcards: Wildcards, input: Any) -> str:
        return f"--chunks {input.chunks}" if input.chunks else ""


class Figures:
    """Figures of the package by name, and the tables that they are drawn from."""

    def __init__(self, grid: Grid) -> None:
        results = f"results/{grid.study.study}"
        self.names = list(registry.figures())
        self.tables = [f"{results}/store/{table}.parquet" for table in EXPORTS]
        """The store as Parquet files."""
        self.published = [
            f"results/published/{stem}.csv" for stem in PUBLISHED if grid.study.published
        ]
        """Numbers of others that the store holds beside those of the study."""
        self.store_sources = [os.path.relpath(path) for path in registry.store_sources()]
        """Source files that decide what the store contains."""

    def sources(self, wildcards: Wildcards) -> list[str]:
        """Source files that decide what a figure shows."""
        return [os.path.relpath(path) for path in registry.figure_sources(wildcards.figure)]


# Snakemake asks for the signature of a rule's function once for each job, which took a seventh of
# the planning time of a large study.
for _subject in (Runs, Calibrations, Shards, Evaluations, Sweeps, Figures):
    for _method in filter(inspect.isfunction, vars(_subject).values()):
        _method.__signature__ = inspect.signature(_method)
