"""The progress of a study and its failures, read from records, locks and the ends of logs.

It takes a moment and needs no database, so it also runs on a login node beside the jobs. A cell
*runs* if a process holds its lock. It is *stopped* if its last attempt was killed and none has
followed, and *interrupted* if that attempt saved and ended in order. A run that ended as ``oom`` or
``diverged`` has a record and is not repeated. One whose last attempt failed has none and is *held*:
the next ``snakemake`` continues it from its last checkpoint, after repeated failures only once
``reset --go-on`` allows it.
"""

import json
import time
from collections import Counter
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from lmscaling.config import code, study_file, sweeps
from lmscaling.config.grid import Grid
from lmscaling.formatting import duration, folded, noted, printable
from lmscaling.records import finished
from lmscaling.records.checks import findings
from lmscaling.records.run import HELD
from lmscaling.runtime import lock
from lmscaling.status import stale
from lmscaling.status.job_logs import tail


@dataclass(frozen=True)
class Row:
    """One line of the table of progress."""

    cell: str
    status: str
    updates: str = ""
    budget: str = ""
    train_loss: str = ""
    val_loss: str = ""
    pace: str = ""
    trained: str = ""
    note: str = ""


HEAD = Row("cell", "status", "updates", "budget", "train loss", "val loss", "tokens/s", "trained")

COLOURS = {
    "done": 32,
    "running": 36,
    "starting": 36,
    **dict.fromkeys(("stopped", "interrupted", HELD), 33),
    **dict.fromkeys(("diverged", "oom", "out_of_tokens", "no_trunk"), 31),
    finished.DAMAGED: 31,
}
"""Colours of states, see ``formatting.painted``."""


def progress(study: Path) -> str:
    """The cells of ``results/<study>/`` as a table whose last lines count cells and measurements.

    Branches have no lines of their own; the note of their trunk counts them.

    Raises:
        UserError: There is no such study.
    """
    grid = study_file.read_record(study / "study.json").grid
    branches, old = _branch_notes(study, grid), stale.runs(study, grid)
    rows = []
    for run, cell in (grid.cells | grid.tasks).items():
        line = row(study, run, cell.name)
        note = _joined(line.note, code.STALE if run in old else "", branches.get(run, ""))
        rows.append(replace(line, note=note))
    rows += [Row(cell.name, "skipped", note=reason) for cell, reason in grid.skipped]
    lines = noted([list(astuple(row)) for row in (HEAD, *rows)], left={0, 1})
    counts = Counter(line.status for line in rows)
    total = f"{len(rows)} cells: {', '.join(f'{n} {status}' for status, n in counts.most_common())}"
    notes = [*_speed_line(study, grid), *_kernel_lines(study)]
    notes += code.stale_line(study.name, len(old))
    said = [line for note in [total, *notes] for line in folded(note)]
    return "\n".join(map(printable, [*lines, *said]))


def record_of(study: Path, run: str) -> dict[str, Any] | None:
    path = study / "runs" / run / "run.json"
    return finished.look(path) if path.is_file() else None


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _speed_line(study: Path, grid: Grid) -> list[str]:
    """One line that counts sweeps and points, if the study has any."""
    planned = sweeps.expand(grid.study)
    if not planned:
        return []
    pending = [f for f, sweep in planned.items() if sweeps.is_pending(study / "speed" / f, sweep)]
    points = [study / "speed" / f / f"{p.name}.json" for f, s in planned.items() for p in s.points]
    done = f"{len(planned) - len(pending)} of {len(planned)} sweeps"
    found = sum(path.is_file() for path in points)
    return [f"speed: {done} are done, {found} of {len(points)} points have a record"]


def _kernel_lines(study: Path) -> list[str]:
    """A line for each kernel that failed its check, by device."""
    paths = sorted([*study.glob("checks/*.json"), *study.glob("speed/kernels-*.json")])
    wrong = (each for path in paths for each in findings(path) if each.message)
    said = (f"kernels: {each.way}: {each.message}, on {each.key.get('device')}" for each in wrong)
    return list(dict.fromkeys(said))


def _branch_notes(study: Path, grid: Grid) -> dict[str, str]:
    """By the run of a trunk, how many of its branches are done."""
    planned = Counter(branch.trunk for branch in grid.branches.values())
    done: Counter[str] = Counter()
    for run, branch in grid.branches.items():
        done[branch.trunk] += (record_of(study, run) or {}).get("status") == "done"
    return {trunk: f"branches {done[trunk]}/{n}" for trunk, n in planned.items()}


def row(study: Path, run: str, name: str) -> Row:
    """The line of a cell: its record, or the end of the log of its last attempt."""
    if record := record_of(study, run):
        return Row(
            name,
            record["status"],
            f"{record['updates']:,}",
            val_loss=_loss(record.get("last_val_loss")),
            trained=duration(record["train_seconds"], ".3g"),
            note=record["message"],
        )
    holder = lock.holder(study / "scratch" / run)
    attempts = sorted((study / "scratch" / run).glob("attempt-*.jsonl"))
    if not attempts:
        return Row(name, "starting", note=holder.description) if holder else Row(name, "waiting")
    rows = _log_rows(attempts[-1])
    end = rows[-1] if rows and rows[-1].get("record") == "end" else None
    status = "running" if holder else end["status"] if end else "stopped"
    age = f"last row {duration(time.time() - attempts[-1].stat().st_mtime)} ago"
    reason = end["message"] if end and status == HELD else ""
    note = _joined(holder.description if holder else "", reason, age)
    updates = [row for row in rows if row.get("record") == "update"]
    if not updates:
        return Row(name, status, note=note)
    losses = [row["val_loss"] for row in rows if row.get("record") == "validation"]
    first, last = updates[0], updates[-1]
    seconds, spent = last["train_seconds"], last["budget_fraction"]
    pace, between = last["tokens_per_second"], seconds - first["train_seconds"]
    if between:  # over the last rows
        pace = (last["tokens"] - first["tokens"]) / between
    left = f"{duration(seconds * (1 - spent) / spent)} left" if 0 < spent < 1 else ""
    return Row(
        name,
        status,
        f"{last['update']:,}",
        f"{spent:.1%}",
        _loss(last["train_loss"]),
        _loss(losses[-1] if losses else None),
        f"{pace:,.0f}",
        duration(seconds, ".3g"),
        _joined(left, note),
    )


def _loss(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"


def _log_rows(path: Path) -> list[dict[str, Any]]:
    """The last complete rows of a log."""
    rows = []
    for line in tail(path):
        with suppress(ValueError):  # the first line may be cut, the last is being written
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]
