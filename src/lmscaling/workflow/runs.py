"""What the rules that train ask: which runs a job trains, what it reads and what it needs.

A run with a record is a source file: the patterns match only the others, so that no rule can train
a finished run again.
"""

import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.plan import calibrations, jobs
from lmscaling.records import ledger
from lmscaling.runtime import slurm
from lmscaling.runtime.slurm_queue import Queue

Wildcards = Any
"""``snakemake.io.Wildcards``: an attribute for each wildcard of a rule."""

TRUNK, BRANCH = r"(?![^/]*-b[\d.e-]+-[^/-]*/)[^/]+", r"[^/]*-b[\d.e-]+-[^/-]+"
"""Patterns of the folders of trunks and of branches, see ``Cell.run``."""


def any_of(names: Iterable[str]) -> str:
    """A wildcard pattern that matches these names and nothing else."""
    return "|".join(map(re.escape, names)) or "(?!)"


def some_of(pattern: str, pending: Iterable[str], known: Iterable[str]) -> str:
    """A pattern of those runs of a kind that are pending; it lists the smaller part by its hashes.

    Snakemake edits the text of a pattern for every job: names made it 200 kB long.

    Args:
        pattern: What all runs of the kind match, and no others. In a path, ``/`` or ``.`` follows.
        pending: The runs to match.
        known: All runs of the kind in the study.
    """
    known, pending = set(known), set(pending)
    digests = {run: run.rpartition("-")[2] for run in known}
    if len(set(digests.values())) < len(known):  # two hashes of 32 bits may be equal
        digests = {run: run for run in known}
    wanted, others = (sorted(digests[run] for run in runs) for runs in (pending, known - pending))
    if not wanted:
        return "(?!)"
    if not others:
        return pattern
    if len(wanted) <= len(others):
        return f"(?:[^/]+-)?(?:{any_of(wanted)})"
    return f"(?!(?:[^/]+-)?(?:{any_of(others)})[/.]){pattern}"


def check_of(results: str, cell: Cell) -> list[str]:
    """The check of the kernels that a cell trains with; none on a CPU."""
    return [f"{results}/checks/{cell.check}.json"] if cell.gpus else []


