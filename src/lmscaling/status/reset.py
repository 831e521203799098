"""Move records of runs or measurements to the attic, so that they are made again; free held runs.

The next ``snakemake`` trains the runs moved here, from update 0, and measures the points. Nothing
is deleted.
"""

import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from lmscaling.config import code
from lmscaling.config.cell import Cell, branch_checkpoint
from lmscaling.config.validation import checked
from lmscaling.errors import UserError, choose
from lmscaling.files import read_json
from lmscaling.records import finished, ledger
from lmscaling.records.run import HELD, STATUSES
from lmscaling.runtime import lock
from lmscaling.status.table import record_of

FOLDERS = ("runs", "scratch", "evaluations")
"""Folders of a study that hold one folder for each run."""

FILES = ("samples", "runs")
"""Folders of a study that hold one file for some runs."""


def select(
    results: Path,
    study: str | None,
    cell: str | None,
    status: str | None,
    context: int | None = None,
    stale: bool = False,
    branches: bool = True,
) -> tuple[Path, list[str]]:
    """A study's runs that match all given criteria.

    Args:
        results: Folder of all studies.
        study: Name of the study; needed only if several match.
        cell: Name of a cell or a run. A cell whose values were changed has several runs.
        status: Status of the record.
        context: Context of the cell.
        stale: Whether the run must have been trained by other code than the present.
        branches: Whether the branches of selected trunks are selected, too.

    Returns:
        The folder of the study, and the names of the runs.

    Raises:
        UserError: No run matches, or runs of several studies do and ``study`` is None.
    """
    everything = {folder: names for folder in results.glob("*/") if (names := _runs(folder))}
    runs = {f: names for f, names in sorted(everything.items()) if study in (None, f.name)}
    if not runs:
        known = sorted(folder.name for folder in everything)
        allowed = f"studies: {choose(study, known)}" if known else "run snakemake first"
        raise UserError(f"{results / (study or '')} has no run; {allowed}")
    tests: dict[str, Callable[[Path, str], object]] = {}
    if cell:
        tests[f"is called {cell!r}"] = lambda _, run: cell in (run, _without_hash(run))
    if status:
        tests[f"has status {status!r}"] = lambda folder, run: _status(folder, run) == status
    if context:
        tests[f"has context {context}"] = lambda *run: (c := _cell(*run)) and c.context == context
    if stale:
        tests["was trained by other code"] = _is_stale
    matches = {
        folder: chosen
        for folder, names in runs.items()
        if (chosen := [run for run in names if all(test(folder, run) for test in tests.values())])
    }
    if not matches:
        allowed = "nothing is to be trained again"
        if status:
            allowed = choose(status, [*STATUSES, HELD, finished.DAMAGED])
        elif cell or not stale:
            names = {_without_hash(run) for names in runs.values() for run in names}
            allowed = choose(cell, sorted(names))
        studies = ", ".join(folder.name for folder in runs)
        raise UserError(f"no run of {studies} {' and '.join(tests)}; {allowed}")
    folder, chosen = _only(matches, "such a run", cell)
    cells = {run: _cell(folder, run) for run in runs[folder] if branches}
    others = {run for run, c in cells.items() if c and c.branch and c.trunk in chosen}
    return folder, sorted({*chosen, *others})


def _only(matches: dict[Path, list[str]], what: str, name: str | None) -> tuple[Path, list[str]]:
    if len(matches) > 1:
        names = [folder.name for folder in matches]
        raise UserError(f"several studies have {what}; add --study; {choose(name, names)}")
    return next(iter(matches.items()))


def _runs(study: Path) -> list[str]:
    return sorted({p.name for folder in FOLDERS for p in study.glob(f"{folder}/*/")})


def _without_hash(run: str) -> str:
    """The name of a run's cell, or of a sweep's size."""
    return run.rpartition("-")[0]


def _cell(study: Path, run: str) -> Cell | None:
    path = study / "cells" / f"{run}.json"
    return checked(Cell, read_json(path, "cell file"), str(path)) if path.is_file() else None


def _is_stale(study: Path, run: str) -> bool:
    record, cell = record_of(study, run), _cell(study, run)
    return bool(record and cell and code.is_stale(cell, record))


def _status(study: Path, run: str) -> object:
    """The status of a run's record, or that it is held; None if it is neither."""
    if record := record_of(study, run):
        return record["status"]
    entries = ledger.entries(study / "scratch" / run / ledger.NAME)
    return HELD if ledger.hold(entries) else None


