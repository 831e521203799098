"""What has failed in a study, why, where its log is, and what to type.

Ledgers and logs say how runs have ended; Snakemake names jobs that have failed just now. A reason
that many jobs share is said once.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lmscaling.config import study_file
from lmscaling.config.grid import Grid
from lmscaling.records import finished, ledger
from lmscaling.records.run import HELD
from lmscaling.runtime import lock
from lmscaling.status import job_logs
from lmscaling.status.job_logs import Failure
from lmscaling.status.table import record_of

SLURM_LOGS = Path(".snakemake/slurm_logs")
"""Where Snakemake's Slurm plugin writes the output of jobs, in the folder of the workflow."""

SHOWN = 12
"""Reasons that the end of a workflow shows."""

REMEDIES = (
    ("TIME LIMIT", "to give a rule more time, type snakemake --set-resources RULE:runtime=48h"),
    ("oom_kill", "to give a rule more memory, type snakemake --set-resources RULE:mem_mb=64000"),
)
"""What a reason of Slurm asks for."""


def listed(study: Path) -> str:
    """The failed runs of ``results/<study>/``, why they failed and what to type; empty if none has.

    Raises:
        UserError: There is no such study.
    """
    failures, advice = _of_runs(study, study_file.read_record(study / "study.json").grid)
    return "\n".join([*job_logs.grouped(failures), *advice])


def last_words(study: Path, grid: Grid) -> None:
    """Print at the end of a workflow which runs of a grid have failed, in a few lines, and where
    the report is, if it has all of them."""
    try:
        failures, advice = _of_runs(study, grid)
        report = study / "report.html"
        records = (path.stat().st_mtime for path in study.glob("runs/*/run.json"))
        if report.exists() and report.stat().st_mtime >= max(records, default=0):
            advice.append(f"report: {report}")
    except OSError as error:  # files of another user; the workflow has ended all the same
        failures, advice = [], [f"the runs cannot be read: {error}"]
    lines = job_logs.grouped(failures)
    firsts = [i for i, line in enumerate(lines) if not line.startswith(" ")]
    if len(firsts) > SHOWN:
        n = len(firsts) - SHOWN
        lines = lines[firsts[n] :]
        advice.insert(0, f"{n} more reasons: lmscaling status {study} --failed")
    if lines or advice:
        print("\n".join(["", *lines, *advice]), file=sys.stderr, flush=True)


def _of_runs(study: Path, grid: Grid) -> tuple[list[Failure], list[str]]:
    """Failures of runs, and what to type."""
    ended: list[Failure] = []
    held: list[Failure] = []
    failed: list[Failure] = []
    for run, cell in (grid.cells | grid.branches | grid.tasks).items():
        if record := record_of(study, run):
            if record["status"] != "done":
                ended.append(Failure(cell.name, record["status"], record["message"]))
            continue
        scratch = study / "scratch" / run
        if lock.holder(scratch):
            continue
        job = f"{cell.trunk}-branches-*" if cell.branch else run
        logs = [
            path for rule in ("train", "branch") for path in study.glob(f"logs/{rule}/{job}.log")
        ]
        if hold := ledger.hold(ledger.entries(scratch / ledger.NAME, ledger.RECENT_BYTES)):
            waiting = Failure(cell.name, HELD, hold.reason, str(logs[0]) if logs else "")
            (held if hold.needs_release else failed).append(waiting)
        elif logs or scratch.exists():
            failed.append(Failure(cell.name, "failed", *_reason(job, logs)))
    advice = [*_of_ended(study.name, ended)]
    reasons = " ".join(failure.reason for failure in failed)
    advice += [remedy for state, remedy in REMEDIES if state in reasons]
    if failed:
        advice.append(f"{len(failed)} failed; run snakemake again to continue from checkpoints")
    if held:
        advice.append(
            f"{len(held)} held after repeated failures; to continue from checkpoints: "
            f"lmscaling reset --go-on --study {study.name} --status held, then snakemake"
        )
    return [*ended, *held, *failed], advice


def _of_ended(study: str, ended: list[Failure]) -> Iterator[str]:
    """What to type for runs that have ended otherwise than done, by their status."""
    for status, n in Counter(failure.kind for failure in ended).items():
        what = f"{n} ended as {status}, which is a result"
        if status == finished.DAMAGED:
            what = f"{n} with a damaged record"
        again = f"lmscaling reset --study {study} --status {status}"
        yield f"{what}; to train again from update 0: {again}"


def _reason(job: str, logs: list[Path]) -> tuple[str, str]:
    """Why a job has stopped, and the log that says it."""
    slurm = sorted(SLURM_LOGS.glob(f"rule_*/{job}/*.log"), key=lambda path: path.stat().st_mtime)
    logs = [*logs, *slurm[-1:]]
    reasons = ((job_logs.last_error(path), str(path)) for path in logs)
    return next(
        (each for each in reasons if each[0]), ("unknown reason", ", ".join(map(str, logs)))
    )
