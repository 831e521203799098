"""The log of a run: JSON lines in one file per attempt, joined when the run has ended.

Until then, the logs of its attempts are ``scratch/<run>/attempt-001.jsonl`` and so on. Each line is
one write, so a kill can truncate the last line only. ``publish`` joins the files, byte for byte,
into ``runs/<run>/log.jsonl`` and then writes ``run.json``. A copy of the record stays in scratch,
because Snakemake deletes the outputs of a job that it counts as failed, for example one that
reached its time limit while it wrote them.
"""

import os
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from lmscaling.files import read_json, replacing, write_json
from lmscaling.records.run import Row, Run, line


class Log:
    """The log of a new attempt, with the next free number."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.scratch = scratch
        self.attempt = len(attempts(scratch)) + 1
        self._file = (scratch / f"attempt-{self.attempt:03d}.jsonl").open("xb", buffering=0)

    def write(self, row: Row) -> None:
        """Append one line."""
        self._file.write(line(row))

    def sync(self) -> None:
        """Wait until everything written is on disk."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sync()
        self._file.close()


def attempts(scratch: Path) -> list[Path]:
    """The attempts of a run, in order."""
    return sorted(scratch.glob("attempt-*.jsonl"))


def publish(scratch: Path, record: Path, run: Run) -> None:
    """Join the logs of all attempts into ``log.jsonl`` beside ``record``, then write the record."""
    with replacing(record.with_name("log.jsonl")) as out:
        for path in attempts(scratch):
            data = path.read_bytes()
            out.write(data if data.endswith(b"\n") else data + b"\n")
    write_json(scratch / record.name, asdict(run))
    write_json(record, asdict(run))
    _clear(scratch)


def _clear(scratch: Path) -> None:
    for path in (*attempts(scratch), *scratch.glob("checkpoint-*"), scratch / "ledger.jsonl"):
        path.unlink(missing_ok=True)


def restore_record(run: str, scratch: Path, record: Path) -> Run | None:
    """Write the record of a finished run again if it was deleted; None if it was not."""
    copy = scratch / record.name
    if record.exists() or not copy.is_file() or not record.with_name("log.jsonl").is_file():
        return None
    values = read_json(copy, "run record")
    if values["run"] != run:
        return None
    write_json(record, values)
    _clear(scratch)
    return Run(**values)
