"""The log of a run: JSON lines, one file an attempt, joined when the run is over.

While a run lives its attempts lie in ``scratch/<run>/attempt-001.jsonl`` and so on; each line is
one write, so a kill can cut the last line only. ``publish`` joins them, byte for byte, into
``runs/<run>/log.jsonl``, and then writes ``run.json``. A copy of the record stays in scratch:
Snakemake deletes the outputs of a job that was over but counts as failed, for example because it
passed its time limit while it wrote them.
"""

import os
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from lmscaling.files import read_json, replacing, write_json
from lmscaling.records.run import Row, Run, line


class Log:
    """The log of one attempt; the next free number is taken."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.scratch = scratch
        self.attempt = len(attempts(scratch)) + 1
        self._file = (scratch / f"attempt-{self.attempt:03d}.jsonl").open("xb", buffering=0)

    def write(self, row: Row) -> None:
        """Add one whole line."""
        self._file.write(line(row))

    def sync(self) -> None:
        """Let what was written survive a power cut."""
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
    """Join the attempts into ``log.jsonl`` beside ``record``, then write the record itself."""
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


def published(run: str, scratch: Path, record: Path) -> Run | None:
    """The record of a run that is over but whose record was taken away; it is written again."""
    kept = scratch / record.name
    if record.exists() or not kept.is_file() or not record.with_name("log.jsonl").is_file():
        return None
    values = read_json(kept, "run record")
    if values["run"] != run:
        return None
    write_json(record, values)
    _clear(scratch)
    return Run(**values)
