"""What the rules of the workflow ask: which jobs there are, what each reads and what it needs.

A class for each subject. The methods that take ``wildcards`` are functions of a rule's ``input:``,
``params:``, ``threads:`` or ``resources:``, which Snakemake calls with the wildcards of a job; the
others are read once, when the rules are defined. All paths are relative to the working directory.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lmscaling import registry
from lmscaling.config import code, study_file, sweeps
from lmscaling.config.grid import Grid
from lmscaling.config.types import digest
from lmscaling.records.exports import EXPORTS, PUBLISHED
from lmscaling.status import stale
from lmscaling.workflow.runs import BRANCH, TRUNK, Runs, Wildcards
from lmscaling.workflow.text import CHUNK, Shards

__all__ = [
    "BRANCH",
    "CHUNK",
    "TRUNK",
    "Calibrations",
    "Checks",
    "Evaluations",
    "Figures",
    "Records",
    "Runs",
    "Samples",
    "Shards",
    "Sweeps",
]

DEMO = registry.PROJECT / "config" / "demo.yaml"
"""The study of ``lmscaling demo``, which runs in any folder."""

MOST_CHANGES = 5
"""Changes of a study that are printed."""


def fixed(value: Any) -> Callable[[Wildcards], Any]:
    """A function of a rule that returns this value: in a string Snakemake replaces ``{names}``."""
    return lambda wildcards: value


def study_record(
    config: dict[str, Any],
    configfiles: Iterable[Path],
    changes: dict[str, Any] | None = None,
    overrides: Iterable[str] = (),
) -> str:
    """JSON of ``study.json``: the study and the command that makes it again."""
    files = [Path(os.path.relpath(path)) for path in configfiles]
    command = study_file.command("snakemake --cores all", files, changes or {}, overrides)
    plain = not changes and not overrides and list(map(os.path.abspath, files)) == [str(DEMO)]
    if plain and Path.cwd() != registry.PROJECT:
        command = "lmscaling demo"
    return json.dumps({"command": command, "study": config})


def say_changes(grid: Grid, config: dict[str, Any]) -> None:
    """Print what has changed in the study, and in the code that trained its runs."""
    path = Path(grid.results, "study.json")
    if found := study_file.changes(path, config):
        shown = found[:MOST_CHANGES]
        if len(found) > MOST_CHANGES:
            shown.append(f"and {len(found) - MOST_CHANGES} more")
        print(
            f"study {grid.study.study} has changed since it last ran: {'; '.join(shown)}; jobs "
            "that are queued keep the study with which they were submitted",
            file=sys.stderr,
        )
    for line in code.stale_line(grid.study.study, len(stale.runs(path.parent, grid))):
        print(line, file=sys.stderr)


class Checks:
    """Checks of the kernels that cells train with on GPUs, one for all cells with the same."""

    def __init__(self, grid: Grid) -> None:
        self.results, self.cells = grid.results, grid.checked

    def exists(self, wildcards: Wildcards) -> bool:
        return os.path.exists(f"{self.results}/checks/{wildcards.check}.json")

    def cell(self, wildcards: Wildcards) -> str:
        return f"{self.results}/cells/{self.cells[wildcards.check].run}.json"


class Calibrations:
    """Measurements of how a cell is trained fastest on this device."""

    def __init__(self, runs: Runs) -> None:
        self.results, self.cells, self.measured = runs.results, runs.calibrated, runs.measured

    def exists(self, wildcards: Wildcards) -> bool:
        return wildcards.calibration in self.measured

    def cell(self, wildcards: Wildcards) -> str:
        return f"{self.results}/cells/{self.cells[wildcards.calibration].run}.json"

    def before(self, wildcards: Wildcards) -> list[str]:
        """The record of the study, with which cells are written, and the check of the kernels."""
        cell = self.cells[wildcards.calibration]
        checks = [f"{self.results}/checks/{cell.check}.json"] if cell.gpus else []
        return [f"{self.results}/study.json", *checks]

    def gpus(self, wildcards: Wildcards) -> int:
        return min(1, self.cells[wildcards.calibration].gpus)


class Evaluations:
    """Finished runs on texts, ``evaluations/<run>/<text>.jsonl``."""

    def __init__(self, grid: Grid, runs: Runs) -> None:
        self.results, self.runs = runs.results, runs
        texts = grid.study.evaluate.datasets if grid.study.evaluate else []
        texts = [t for t, corpus in grid.corpora.items() if corpus.dataset in texts]
        self.paths = [
            f"{self.results}/evaluations/{run}/{text}.jsonl"
            for run in grid.evaluated
            for text in texts
        ]

    def exists(self, wildcards: Wildcards) -> bool:
        """Whether there is an evaluation of these weights; it moves away together with them."""
        path = f"{self.results}/evaluations/{wildcards.run}/{wildcards.text}.jsonl"
        return self.runs.has_ended(wildcards) and os.path.exists(path)

    def inputs(self, wildcards: Wildcards) -> list[str]:
        return [self.runs.output(wildcards.run), self.manifest(wildcards)]

    def words(self, wildcards: Wildcards) -> str:
        """Arguments of ``evaluate`` but its output."""
        run = f"{self.results}/runs/{wildcards.run}"
        return shlex.join([run, "--manifest", self.manifest(wildcards)])

    def manifest(self, wildcards: Wildcards) -> str:
        return f"{self.results}/tokens/{wildcards.text}/manifest.json"

    def gpus(self, wildcards: Wildcards) -> int:
        return min(1, self.runs.gpus(wildcards))


class Samples:
    """Images drawn by the finished runs of tasks that train on images."""

    def __init__(self, grid: Grid, runs: Runs) -> None:
        self.results, self.runs = grid.results, runs
        self.paths = [f"{self.results}/samples/{run}.json" for run in grid.drawing]

    def exists(self, wildcards: Wildcards) -> bool:
        path = f"{self.results}/samples/{wildcards.run}.json"
        return self.runs.has_ended(wildcards) and os.path.exists(path)

    def inputs(self, wildcards: Wildcards) -> list[str]:
        return [self.runs.output(wildcards.run), self.manifest(wildcards)]

    def words(self, wildcards: Wildcards) -> str:
        """Arguments of ``draw-images`` but its output."""
        run = f"{self.results}/runs/{wildcards.run}"
        return shlex.join([run, "--manifest", self.manifest(wildcards)])

    def manifest(self, wildcards: Wildcards) -> str:
        return f"{self.results}/tokens/{self.runs.cell(wildcards.run).data.folder}/manifest.json"


class Sweeps:
    """Sweeps of the speed study by their folder ``<kind>/<name>-<hash>``."""

    kinds = tuple(sweeps.KINDS)
    """A rule for each."""

    def __init__(self, grid: Grid) -> None:
        self.results, self.names = grid.results, sweeps.expand(grid.study)
        self.paths = [f"{self.results}/speed/{sweep}/sweep.json" for sweep in self.names]
        kernels = sweeps.kernels(grid.study)
        name = f"kernels-{digest({'names': kernels})}"
        self.checks = [f"{self.results}/speed/{name}.json"] if kernels else []
        """The check of the kernels that are timed; none on a CPU."""

    def exists(self, wildcards: Wildcards) -> bool:
        """Whether every point of a sweep is settled."""
        folder = Path(self.results, "speed", wildcards.sweep)
        return not sweeps.is_pending(folder, self.names[wildcards.sweep])

    def gpus(self, wildcards: Wildcards) -> int:
        return self.names[wildcards.sweep].gpus

    def are_checked(self, wildcards: Wildcards) -> bool:
        return os.path.exists(f"{self.results}/speed/kernels-{wildcards.kernels}.json")

    def inputs(self, wildcards: Wildcards) -> list[str]:
        """The record of the study, with which sweeps are written, and what is measured before."""
        return [f"{self.results}/study.json", *self.checks, *self._chunks(wildcards.sweep)]

    def _chunks(self, sweep: str) -> list[str]:
        """The fastest chunks of this size, which the sweep of its training steps uses."""
        tuned = sweep.replace("time_step/", "tune_chunk/")
        is_other = tuned != sweep and tuned in self.names
        return [f"{self.results}/speed/{tuned}/sweep.json"] if is_other else []

    def options(self, wildcards: Wildcards) -> str:
        options = {"--checks": self.checks, "--chunks": self._chunks(wildcards.sweep)}
        return " ".join(f"{key} {shlex.quote(path[0])}" for key, path in options.items() if path)


class Figures:
    """Figures of the package by name, and the tables that they are drawn from."""

    def __init__(self, grid: Grid) -> None:
        results, self.cells = grid.results, grid.cells | grid.tasks
        self.names = list(registry.figures())
        self.tables = [f"{results}/store/{table}.parquet" for table in EXPORTS]
        """The store as Parquet files."""
        self.paths = [
            f"{results}/figures/{name}.{kind}"
            for name in self.names
            for kind in ("svg", "png", "csv")
        ]
        self.published = [
            f"{grid.folder}/published/{stem}.csv" for stem in PUBLISHED if grid.study.published
        ]
        """Numbers of others that the store holds beside those of the study."""
        sources = {path for name in self.names for path in registry.figure_sources(name)}
        self.sources = sorted(map(os.path.relpath, sources))
        """Source files that decide what figures show."""
        self.store_sources = [os.path.relpath(path) for path in registry.store_sources()]
        """Source files that decide what the store contains."""

    def attention_sources(self, wildcards: Wildcards) -> list[str]:
        """Source files of the attentions of the study: the report says which runs are of others."""
        names = {name for cell in self.cells.values() for name in code.attentions(cell)}
        return [os.path.relpath(path) for path in registry.attention_sources(names)]


class Records:
    """What the store is built from, and all that a study makes."""

    def __init__(
        self,
        runs: Runs,
        evaluations: Evaluations,
        samples: Samples,
        sweeps: Sweeps,
        figures: Figures,
    ) -> None:
        self.names = [
            *map(runs.output, runs.cells), *evaluations.paths, *samples.paths, *sweeps.paths,
        ]  # fmt: skip
        self.targets = [
            f"{runs.results}/report.html", *figures.paths, *figures.tables, *self.names,
        ]  # fmt: skip
        """Snakemake does not miss what lies between files that exist, so all are named."""

    def every(self, wildcards: Wildcards) -> list[str]:
        """A function: of names in a rule, Snakemake would hold a second copy."""
        return self.names
