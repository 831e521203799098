"""Move records of runs or measurements to the attic, so that they are made again; free held runs.

The next ``snakemake`` trains the runs moved here, from update 0, and measures the points. Nothing
is deleted.
"""

import shlex
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

FOLDERS = ("runs", "scratch", "evaluations")
"""Folders of a study that hold one folder for each run."""

SAMPLES = "samples"
"""Folder of a study that holds one file for each run that draws images."""


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
        study: Name of the study; needed only if several match.
        cell: Name of a cell or a run.
        status: Status of the record.
        context: Context of the cell.
        stale: Whether the run must have been trained by other code than the present.
        branches: Whether the branches of selected trunks are selected, too.

    Returns:
        The folder of the study, and the names of the runs.

    Raises:
        UserError: No run matches, or runs of several studies do and ``study`` is None.
    """
    runs = {
        folder: set(_runs(folder))
        for folder in sorted(results.glob("*/"))
        if study in (None, folder.name) and _runs(folder)
    }
    if not runs:
        known = sorted(folder.name for folder in results.glob("*/") if _runs(folder))
        allowed = f"studies: {choose(study, known)}" if known else "run snakemake first"
        raise UserError(f"{results / (study or '')} has no run; {allowed}")
    matches = {
        folder: _matching(folder, names, cell, status, context, stale)
        for folder, names in runs.items()
    }
    matches = {folder: names for folder, names in matches.items() if names}
    if not matches:
        criteria = [f"is called {cell!r}"] if cell else []
        criteria += [f"has status {status!r}"] if status else []
        criteria += [f"has context {context}"] if context else []
        criteria += ["was trained by other code"] if stale else []
        names = {_without_hash(run) for names in runs.values() for run in names}
        statuses = [*STATUSES, HELD, finished.DAMAGED]
        allowed = choose(status, statuses) if status else choose(cell, sorted(names))
        if stale and not (status or cell):
            allowed = "nothing is to be trained again"
        studies = ", ".join(folder.name for folder in runs)
        raise UserError(f"no run of {studies} {' and '.join(criteria)}; {allowed}")
    folder, chosen = _only(matches, "such a run", cell)
    others = _branches(folder, runs[folder], set(chosen)) if branches else []
    return folder, sorted({*chosen, *others})


def _only(matches: dict[Path, list[str]], what: str, name: str | None) -> tuple[Path, list[str]]:
    if len(matches) > 1:
        names = [folder.name for folder in matches]
        raise UserError(f"several studies have {what}; add --study; {choose(name, names)}")
    return next(iter(matches.items()))


def _runs(study: Path) -> list[str]:
    return [p.name for folder in FOLDERS for p in study.glob(f"{folder}/*/")]


def _without_hash(run: str) -> str:
    """The name of a run's cell, or of a sweep's size."""
    return run.rpartition("-")[0]


def _branches(study: Path, runs: set[str], trunks: set[str]) -> list[str]:
    """Runs whose cell files say that they are branches of some trunks."""
    files = {run: study / "cells" / f"{run}.json" for run in runs}
    cells = {
        run: checked(Cell, read_json(path, "cell file"), str(path))
        for run, path in files.items()
        if path.is_file()
    }
    return [run for run, cell in cells.items() if cell.branch and cell.trunk in trunks]


def _matching(
    study: Path,
    runs: set[str],
    cell: str | None,
    status: str | None,
    context: int | None,
    stale: bool,
) -> list[str]:
    # A cell whose values were changed has several runs of one name: all of them match.
    return sorted(
        run
        for run in runs
        if cell in (None, run, _without_hash(run))
        and (not status or status == _status(study, run))
        and (not context or context == _value(study / "cells" / f"{run}.json", "context"))
        and (not stale or _is_stale(study, run))
    )


def _is_stale(study: Path, run: str) -> bool:
    record, path = study / "runs" / run / "run.json", study / "cells" / f"{run}.json"
    if not (record.is_file() and path.is_file()):
        return False
    cell = checked(Cell, read_json(path, "cell file"), str(path))
    return code.is_stale(cell, finished.look(record))


def _status(study: Path, run: str) -> object:
    """The status of a run's record, or that it is held; None if it is neither."""
    record = study / "runs" / run / "run.json"
    if record.is_file():
        return finished.look(record)["status"]
    return HELD if _hold(study, run) else None


def _hold(study: Path, run: str) -> ledger.Hold | None:
    return ledger.hold(ledger.entries(study / "scratch" / run / ledger.NAME))


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


def _value(path: Path, key: str) -> object:
    """A value of a record or a cell; None if there is none."""
    return read_json(path, "file").get(key) if path.is_file() else None


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
    kind, size, *point = name.split("/")
    known: set[str] = set()
    matches: dict[Path, list[str]] = {}
    for sweep in sorted(results.glob(f"{study or '*'}/speed/*/*/")):
        short = f"{sweep.parent.name}/{_without_hash(sweep.name)}"
        known.add(short)
        if sweep.parent.name != kind or size not in (sweep.name, _without_hash(sweep.name)):
            continue
        folder, inner = sweep.parents[2], f"speed/{kind}/{sweep.name}"
        files = [f"{inner}/{p}.json" for p in point]
        if not point:
            matches.setdefault(folder, []).append(inner)
        elif (folder / files[0]).is_file():
            matches.setdefault(folder, []).extend([files[0], f"{inner}/sweep.json"])
        known |= {f"{short}/{p.stem}" for p in sweep.glob("*.json") if point and p.stem != "sweep"}
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
    folders = [f"{folder}/{run}" for run in runs for folder in FOLDERS]
    files = [f"{folder}/{run}.json" for run in runs for folder in (SAMPLES, "runs")]
    of_branches = study.glob("runs/*-branches-*.json")
    copies = [path for path in of_branches if not set(runs).isdisjoint(read_json(path, "copy"))]
    return _move(study, [*folders, *files, *(str(path.relative_to(study)) for path in copies)])


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
    path = study / "cells" / f"{run}.json"
    if not path.is_file() or not _value(path, "branch"):
        return
    branch = checked(Cell, read_json(path, "cell file"), str(path))
    assert branch.branch
    kept = study / "scratch" / branch.trunk / branch_checkpoint(branch.branch)
    if branch.trunk not in runs and not kept.is_file():
        raise UserError(
            f"branch {run} begins from {kept.name} of its trunk, which is deleted when the branch "
            f"ends; to train both again, type lmscaling reset {branch.trunk}"
        )


def _check_idle(folder: Path) -> None:
    if holder := lock.holder(folder):
        raise UserError(f"{folder.name} is in use by {holder.description}; stop its job first")
