"""Train a finished cell again: its record, log and scratch move to the attic, nothing is deleted.

A cell with a record is never planned by the workflow; without one it is. So the next
``snakemake`` trains exactly the cells moved here, from update 0.
"""

from datetime import UTC, datetime
from pathlib import Path

from lmscaling.errors import UserError, choose
from lmscaling.files import read_json


def select(study: Path, cell: str | None, status: str | None) -> list[str]:
    """Runs of a study by cell name or run name, or by the status of their record.

    Raises:
        UserError: Nothing matches.
    """
    runs = {p.name for p in study.glob("runs/*/")} | {p.name for p in study.glob("scratch/*/")}
    if not runs:
        raise UserError(f"{study} has no run; allowed: {choose(study.name, _studies(study.parent))}")
    if status is not None:
        statuses = {
            run: read_json(study / "runs" / run / "run.json", "run record")["status"]
            for run in runs
            if (study / "runs" / run / "run.json").is_file()
        }
        found = sorted(run for run, s in statuses.items() if s == status)
        if not found:
            raise UserError(
                f"no run of {study} has status {status!r}; {choose(status, sorted(set(statuses.values())))}"
            )
        return found
    # The name of a cell has no hash; several runs of it exist if its values were changed.
    found = sorted(run for run in runs if cell in (run, run.rpartition("-")[0]))
    if not found:
        names = sorted({run.rpartition("-")[0] for run in runs})
        raise UserError(f"no run of {study} is called {cell!r}; {choose(cell, names)}")
    return found


def _studies(results: Path) -> list[str]:
    return sorted(p.parent.name for p in results.glob("*/runs"))


def move(study: Path, runs: list[str]) -> Path:
    """Move what these runs have left into ``attic/<time>/``; returns that folder."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
    attic = study / "attic" / stamp
    for run in runs:
        for place in ("runs", "scratch"):
            if (study / place / run).exists():
                (attic / place).mkdir(parents=True, exist_ok=True)
                (study / place / run).rename(attic / place / run)
    return attic