def held(study: Path, runs: list[str]) -> list[Path]:
    """Scratch folders of those of these runs that are held.

    Raises:
        UserError: None is held, or one of them is being trained.
    """
    folders = [study / "scratch" / run for run in runs if _status(study, run) == HELD]
    if not folders:
        raise UserError(
            f"{', '.join(runs)} is not held, so there is nothing to let go on; "
            "to train it again from update 0, leave --go-on out"
        )
    for folder in folders:
        _check_idle(folder)
    return folders


def free(study: Path, runs: list[str]) -> list[str]:
    """Let those of these runs go on that are ``held``, and return their names."""
    folders = held(study, runs)
    for folder in folders:
        ledger.free(folder)
    return [folder.name for folder in folders]


def folders(results: Path, study: str | None, named: str) -> list[Path]:
    """The run folders that a path, or the name of a cell or a run, means.

    Raises:
        UserError: As for ``select``.
    """
    if Path(named).name != named:
        return [Path(named)]
    found, runs = select(results, study, named, None, branches=False)
    return [found / "runs" / run for run in runs]


def select_measurements(results: Path, study: str | None, name: str) -> tuple[Path, list[str]]:
    """Sweeps or points of the speed study by ``kind/size`` or ``kind/size/point``.

    Returns:
        The folder of the study, and the paths in it that are to move. A point moves together with
        the ``sweep.json`` that lists it.

    Raises:
        UserError: Nothing matches, or several studies match and ``study`` is None.
    """
    wanted, _, point = name.partition("/")[2].partition("/")
    wanted = f"{name.partition('/')[0]}/{wanted}"
    matches: dict[Path, list[str]] = {}
    known: set[str] = set()
    for sweep in sorted(results.glob(f"{study or '*'}/speed/*/*/")):
        inner, folder = f"{sweep.parent.name}/{sweep.name}", sweep.parents[2]
        points = [path.stem for path in sweep.glob("*.json") if path.stem != "sweep"]
        known |= {_without_hash(inner)}
        known |= {f"{_without_hash(inner)}/{each}" for each in points if point}
        if wanted not in (inner, _without_hash(inner)):
            continue
        if not point:
            matches.setdefault(folder, []).append(f"speed/{inner}")
        elif point in points:
            files = [f"speed/{inner}/{each}.json" for each in (point, "sweep")]
            matches.setdefault(folder, []).extend(files)
    if not matches:
        raise UserError(f"no measurement is called {name!r}; {choose(name, sorted(known))}")
    return _only(matches, name, name)


def move(study: Path, runs: list[str]) -> Path:
    """Move the files of these runs into ``attic/<time>/``; returns that folder.

    Raises:
        UserError: One of them is being trained, or is a branch that has ended, whose trunk has no
            checkpoint for it any more; nothing is moved.
    """
    for run in runs:
        _check_idle(study / "scratch" / run)
        _check_trunk(study, run, runs)
    paths = [f"{folder}/{run}" for run in runs for folder in FOLDERS]
    paths += [f"{folder}/{run}.json" for run in runs for folder in FILES]
    for copy in study.glob("runs/*-branches-*.json"):
        if not set(runs).isdisjoint(read_json(copy, "copy")):
            paths.append(str(copy.relative_to(study)))
    return _move(study, paths)


def move_measurements(study: Path, paths: list[str]) -> Path:
    """Move these sweeps or points into ``attic/<time>/``; returns that folder.

    Raises:
        UserError: One of them is being measured; nothing is moved.
    """
    for path in paths:
        _check_idle(study / path if (study / path).is_dir() else (study / path).parent)
    return _move(study, paths)


def _move(study: Path, paths: list[str]) -> Path:
    attic = study / "attic" / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
    try:
        for path in paths:
            if (study / path).exists():
                (attic / path).parent.mkdir(parents=True, exist_ok=True)
                (study / path).rename(attic / path)
    except OSError as error:  # the results of others can be read-only
        raise UserError(
            f"{study} cannot be changed: {error.strerror}; reset it as its owner, or make it "
            f"writable: chmod -R u+w {shlex.quote(str(study))}"
        ) from None
    return attic


def _check_trunk(study: Path, run: str, runs: list[str]) -> None:
    """Refuse to reset a branch alone once the checkpoint that it began from is deleted."""
    branch = _cell(study, run)
    if not branch or not branch.branch or branch.trunk in runs:
        return
    kept = study / "scratch" / branch.trunk / branch_checkpoint(branch.branch)
    if not kept.is_file():
        raise UserError(
            f"branch {run} begins from {kept.name} of its trunk, which is deleted when the branch "
            f"ends; to train both again, type lmscaling reset {branch.trunk}"
        )


def _check_idle(folder: Path) -> None:
    if holder := lock.holder(folder):
        raise UserError(f"{folder.name} is in use by {holder.description}; stop its job first")
