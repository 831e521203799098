"""What was there when a job was planned, and what a job does with a run that has ended.

A job starts hours after it was planned, in another process. By then the study may have been edited,
another job may have ended its run, and Snakemake may have deleted its output. So a workflow that
starts writes a *plan*, and its jobs find it by an environment variable.

The output of a job that trains is ``runs/<run>.json``, a copy of the record that Snakemake may
delete whenever it likes. Record, log and weights are in ``runs/<run>/``, which is no output.
Nothing here deletes or overwrites: the record of a run that is asked for again moves aside.
"""

import os
import re
import shlex
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmscaling.config.cell import Cell, branch_checkpoint
from lmscaling.errors import UserError
from lmscaling.files import new_file, read_json, write_json
from lmscaling.runtime import lock

VARIABLE = "LMSCALING_PLAN"
"""The environment variable with the path of the plan. Where it is set, this is a job."""

RECORD, EARLIER = "run.json", "earlier"
"""Files in ``runs/<run>/``: the record; the folder of what earlier trainings have left."""

FOLDERS = ("runs", "scratch", "logs", "plans", "tokens", "evaluations", "cells")
"""Folders of a study that every job writes to."""

MOST_PLANS = 20
"""Plans that are kept, beside those of the last two weeks; 100 kB each for a thousand runs."""

OLD_SECONDS = 14 * 86_400.0


@dataclass(frozen=True)
class Plan:
    """What a workflow has found when it started."""

    folder: str
    """Folder of all studies."""
    study: dict[str, Any]
    records: dict[str, int]
    """When the record of each run was written, in nanoseconds, by run."""
    again: list[str]
    """Runs that are asked for again: forced, or their output was deleted."""


def of_this_job() -> Plan | None:
    """The plan of this job; None if no workflow has written one."""
    path = os.environ.get(VARIABLE)
    return Plan(**read_json(Path(path), "plan")) if path and os.path.exists(path) else None


def new_path(results: Path) -> Path:
    """The path of a plan to write."""
    return (results / "plans" / f"{uuid.uuid4().hex}.json").absolute()


def write(path: Path, plan: Plan) -> None:
    """Write a plan for jobs to read, and delete those that no job can need."""
    write_json(path, asdict(plan))
    found = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
    for old in found[:-MOST_PLANS]:
        if time.time() - old.stat().st_mtime > OLD_SECONDS:
            old.unlink(missing_ok=True)


def check_access(results: Path) -> None:
    """Check that a folder of results can be written, which may be of another user.

    Raises:
        UserError: It cannot.
    """
    for folder in (results, *(results / name for name in FOLDERS)):
        if folder.is_dir() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise refused(folder)


def refused(folder: Path) -> UserError:
    """A sentence about a folder that another user keeps for himself."""
    while not folder.exists():
        folder = folder.parent
    owner = folder.owner()
    return UserError(
        f"{folder} belongs to {owner}, and you may not write there; {owner} types chmod -R g+rwX "
        f"{folder}, and all who share it type umask 002 before snakemake"
    )


class Outputs:
    """The outputs of the runs of a study, and what a user has asked for by deleting some.

    An output can be missing because a user has deleted it, which asks for the run again, or because
    Snakemake has, which does so before a job and after one that fails; and a version before had
    none. ``seen.json`` tells them apart: it has the records whose output a workflow has found.
    """

    def __init__(self, results: Path) -> None:
        """Copy each record whose output no user has deleted."""
        self.runs, self.seen = results / "runs", results / "seen.json"
        self.records = self._stamps()
        seen = self._read()
        missing = {run for run in self.records if not self.path(run).exists()}
        self.deleted = {run for run in missing if seen.get(run) == self.records[run]}
        for run in missing - self.deleted:
            self.restore(run)
        self.ended = self.records.keys() - self.deleted
        self.note()

    def path(self, run: str) -> Path:
        return self.runs / f"{run}.json"

    def restore(self, run: str) -> None:
        """Copy a record, with its time, so that nothing runs because of it."""
        copy(self.runs / run / RECORD, self.path(run))
        times = (self.records[run], self.records[run])
        os.utime(self.path(run), ns=times)

    def note(self) -> None:
        """Keep in mind which records have an output now."""
        before, stamps = self._read(), self._stamps()
        now = before | {run: stamp for run, stamp in stamps.items() if self.path(run).exists()}
        if now != before:
            write_json(self.seen, now)

    def _read(self) -> dict[str, int]:
        return read_json(self.seen, "list of records") if self.seen.exists() else {}

    def _stamps(self) -> dict[str, int]:
        """When the record of each run was written."""
        found = self.runs.glob(f"*/{RECORD}")
        return {path.parent.name: path.stat().st_mtime_ns for path in found}


