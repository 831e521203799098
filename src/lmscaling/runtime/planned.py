"""What was there when a job was planned, and what a job does with a run that has ended.

A job starts hours after it was planned, in another process. By then the study may have been edited,
another job may have ended its run, and Snakemake may have deleted its output. So a workflow that
starts writes a *plan*, and its jobs find it by an environment variable.

The output of a job that trains is ``runs/<name>.json``, a copy of the records of its runs: a trunk,
or all branches of one. Snakemake may delete it whenever it likes. Record, log and weights are in
``runs/<run>/``, which is no output. Nothing here deletes or overwrites: the record of a run that is
asked for again moves aside.
"""

import json
import os
import re
import shlex
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmscaling.config.cell import Cell, branch_checkpoint
from lmscaling.errors import UserError
from lmscaling.files import new_file, read_json, write_json
from lmscaling.runtime import lock, rank
from lmscaling.types import digest

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
    path = os.environ.get(rank.PLAN)
    return Plan(**read_json(Path(path), "plan")) if path and os.path.exists(path) else None


def new_path(results: Path) -> Path:
    """The path of a plan to write."""
    return (results / "plans" / f"{uuid.uuid4().hex}.json").absolute()


def write(path: Path, plan: Plan) -> None:
    """Write a plan for jobs to read, and delete those that no job can need."""
    write_json(path, asdict(plan))
    found = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
    for old in found[:-MOST_PLANS]:
        if time.time() - old.stat().st_mtime > OLD_SECONDS:  # else a job in the queue may need it
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


Groups = Mapping[str, list[str]]
"""The runs that a job trains, by the name of its output."""


def groups(cells: Mapping[str, Cell]) -> dict[str, list[str]]:
    """The jobs of runs: one for each trunk, and one for all branches of a trunk, as they are short.

    A name says which branches they are, so that a further one is missed.
    """
    branches = defaultdict[str, list[str]](list)
    for run, cell in sorted(cells.items(), key=lambda item: item[1].branch or 0):
        if cell.branch:
            branches[cell.trunk].append(run)
    found = {run: [run] for run, cell in cells.items() if not cell.branch}
    for trunk, runs in branches.items():
        found[f"{trunk}-branches-{digest({'runs': sorted(runs)})}"] = runs
    return found


class Outputs:
    """The outputs of the runs of a study, and what a user has asked for by deleting some.

    An output can be missing because a user has deleted it, which asks for its runs again, or
    because Snakemake has, which does so before a job and after one that fails; and a version before
    had none. ``seen.json`` tells them apart: it has the records whose output a workflow has found.
    """

    def __init__(self, results: Path, groups: Groups) -> None:
        """Copy the records of each group whose output no user has deleted."""
        self.groups, self.runs, self.seen = groups, results / "runs", results / "seen.json"
        found, self.records = self._seen(), self._stamps()
        ended = self._ended(self.records)
        missing = {name for name in ended if not self.path(name).exists()}
        gone = {name for name in missing if found.get(name) == ended[name]}
        for name in missing - gone:
            self.restore(name)
        self.deleted = {run for name in gone for run in groups[name]}
        self.note()

    def path(self, name: str) -> Path:
        return self.runs / f"{name}.json"

    def restore(self, name: str) -> None:
        """Copy the records of a group, with their time, so that nothing runs because of it."""
        copy([self.runs / run / RECORD for run in self.groups[name]], self.path(name))
        newest = max(self.records[run] for run in self.groups[name])
        os.utime(self.path(name), ns=(newest, newest))

    def note(self) -> None:
        """Keep in mind which records have an output now."""
        before, ended = self._seen(), self._ended(self._stamps())
        now = before | {name: ended[name] for name in ended if self.path(name).exists()}
        if now != before:
            write_json(self.seen, now)

    def _seen(self) -> dict[str, list[int]]:
        return read_json(self.seen, "list of records") if self.seen.exists() else {}

    def _stamps(self) -> dict[str, int]:
        """When the record of each run was written."""
        found = self.runs.glob(f"*/{RECORD}")
        return {path.parent.name: path.stat().st_mtime_ns for path in found}

    def _ended(self, stamps: Mapping[str, int]) -> dict[str, list[int]]:
        """The groups all of whose runs have ended, with the times of their records."""
        whole = {name: runs for name, runs in self.groups.items() if stamps.keys() >= set(runs)}
        return {name: [stamps[run] for run in runs] for name, runs in whole.items()}


def forced(words: Iterable[str], outputs: Outputs, cells: Mapping[str, Cell]) -> set[str]:
    """The runs that a command line of Snakemake forces, which Snakemake tells nobody.

    What is not understood forces nothing here, and a finished run is kept.

    Args:
        words: The command line without the program.
        outputs: The outputs of the study.
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
        is_output = os.path.abspath(os.path.dirname(word)) == str(outputs.runs.absolute())
        meant = set(outputs.groups.get(Path(word).stem, [])) if is_output else by_rule.get(word)
        if re.fullmatch(r"-[a-zA-Z]*R|--forcerun", after):
            found |= meant or set()
        elif is_output:
            named |= meant or set()
    return found | named if is_forced else found


def again(outputs: Outputs, forced: set[str], cells: Mapping[str, Cell]) -> set[str]:
    """The runs to train again: with a trunk its branches, which begin from its checkpoints.

    Raises:
        UserError: Branches are forced whose trunk has no checkpoint for one of them any more.
    """
    asked = (forced | outputs.deleted) & cells.keys()
    asked |= {run for run, cell in cells.items() if cell.branch and cell.trunk in asked}
    for name, runs in outputs.groups.items():
        trunk = cells[runs[0]].trunk
        again = asked & outputs.records.keys() & set(runs)
        if not cells[runs[0]].branch or trunk in asked or not again:
            continue
        scratch = outputs.runs.parent / "scratch" / trunk
        begins = [scratch / branch_checkpoint(cells[run].branch or 0) for run in again]
        if not all(path.is_file() for path in begins):
            both = shlex.join(str(outputs.path(each)) for each in (trunk, name))
            told = (
                f"branches of {trunk} begin from its checkpoints, which are deleted when they end; "
                f"to train all again, type snakemake -f -- {both}"
            )
            if again & forced:
                raise UserError(told)
            outputs.restore(name)
            asked -= set(runs)
            print(f"{told}; their output is restored")
    return asked


def copy(records: list[Path], output: Path) -> None:
    """Write the copy of records that is Snakemake's output: the record of a trunk, or those of its
    branches by run."""
    texts = {record.parent.name: record.read_text() for record in records}
    own = texts.get(output.stem)
    with new_file(output) as temporary:
        temporary.write_text(own or json.dumps({run: json.loads(t) for run, t in texts.items()}))


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
    moves = [
        (path, place / EARLIER / moment / path.name)
        for place in (scratch, folder)
        for path in place.iterdir()
        if path.name not in (EARLIER, RECORD) and lock.NAME not in path.name
    ]
    moves.append((results / "evaluations" / folder.name, aside / "evaluations"))
    moves.append((results / "samples" / f"{folder.name}.json", aside / "sample.json"))
    moves.append((record, aside / RECORD))  # last, so that a second try goes on with the rest
    for path, target in moves:
        if path.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    return aside
