"""What the rules of the workflow ask: which jobs there are, what each reads and what it needs.

A class for each subject. The methods that take ``wildcards`` are functions of a rule's ``input:``,
``params:``, ``threads:`` or ``resources:``, which Snakemake calls with the wildcards of a job; the
others are read once, when the rules are defined. All paths are relative to the working directory.

A file that is expensive and exists is a source file: ``pattern`` of each class matches only what
is still to be made, so that no rule can make the rest again.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lmscaling import registry
from lmscaling.config import code, study_file, sweeps
from lmscaling.config.grid import Grid
from lmscaling.records.exports import EXPORTS, PUBLISHED
from lmscaling.status import stale
from lmscaling.workflow.runs import TRUNK, Runs, any_of, check_of, some_of
from lmscaling.workflow.text import Shards

__all__ = [
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

Wildcards = Any
"""``snakemake.io.Wildcards``: an attribute for each wildcard of a rule."""


def is_foreign(
    path: str,
    runs: Runs,
    evaluations: "Evaluations",
    calibrations: "Calibrations",
    checks: "Checks",
    samples: "Samples",
) -> bool:
    """Whether a path looks like a result of the study and belongs to none of its cells.

    The patterns of the rules are short, and match such a name.
    """
    match Path(os.path.relpath(path, runs.results)).parts:
        case ("runs", run, "run.json"):
            return run not in runs.cells
        case ("evaluations", run, text):
            return f"{run}/{text.removesuffix('.jsonl')}" not in evaluations.names
        case ("calibrations", name):
            return name.removesuffix(".json") not in calibrations.cells
        case ("samples", name):
            return name.removesuffix(".json") not in samples.cells
        case ("checks", name):
            return name.removesuffix(".json") not in checks.cells
    return False


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

    def __init__(self, grid: Grid, in_job: bool = False) -> None:
        self.results = grid.results
        self.cells = grid.checked
        self.in_job = in_job

    @property
    def pattern(self) -> str:
        folder = Path(self.results, "checks")
        pending = (n for n in self.cells if self.in_job or not (folder / f"{n}.json").is_file())
        return some_of("[^/]+", pending, self.cells)

    def cell(self, wildcards: Wildcards) -> str:
        return f"{self.results}/cells/{self.cells[wildcards.check].run}.json"


class Calibrations:
    """Measurements of how a cell is trained fastest on this device."""

    def __init__(self, runs: Runs) -> None:
        self.results, self.cells, self.in_job = runs.results, runs.calibrated, runs.in_job

    @property
    def pattern(self) -> str:
        folder = Path(self.results, "calibrations")
        pending = (n for n in self.cells if self.in_job or not (folder / f"{n}.json").is_file())
        return some_of("[^/]+", pending, self.cells)

    def cell(self, wildcards: Wildcards) -> str:
        return f"{self.results}/cells/{self.cells[wildcards.calibration].run}.json"

    def check(self, wildcards: Wildcards) -> list[str]:
        return check_of(self.results, self.cells[wildcards.calibration])

    def gpus(self, wildcards: Wildcards) -> int:
        return min(1, self.cells[wildcards.calibration].gpus)


class Evaluations:
    """Pairs of a finished run and a text, named ``<run>/<tokens>``."""

    def __init__(self, grid: Grid, runs: Runs) -> None:
        self.results = runs.results
        self.cells = runs.trunks
        self.pending_runs = runs.pending
        self.in_job = runs.in_job
        texts = grid.study.evaluate.datasets if grid.study.evaluate else []
        self.runs = grid.evaluated
        self.texts = [t for t, corpus in grid.corpora.items() if corpus.dataset in texts]
        self.names = [f"{run}/{tokens}" for run in self.runs for tokens in self.texts]

    @property
    def pattern(self) -> str:
        """Pairs without an evaluation, and those whose run is to be trained again.

        Both names hold a hash of everything that an evaluation depends on.
        """
        patterns = []
        for tokens in self.texts:
            pending = self.runs if self.in_job else list(filter(self._lacks(tokens), self.runs))
            if pending:
                runs = some_of(TRUNK, pending, self.cells)
                patterns.append(f"{runs}/{re.escape(tokens)}")
        return "|".join(patterns) or "(?!)"

    def _lacks(self, tokens: str) -> Callable[[str], bool]:
        folder = Path(self.results, "evaluations")
        return lambda run: (
            run in self.pending_runs or not (folder / run / f"{tokens}.jsonl").is_file()
        )

    def record(self, wildcards: Wildcards) -> str:
        return f"{self.results}/runs/{os.path.dirname(wildcards.evaluation)}/run.json"

    def manifest(self, wildcards: Wildcards) -> str:
        return f"{self.results}/tokens/{os.path.basename(wildcards.evaluation)}/manifest.json"

    def gpus(self, wildcards: Wildcards) -> int:
        return min(1, self.cells[os.path.dirname(wildcards.evaluation)].gpus)


class Samples:
    """Images drawn by the finished runs of tasks that train on images."""

    def __init__(self, grid: Grid, runs: Runs) -> None:
        self.results, self.cells = grid.results, grid.drawing
        self.pending_runs = runs.pending
        self.in_job = runs.in_job

    @property
    def pattern(self) -> str:
        """Runs without a sample, and those that are to be trained again."""
        folder = Path(self.results, "samples")
        pending = (
            run
            for run in self.cells
            if self.in_job or run in self.pending_runs or not (folder / f"{run}.json").is_file()
        )
        return some_of("[^/]+", pending, self.cells)

    def record(self, wildcards: Wildcards) -> str:
        return f"{self.results}/runs/{wildcards.sampled}/run.json"

    def manifest(self, wildcards: Wildcards) -> str:
        tokens = self.cells[wildcards.sampled].data.folder
        return f"{self.results}/tokens/{tokens}/manifest.json"

    def gpus(self, wildcards: Wildcards) -> int:
        return min(1, self.cells[wildcards.sampled].gpus)


class Sweeps:
    """Sweeps of the speed study by their folder ``<kind>/<name>-<hash>``."""

    kinds = tuple(sweeps.KINDS)
    """A rule for each."""

    def __init__(self, grid: Grid, in_job: bool = False) -> None:
        self.results = grid.results
        self.names = sweeps.expand(grid.study)
        self.in_job = in_job

    def pattern(self, kind: str) -> str:
        """Sweeps of a kind with a point that is not settled."""
        folder = Path(self.results, "speed")
        return any_of(
            name
            for name, sweep in self.names.items()
            if sweep.kind == kind and (self.in_job or sweeps.is_pending(folder / name, sweep))
        )

    def gpus(self, wildcards: Wildcards) -> int:
        return self.names[wildcards.sweep].gpus

    def chunks(self, wildcards: Wildcards) -> list[str]:
        """The fastest chunks of this size, which the sweep of its training steps uses."""
        tuned = wildcards.sweep.replace("time_step/", "tune_chunk/")
        is_other = tuned != wildcards.sweep and tuned in self.names
        return [f"{self.results}/speed/{tuned}/sweep.json"] if is_other else []

    def options(self, wildcards: Wildcards, input: Any) -> str:
        return f"--chunks {shlex.quote(str(input.chunks))}" if input.chunks else ""


class Records:
    """What the store is built from, and the report in the end."""

    def __init__(
        self,
        runs: Runs,
        evaluations: Evaluations,
        sweeps: Sweeps,
        tables: list[str],
        samples: Samples,
    ) -> None:
        self.tables = tables
        self.report = f"{runs.results}/report.html"
        self.names = [
            *(f"{runs.results}/runs/{run}/run.json" for run in runs.recorded),
            *(f"{runs.results}/evaluations/{name}.jsonl" for name in evaluations.names),
            *(f"{runs.results}/samples/{run}.json" for run in samples.cells),
            *(f"{runs.results}/speed/{sweep}/sweep.json" for sweep in sweeps.names),
        ]
        self.sweeps = self.names[len(self.names) - len(sweeps.names) :]

    def every(self, wildcards: Wildcards) -> list[str]:
        """A function: of names in a rule, Snakemake would hold a second copy."""
        return self.names

    def targets(self, wildcards: Wildcards) -> list[str]:
        """The report, and what leads to it only where Snakemake would not look.

        It does not ask for the records of a store that exists. To name them all needs 6 MB for
        1,000 cells.
        """
        built = all(map(os.path.exists, self.tables))
        lost = [name for name in self.names if not os.path.exists(name)] if built else []
        return list(dict.fromkeys([self.report, *lost, *self.sweeps]))


class Figures:
    """Figures of the package by name, and the tables that they are drawn from."""

    def __init__(self, grid: Grid) -> None:
        results, self.cells = grid.results, grid.cells | grid.tasks
        self.names = list(registry.figures())
        self.tables = [f"{results}/store/{table}.parquet" for table in EXPORTS]
        """The store as Parquet files."""
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