def forced(words: Iterable[str], runs: Path, cells: Mapping[str, Cell]) -> set[str]:
    """The runs that a command line of Snakemake forces, which Snakemake tells nobody.

    What is not understood forces nothing here, and a finished run is kept.

    Args:
        words: The command line without the program.
        runs: Folder of the outputs.
        cells: The cells by run.
    """
    by_rule = {"train": set(cells), "branch": {run for run, c in cells.items() if c.branch}}
    found, named = set[str](), set[str]()
    after, is_forced = "", False
    for word in (part for given in words for part in given.split("=", 1)):
        if word.startswith("-"):
            after = word
            is_forced |= bool(re.fullmatch(r"-[a-zA-Z]*f|--force", word))
            if re.fullmatch(r"-[a-zA-Z]*F|--forceall", word):
                return set(cells)
            continue
        is_output = os.path.abspath(os.path.dirname(word)) == str(runs.absolute())
        runs_meant = {Path(word).stem} if is_output else by_rule.get(word, set())
        if re.fullmatch(r"-[a-zA-Z]*R|--forcerun", after):
            found |= runs_meant
        elif is_output:
            named |= runs_meant
    return (found | named if is_forced else found) & cells.keys()


def again(outputs: Outputs, forced: set[str], cells: Mapping[str, Cell]) -> set[str]:
    """The runs to train again: with a trunk its branches, which begin from its checkpoints.

    Raises:
        UserError: A branch is forced whose trunk has no checkpoint for it any more.
    """
    asked = (forced | outputs.deleted) & cells.keys()
    asked |= {run for run, cell in cells.items() if cell.branch and cell.trunk in asked}
    for run in sorted(asked & outputs.records.keys()):
        cell = cells[run]
        if not cell.branch or cell.trunk in asked:
            continue
        kept = outputs.runs.parent / "scratch" / cell.trunk / branch_checkpoint(cell.branch)
        if not kept.is_file():
            both = shlex.join(str(outputs.path(each)) for each in (cell.trunk, run))
            told = (
                f"{run} begins from a checkpoint of its trunk, which is deleted when the branch "
                f"ends; to train both again, type snakemake -f -- {both}"
            )
            if run in forced:
                raise UserError(told)
            outputs.restore(run)
            asked.remove(run)
            print(f"{told}; its output is restored")
    return asked


def record_of(output: Path) -> Path:
    """The record of which an output is the copy."""
    return output.with_name(output.name.removesuffix(".json")) / RECORD


def copy(record: Path, output: Path) -> None:
    """Write the copy of a record that is Snakemake's output."""
    with new_file(output) as temporary:
        temporary.write_bytes(record.read_bytes())


def why_kept(record: Path) -> str:
    """Why a record that exists stays; empty if its run is asked for again. Ask under the lock."""
    run, plan = record.parent.name, of_this_job()
    if plan is None:
        return "it had ended"
    if plan.records.get(run) != record.stat().st_mtime_ns:
        return "another job has ended it since it was planned"
    return "" if run in plan.again else "it had ended, and nobody has asked for it again"


def move_aside(record: Path, scratch: Path) -> Path:
    """Move what is left of a run that is trained again, and what was measured of its weights.

    Returns:
        The folder beside ``record`` with the earlier record, log and weights.
    """
    moment = time.strftime("%Y-%m-%dT%H-%M-%S")
    folder, results = record.parent, record.parents[2]
    aside = folder / EARLIER / moment
    for place in (scratch, folder):
        for path in place.iterdir():
            if path.name not in (EARLIER, RECORD) and lock.NAME not in path.name:
                _move(path, place / EARLIER / moment / path.name)
    _move(results / "evaluations" / folder.name, aside / "evaluations")
    _move(results / "samples" / f"{folder.name}.json", aside / "sample.json")
    _move(record, aside / RECORD)  # last, so that a second try goes on with the rest
    return aside


def _move(path: Path, target: Path) -> None:
    if path.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
