"""Train a cell or measure a point again: what it has left moves to the attic, nothing is deleted.

What has a record is never planned by the workflow; without one it is. So the next ``snakemake``
trains exactly the cells moved here, from update 0, and measures exactly the points.
"""

from datetime import UTC, datetime
from pathlib import Path

from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.errors import UserError, choose
from lmscaling.files import read_json
from lmscaling.records.run import STATUSES
from lmscaling.runtime import lock

PLACES = ("runs", "scratch", "evaluations")
"""Where a run leaves its record and log, what outlives an attempt, and what is said of it."""


def select(
    results: Path,
    study: str | None,
    cell: str | None,
    status: str | None,
    context: int | None = None,
) -> tuple[Path, list[str]]:
    """A study's runs by cell or run name, by the status of their record, by context: all given.

    Returns:
        The folder of the study, and the runs; with a trunk go its branches, which began from it.

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
        raise UserError(f"{results / (study or '')} has no run; studies: {choose(study, known)}")
    found = {
        folder: _matching(folder, names, cell, status, context) for folder, names in runs.items()
    }
    found = {folder: names for folder, names in found.items() if names}
    if not found:
        what = [f"is called {cell!r}"] if cell else []
        what += [f"has status {status!r}"] if status else []
        what = " and ".join([*what, *([f"has context {context}"] if context else [])])
        names = {_cell(run) for names in runs.values() for run in names}
        allowed = choose(status, STATUSES) if status else choose(cell, sorted(names))
        raise UserError(f"no run of {', '.join(f.name for f in runs)} {what}; {allowed}")
    if len(found) > 1:
        names = [folder.name for folder in found]
        raise UserError(f"several studies have such a run; add --study; {choose(cell, names)}")
    ((folder, chosen),) = found.items()
    return folder, sorted({*chosen, *_branches(folder, runs[folder], set(chosen))})


def _runs(study: Path) -> list[str]:
    return [p.name for place in PLACES for p in study.glob(f"{place}/*/")]


def _cell(run: str) -> str:
    """The cell's name: the run's without its hash."""
    return run.rpartition("-")[0]


def _branches(study: Path, runs: set[str], trunks: set[str]) -> list[str]:
    """Runs that are branches of some trunks, by what their cell files say."""
    files = {run: study / "cells" / f"{run}.json" for run in runs}
    cells = {
        run: checked(Cell, read_json(path, "cell file"), str(path))
        for run, path in files.items()
        if path.is_file()
    }
    return [run for run, cell in cells.items() if cell.branch and cell.trunk in trunks]


def _matching(
    study: Path, runs: set[str], cell: str | None, status: str | None, context: int | None
) -> list[str]:
    # Several runs have one cell's name if the cell's values were changed: all of them are meant.
    named = sorted(run for run in runs if cell in (None, run, _cell(run)))
    if status is not None:
        named = [
            run for run in named if _value(study / "runs" / run / "run.json", "status") == status
        ]
    if context is not None:
        named = [
            run for run in named if _value(study / "cells" / f"{run}.json", "context") == context
        ]
    return named


def _value(path: Path, key: str) -> object:
    """A value of a record or a cell; None if there is none."""
    return read_json(path, "file").get(key) if path.is_file() else None


def select_measurements(results: Path, study: str | None, name: str) -> tuple[Path, list[str]]:
    """Sweeps or points of the speed study by ``kind/size`` or ``kind/size/point``.

    Returns:
        The folder of the study, and what to move, by its path in it; with a point goes the
        ``sweep.json`` that says that it is settled.

    Raises:
        UserError: Nothing matches, or something of several studies does and ``study`` is None.
    """
    kind, size, *point = name.split("/")
    known: set[str] = set()
    found: dict[Path, list[str]] = {}
    for sweep in sorted(results.glob(f"{study or '*'}/speed/*/*/")):
        short = f"{sweep.parent.name}/{_cell(sweep.name)}"
        known.add(short)
        if sweep.parent.name != kind or size not in (sweep.name, _cell(sweep.name)):
            continue
        folder, inner = sweep.parents[2], f"speed/{kind}/{sweep.name}"
        files = [f"{inner}/{p}.json" for p in point]
        if not point:
            found.setdefault(folder, []).append(inner)
        elif (folder / files[0]).is_file():
            found.setdefault(folder, []).extend([files[0], f"{inner}/sweep.json"])
        known |= {f"{short}/{p.stem}" for p in sweep.glob("*.json") if point and p.stem != "sweep"}
    if not found:
        raise UserError(f"nothing measured is called {name!r}; {choose(name, sorted(known))}")
    if len(found) > 1:
        names = [folder.name for folder in found]
        raise UserError(f"several studies have {name}; add --study; {choose(name, names)}")
    return found.popitem()


def move(study: Path, runs: list[str]) -> Path:
    """Move what these runs have left into ``attic/<time>/``; returns that folder.

    Raises:
        UserError: One of them is being trained; nothing is moved.
    """
    for run in runs:
        _check_idle(study / "scratch" / run)
    return _move(study, [f"{place}/{run}" for run in runs for place in PLACES])


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
    for path in paths:
        if (study / path).exists():
            (attic / path).parent.mkdir(parents=True, exist_ok=True)
            (study / path).rename(attic / path)
    return attic


def _check_idle(folder: Path) -> None:
    if who := lock.holder(folder):
        raise UserError(f"{folder.name} is at work, by {who.description}; stop its job first")