class Runs:
    """Trunks and branches, and the jobs that train them.

    One job trains the branches of a trunk one after another: they are short, and a job for each
    would be most jobs of a study. The output of the job is the record of its last branch, and the
    records of the others appear beside it.
    """

    def __init__(
        self,
        grid: Grid,
        in_job: bool,
        on_slurm: Callable[[], bool],
        site_options: str = "",
        gpu_cores: int = 4,
        rules: Collection[str] = ("train", "branch"),
    ) -> None:
        """Plan the runs of a study.

        Args:
            grid: The study.
            in_job: Whether this Snakemake runs inside a job of another one.
            on_slurm: Says whether this Snakemake submits jobs to Slurm; asked when it does.
            site_options: Options of ``sbatch`` that the profile gives to every job.
            gpu_cores: Cores of a job for each of its GPUs.
            rules: Names that Snakemake gives to the two rules.
        """
        self.results = grid.results
        self.job_hours = grid.study.job_hours
        self.loggers = grid.study.loggers
        self.trunks = grid.cells | grid.tasks
        self.branches = grid.branches
        self.cells = self.trunks | grid.branches
        self.in_job = in_job
        self.on_slurm = on_slurm
        self.site_options = site_options
        self.gpu_cores = gpu_cores
        self.queue = Queue(Path(self.results), rules)
        self.calibrated = calibrations.chosen(grid, self.measured)
        self.is_auto = grid.study.calibrate == calibrations.AUTO

    @cached_property
    def finished(self) -> set[str]:
        """Folders with a record."""
        folders = Path(self.results, "runs")
        names = os.listdir(folders) if folders.is_dir() else []
        return {name for name in names if (folders / name / "run.json").is_file()}

    @cached_property
    def pending(self) -> set[str]:
        """Runs without a record."""
        return self.cells.keys() - self.finished

    @cached_property
    def measured(self) -> set[str]:
        """Calibrations that exist."""
        return {path.stem for path in Path(self.results, "calibrations").glob("*.json")}

    @cached_property
    def siblings(self) -> dict[str, list[str]]:
        """Branches of each trunk, the shortest first."""
        groups: dict[str, list[str]] = {}
        for run, cell in sorted(self.branches.items(), key=lambda item: item[1].branch or 0):
            groups.setdefault(cell.trunk, []).append(run)
        return groups

    @cached_property
    def representatives(self) -> list[str]:
        """The branches whose record is the output of a job: of each trunk the last without one."""
        pending = ([run for run in runs if run in self.pending] for runs in self.siblings.values())
        return [runs[-1] for runs in pending if runs]

    def represented(self, target: str) -> str:
        """The output of the job that makes a target: for a pending branch, that of its job."""
        run = Path(target).parent.name
        if target != f"{self.results}/runs/{run}/run.json" or run not in self.branches:
            return target
        siblings = self.siblings[self.branches[run].trunk]
        last = [other for other in siblings if other in self.pending and run in self.pending]
        return f"{self.results}/runs/{last[-1]}/run.json" if last else target

    @property
    def recorded(self) -> list[str]:
        """Runs whose records cover those of all: trunks, their last branches, and what is pending.

        The list stays the same when pending branches have been trained, so that nothing runs again.
        """
        last = [runs[-1] for runs in self.siblings.values()]
        return list(dict.fromkeys([*self.trunks, *last, *self.representatives]))

    @property
    def trunk_pattern(self) -> str:
        """Trunks that a rule may train; in a job any, for a late one must find its rule."""
        pending = self.trunks if self.in_job else self.trunks.keys() & self.pending
        return some_of(TRUNK, pending, self.trunks)

    @property
    def branch_pattern(self) -> str:
        """Branches whose record is the output of a job; in a job any."""
        if self.in_job or self.branches.keys() <= self.pending:
            return BRANCH if self.branches else "(?!)"
        return some_of(BRANCH, self.representatives, self.branches)

    def group(self, run: str) -> list[Cell]:
        """The cells that the job of a run trains, in order; the last is its own."""
        if run in self.trunks:
            return [self.trunks[run]]
        own = self.branches[run]
        siblings = [self.branches[other] for other in self.siblings[own.trunk]]
        shorter = [cell for cell in siblings if (cell.branch or 0) < (own.branch or 0)]
        return [cell for cell in shorter if self.in_job or cell.run in self.pending] + [own]

    def cell_files(self, wildcards: Wildcards) -> list[str]:
        """``cell.json`` of each cell that a job trains."""
        return [f"{self.results}/cells/{cell.run}.json" for cell in self.group(wildcards.run)]

    def gpus(self, wildcards: Wildcards) -> int:
        return self.cells[wildcards.run].gpus

    def threads(self, wildcards: Wildcards) -> int:
        return self.gpu_cores * self.gpus(wildcards) or 1

    def mem_mb(self, wildcards: Wildcards) -> int:
        return 1000 * (32 * self.gpus(wildcards) or 4)

    def minutes(self, wildcards: Wildcards) -> int:
        """Time limit of the next job, for what is left of the budget."""
        return jobs.job_minutes(self._left(wildcards.run), self.job_hours)

    def calibration(self, wildcards: Wildcards) -> str | list[str]:
        """The calibration that a run uses, if the study measures one.

        No list of one: for each list with a name Snakemake makes a further object.
        """
        name = self._calibration(wildcards.run)
        return f"{self.results}/calibrations/{name}.json" if name else []

    def _calibration(self, run: str) -> str:
        """Name of the calibration that a run uses: its own, or the nearest if the study measures
        only a few; empty if it uses none."""
        cell = self.cells[run]
        if cell.task:
            return ""
        if self.is_auto:
            return calibrations.nearest(cell, self.calibrated)
        return cell.calibration if cell.calibration in self.calibrated else ""

    def before(self, wildcards: Wildcards) -> list[str]:
        """The record of the study, with which cells are written, and the check of a run's kernels.

        A calibration that is still to be made waits for both. A run that waits for it names
        neither, so that the plan of a large study needs 2 kB less for each.
        """
        cell, name = self.cells[wildcards.run], self._calibration(wildcards.run)
        waits = name and name not in self.measured and self.calibrated[name].check == cell.check
        return [] if waits else [f"{self.results}/study.json", *check_of(self.results, cell)]

    def trunk(self, wildcards: Wildcards) -> str:
        """Record of the trunk from which a run branches off."""
        return f"{self.results}/runs/{self.cells[wildcards.run].trunk}/run.json"

    def options(self, wildcards: Wildcards, input: Any) -> str:
        """Options of ``train`` that not every job has."""
        path = shlex.quote(str(input.calibration))
        options = f"--calibration {path}" if input.calibration else ""
        name = self._calibration(wildcards.run)
        if name and name != self.cells[wildcards.run].calibration:
            measured = self.calibrated[name].run
            options += f" --calibrated {shlex.quote(f'{self.results}/cells/{measured}.json')}"
        if self.in_job or self.on_slurm():
            seconds = jobs.stop_seconds(self._left(wildcards.run), self.job_hours)
            options += f" --stop-after {seconds:g}"
        if self.loggers:
            options += f" --loggers {shlex.quote(json.dumps(self.loggers))}"
        return options.strip()

    def sbatch_options(self, wildcards: Wildcards) -> str:
        """Options of ``sbatch``: those of the site; warn the job before its limit, queue it after
        an earlier one, and avoid the nodes on which it failed. Asked again before each try.

        The signal is SIGTERM: USR1 would kill a Snakemake inside the job.
        """
        signal = f"--signal=TERM@{round(jobs.spare_seconds(self.job_hours))}"
        if not self.on_slurm():
            return slurm.joined(self.site_options, signal)
        runs = [cell.run for cell in self.group(wildcards.run)]
        sick = {node for run in runs for node in ledger.sick_nodes(self._ledger(run))}
        exclude = slurm.excluding(sick) if sick else ""
        dependency = self.queue.dependency(*runs)
        return slurm.joined(self.site_options, signal, dependency, exclude)

    def further_jobs(self) -> dict[str, int]:
        """How many jobs the longest open run of a rule needs after its next one, by rule.

        They are restarts beyond the retries of the profile, which are for failures.
        """
        trunks = [run for run in self.trunks if run in self.pending]
        counts = {
            rule: [jobs.job_count(self._left(run), self.job_hours) for run in runs]
            for rule, runs in (("train", trunks), ("branch", self.representatives))
        }
        return {rule: max(n) - 1 for rule, n in counts.items() if n}

    def _left(self, run: str) -> float | None:
        """Productive seconds that the cells of a job still need; None without a budget in time."""
        seconds = 0.0
        for cell in self.group(run):
            own = jobs.productive_seconds(cell, ledger.reached(self._ledger(cell.run)))
            if own is None:
                return None
            seconds += own if cell.run in self.pending else 0.0
        return seconds

    def _ledger(self, run: str) -> list[ledger.Entry]:
        return ledger.latest(Path(self.results, "scratch", run, ledger.NAME))
