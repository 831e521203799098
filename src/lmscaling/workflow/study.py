"""What the rules of the whole study ask: its record, its changes, its figures and all targets.

The classes of this package are what rules ask. Methods that take ``wildcards`` are functions of a
rule's ``input:``, ``params:``, ``threads:`` or ``resources:``, which Snakemake calls with the
wildcards of a job; the rest is read once. All paths are relative to the working directory.
"""

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmscaling import registry
from lmscaling.config import code, study_file
from lmscaling.config.grid import Grid
from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.status import stale
from lmscaling.store import EXPORTS, FITTED, PUBLISHED
from lmscaling.workflow.measurements import Evaluations, Sweeps
from lmscaling.workflow.runs import Runs, Wildcards

DEMO = registry.PROJECT / "config" / "demo.yaml"
"""The study of ``lmscaling demo``, which runs in any folder."""

MOST_CHANGES = 5
"""Changes of a study that are printed."""


def record(
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
    """Print what has changed in the study and in the code that trained its runs, and how many cells
    do not get their budget, as the last plan has it."""
    path = Path(grid.results, "study.json")
    lines = code.stale_line(grid.study.study, len(stale.runs(path.parent, grid)))
    with suppress(UserError):  # there is no plan yet, or one that its rule makes again
        sums = read_json(path.with_name("plan.json"), "plan").get("totals", {})
        if early := sums.get("out_of_tokens"):
            lines.append(
                f"{early} of {sums['cells']} cells do not get their budget: their text ends before "
                "it; lmscaling plan lists them"
            )
    if found := study_file.changes(path, config):
        shown = found[:MOST_CHANGES]
        if len(found) > MOST_CHANGES:
            shown.append(f"and {len(found) - MOST_CHANGES} more")
        lines = [
            f"study {grid.study.study} has changed since it last ran: {'; '.join(shown)}; jobs "
            "that are queued keep the study with which they were submitted",
            *lines,
        ]
    for line in lines:
        print(line, file=sys.stderr)


class Figures:
    """Figures of the package by name, and the tables that they are drawn from."""

    def __init__(self, grid: Grid) -> None:
        self.results, self.cells = grid.results, grid.cells | grid.tasks
        self.names = list(registry.figures())
        self.tables = [f"{grid.results}/store/{table}.parquet" for table in (*EXPORTS, *FITTED)]
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
        """Source files of the attentions and models of the study: the report says which runs are of
        others."""
        names = {name for cell in self.cells.values() for name in cell.variants}
        paths = [*registry.attention_sources(names), *registry.program_sources(names)]
        return [os.path.relpath(path) for path in paths]

    def targets(self, records: list[str]) -> list[str]:
        """All that a study makes. Snakemake does not miss what lies between files that exist."""
        kinds = ("svg", "png", "csv")
        drawn = [f"{self.results}/figures/{name}.{kind}" for name in self.names for kind in kinds]
        return [f"{self.results}/report.html", *drawn, *self.tables, *records]


def records(runs: Runs, evaluations: Evaluations, sweeps: Sweeps) -> list[str]:
    """What the store is built from."""
    return [*map(runs.path, runs.groups), *evaluations.paths, *evaluations.images, *sweeps.paths]
