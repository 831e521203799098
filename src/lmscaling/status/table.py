"""How far every cell of a study is, read from records, locks and the tails of logs in a moment.

A cell runs if somebody holds its lock; it has *stopped* if its last attempt was killed and no other
has begun, and was *interrupted* if that saved and ended in order. Neither the store nor a database
is needed, so it can be asked on a login node while jobs run. Branches have no lines of their own: a
cell's note says how many of its branches are done.
"""

import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmscaling.config import grid, study_file, sweeps
from lmscaling.files import read_json
from lmscaling.formatting import aligned
from lmscaling.runtime import lock

TAIL_BYTES = 65536
"""Read from the end of a log: some hundred rows."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    cell: str
    status: str
    updates: str = ""
    budget: str = ""
    loss: str = ""
    pace: str = ""
    note: str = ""


def table(study: Path) -> str:
    """The cells of ``results/<study>/`` as a table with a last line that counts them.

    Raises:
        UserError: There is no such study.
    """
    laid_out = study_file.read_record(study / "study.json").grid
    branches = _branches(study, laid_out)
    rows = [
        _with_note(_row(study, run, cell.name), branches.get(run, ""))
        for run, cell in laid_out.cells.items()
    ]
    rows += [Row(cell.name, "skipped", note=reason) for cell, reason in laid_out.skipped]
    head = Row("cell", "status", "updates", "budget", "loss", "tokens/s", "")
    lines = aligned([list(vars(row).values()) for row in (head, *rows)], left={0, 1, 6})
    counts = Counter(row.status for row in rows)
    total = f"{len(rows)} cells: {', '.join(f'{n} {status}' for status, n in counts.most_common())}"
    return "\n".join([*lines, total, *_speed(study, laid_out)])


def _speed(study: Path, laid_out: grid.Grid) -> list[str]:
    """One line about the speed study, if there is one."""
    planned = sweeps.expand(laid_out.study)
    if not planned:
        return []
    open_ = [f for f, sweep in planned.items() if sweeps.is_pending(study / "speed" / f, sweep)]
    points = [
        (study / "speed" / folder / f"{point.name}.json").is_file()
        for folder, sweep in planned.items()
        for point in sweep.points
    ]
    over = f"{len(planned) - len(open_)} of {len(planned)} sweeps"
    return [f"speed: {over} over, {sum(points)} of {len(points)} points have a record"]


def _branches(study: Path, laid_out: grid.Grid) -> dict[str, str]:
    """How many of its branches are done, by the run of the trunk that has any."""
    planned = Counter(branch.trunk for branch in laid_out.branches.values())
    done = Counter(
        branch.trunk for run, branch in laid_out.branches.items() if _is_done(study / "runs" / run)
    )
    return {trunk: f"branches {done[trunk]}/{n}" for trunk, n in planned.items()}


def _is_done(folder: Path) -> bool:
    record = folder / "run.json"
    return record.is_file() and read_json(record, "run record")["status"] == "done"


def _with_note(row: Row, note: str) -> Row:
    return replace(row, note="; ".join(filter(None, (row.note, note))))


def _row(study: Path, run: str, name: str) -> Row:
    record = study / "runs" / run / "run.json"
    if record.is_file():
        made = read_json(record, "run record")
        hours = f"{made['train_seconds'] / 3600:.3g} h"
        note = "; ".join(filter(None, (hours, made["message"])))
        return Row(name, made["status"], f"{made['updates']:,}", note=note)
    who = lock.holder(study / "scratch" / run)
    attempts = sorted((study / "scratch" / run).glob("attempt-*.jsonl"))
    if not attempts:
        return Row(name, "starting", note=who.description) if who else Row(name, "waiting")
    rows = _tail(attempts[-1])
    updates = [row for row in rows if row.get("record") == "update"]
    end = rows[-1] if rows and rows[-1].get("record") == "end" else None
    age = f"last row {_age(time.time() - attempts[-1].stat().st_mtime)} ago"
    status = "running" if who else end["status"] if end else "stopped"
    by = who.description if who else ""
    if not updates:
        return Row(name, status, note="; ".join(filter(None, (by, age))))
    last = updates[-1]
    return Row(
        name,
        status,
        f"{last['update']:,}",
        f"{last['budget_fraction']:.1%}",
        "" if last["train_loss"] is None else f"{last['train_loss']:.4f}",
        f"{_pace(updates):,.0f}",
        "; ".join(filter(None, (_left(last), by, age))),
    )


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last whole rows of a log."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        lines = file.read().split(b"\n")
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the first may be cut by the seek, the last is being written
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _pace(updates: list[dict[str, Any]]) -> float:
    """Tokens per second of productive time, over the last rows."""
    first, last = updates[0], updates[-1]
    seconds = last["train_seconds"] - first["train_seconds"]
    return (last["tokens"] - first["tokens"]) / seconds if seconds else last["tokens_per_second"]


def _left(row: dict[str, Any]) -> str:
    """Productive time to the end of the budget, at the pace so far."""
    spent = row["budget_fraction"]
    return f"{_age(row['train_seconds'] * (1 - spent) / spent)} left" if 0 < spent < 1 else ""


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
