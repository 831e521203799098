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
from lmscaling.config.grid import Grid
from lmscaling.config.types import Split
from lmscaling.plan import jobs, text_needs
from lmscaling.records import ledger
from lmscaling.records.exports import EXPORTS, PUBLISHED
from lmscaling.runtime import slurm
from lmscaling.runtime.slurm_queue import Queue

SPLITS: tuple[Split, ...] = ("train", "validation")

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
        self, grid: Grid, in_job: bool, on_slurm: Callable[[], bool], site_options: str = ""
    ) -> None:
        """Plan the runs of a study.

        Args:
            grid: The study.
            in_job: Whether this Snakemake runs inside a job of another one.
            on_slurm: Says whether this Snakemake submits jobs to Slurm; asked when it does.
            site_options: Options of ``sbatch`` that the profile gives to every job.
        """
        self.results = f"results/{grid.study.study}"
        self.job_hours = grid.study.job_hours
        self.trunks = grid.cells
        self.branches = grid.branches
        self.cells = grid.cells | grid.branches
        self.calibrated = grid.calibrated
        self.in_job = in_job
        self.on_slurm = on_slurm
        self.site_options = site_options
        self.queue = Queue(Path(self.results), ["train", "branch"])

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
        return 4 * self.gpus(wildcards) or 1

    def mem(self, wildcards: Wildcards) -> str:
        return f"{32 * self.gpus(wildcards) or 4}GB"

    def minutes(self, wildcards: Wildcards) -> int:
        """Time limit of the next job, for what is left of the budget."""
        return jobs.job_minutes(self._left(wildcards.run), self.job_hours)

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
            seconds = jobs.stop_seconds(self._left(wildcards.run), self.job_hours)
            options += f" --stop-after {seconds:g}"
        return options.strip()

    def sbatch_options(self, wildcards: Wildcards) -> str:
        """Options of ``sbatch``: those of the site; warn the job before its limit, queue it after
        an earlier one, and avoid the nodes on which it failed. Asked again before each try.

        The signal is SIGTERM: USR1 would kill the Snakemake inside the job and the training.
        """
        signal = f"--signal=TERM@{round(jobs.spare_seconds(self.job_hours))}"
        if not self.on_slurm():
            return slurm.joined(self.site_options, signal)
        sick = ledger.sick_nodes(self._ledger(wildcards.run))
        exclude = slurm.excluding(sick) if sick else ""
        dependency = self.queue.dependency(wildcards.run)
        return slurm.joined(self.site_options, signal, dependency, exclude)

    def further_jobs(self) -> dict[str, int]:
        """How many jobs the longest open run of a rule needs after its next one, by rule.

        They are restarts beyond the retries of the profile, which are for failures.
        """
        rules = {"train": self.trunks, "branch": self.branches}
        counts = {
            rule: [
                jobs.job_count(self._left(run), self.job_hours)
                for run in runs
                if run in self.pending
            ]
            for rule, runs in rules.items()
        }
        return {rule: max(n) - 1 for rule, n in counts.items() if n}

    def _ledger(self, run: str) -> list[ledger.Entry]:
        return ledger.latest(Path(self.results, "scratch", run, ledger.NAME))

    def _left(self, run: str) -> float | None:
        """Productive seconds from the last checkpoint of a run; None if its budget is no time."""
        return jobs.productive_seconds(self.cells[run], ledger.reached(self._ledger(run)))


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


class Shards:
    """Text of the study as shards of tokens, in a folder for each dataset and tokenizer."""

    def __init__(self, grid: Grid) -> None:
        self.results = f"results/{grid.study.study}"
        self.corpora = grid.corpora
        self.trained = grid.tokens
        """Folder of the text that the cells train on."""
        self.counts: dict[tuple[str, Split], int] = {
            (t, split): grid.n_shards(t, split) for t in self.corpora for split in SPLITS
        }
        self.hub_files = {
            (tokens, split): corpus.source.files(split)
            for tokens, corpus in self.corpora.items()
            for split in SPLITS
            if corpus.source.is_fetched
        }

    @property
    def pattern(self) -> str:
        """A pattern of the missing shards.

        Their names share the beginning of a split, for the pattern is compiled: a text may have a
        thousand shards.
        """
        groups = []
        for (tokens, split), n in self.counts.items():
            folder = Path(self.results, "tokens", tokens)
            missing = text_needs.missing(self.corpora[tokens].source, folder, split, n)
            if missing:
                numbers = any_of(f"{number:05d}" for number in missing)
                groups.append(f"{re.escape(tokens)}/{split}-({numbers})")
        return "|".join(groups) or "(?!)"

    def inputs(self, wildcards: Wildcards) -> dict[str, Any]:
        """What is fetched for a shard; and validation, whose documents training leaves out."""
        tokens, split, number = _shard(wildcards)
        inputs: dict[str, Any] = {}
        if split == "train":
            inputs["validation"] = self._sidecars(tokens, "validation")
        if files := self.hub_files.get((tokens, split)):
            inputs["source"] = f"{self.results}/sources/{tokens}/{files[number]}"
        if (encoding := self.corpora[tokens].encoding.encoding) != "bytes":
            inputs["vocabulary"] = f"{self.results}/vocabulary/{encoding}.tiktoken"
        return inputs

    def json(self, wildcards: Wildcards) -> str:
        """The corpus as far as a shard depends on it."""
        tokens, split, number = _shard(wildcards)
        return self.corpora[tokens].to_json(number + 1 if split == "train" else 1)

    def arguments(self, wildcards: Wildcards, input: Any, output: Any) -> str:
        """Arguments of ``tokenize``: the shard, where it goes, and the files fetched for it."""
        _, split, number = _shard(wildcards)
        words = [split, str(number), output.bin]
        for option in ("source", "vocabulary"):
            if path := input.get(option):
                words += [f"--{option}", str(path)]
        return shlex.join(words)

    def sidecars(self, wildcards: Wildcards) -> list[str]:
        """Sidecars of all shards of a text, which its manifest lists."""
        return [
            *self._sidecars(wildcards.tokens, "validation"),
            *self._sidecars(wildcards.tokens, "train"),
        ]

    def corpus_json(self, wildcards: Wildcards) -> str:
        return self.corpora[wildcards.tokens].to_json(1)

    def n_train(self, wildcards: Wildcards) -> int:
        return self.counts[wildcards.tokens, "train"]

    def n_validation(self, wildcards: Wildcards) -> int:
        return self.counts[wildcards.tokens, "validation"]

    def _sidecars(self, tokens: str, split: Split) -> list[str]:
        folder = f"{self.results}/tokens/{tokens}"
        return [f"{folder}/{split}-{i:05d}.json" for i in range(self.counts[tokens, split])]


def _shard(wildcards: Wildcards) -> tuple[str, str, int]:
    """Folder, split and number of a shard named ``<tokens>/<split>-<number>``."""
    tokens, shard = os.path.split(wildcards.shard)
    split, number = shard.split("-")
    return tokens, split, int(number)


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
