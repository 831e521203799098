"""What has failed in a study, why, where its log is, and what to type.

Ledgers and logs tell how runs have ended; Snakemake tells of jobs that have failed just now. A
reason that many jobs share is said once.
"""

import sys
from collections import Counter
from collections.abc import Iterable
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
    ("TIMEOUT", "to give a rule more time, type snakemake --set-resources RULE:runtime=48h"),
    (
        "OUT_OF_MEMORY",
        "to give a rule more memory, type snakemake --set-resources RULE:mem_mb=64000",
    ),
    ("refuses the job", "what a job asks for is in profiles/slurm/config.yaml, default-resources"),
)
"""What a reason of Slurm asks for."""


def listed(study: Path) -> str:
    """The failed runs of ``results/<study>/``, why they failed and what to type; empty if none has.

    Raises:
        UserError: There is no such study.
    """
    failures, advice = _of_runs(study, study_file.read_record(study / "study.json").grid, [])
    return "\n".join([*job_logs.grouped(failures), *advice])


def last_words(study: Path, grid: Grid, jobs: Iterable[Failure] = ()) -> None:
    """Print what has failed at the end of a workflow, in a few lines.

    Args:
        study: ``results/<study>``.
        grid: The study.
        jobs: Jobs that this workflow has given up.
    """
    told = list(jobs)
    try:
        failures, advice = _of_runs(study, grid, told)
    except Exception as error:  # what the jobs told must be said whatever the files contain
        failures, advice = told, [f"the runs cannot be read: {error}"]
    lines = job_logs.grouped(failures)
    firsts = [i for i, line in enumerate(lines) if not line.startswith(" ")]
    if len(firsts) > SHOWN:  # what has just failed comes last
        n = len(firsts) - SHOWN
        lines = lines[firsts[n] :]
        advice.insert(0, f"{n} more reasons: lmscaling status {study} --failed")
    if lines or advice:
        print("\n".join(["", *lines, *advice]), file=sys.stderr, flush=True)


def _of_runs(study: Path, grid: Grid, told: list[Failure]) -> tuple[list[Failure], list[str]]:
    """Failures of runs, and of the jobs that were told, which come last; and what to type.

    Of a run that is not held, the job that has just failed says the reason, not an older log.
    """
    now = {failure.name: failure for failure in told}
    earlier = "failed earlier" if told else "failed"
    ended: list[Failure] = []
    held: list[Failure] = []
    failed: list[Failure] = []
    latest: list[Failure] = []
    for run, cell in (grid.cells | grid.branches | grid.tasks).items():
        failure = now.pop(cell.name, None)
        if record := record_of(study, run):
            if record["status"] != "done":
                ended.append(Failure(cell.name, record["status"], record["message"]))
            continue
        job = f"{cell.trunk}-branches-*" if cell.branch else run
        hold, logs = _hold(study, run), _logs(study, job)
        log = str(logs[0]) if logs else ""
        if hold and hold.needs_release:
            held.append(Failure(cell.name, HELD, hold.reason, log))
        elif failure:
            latest.append(failure)
        elif hold:
            failed.append(Failure(cell.name, HELD, hold.reason, log))
        elif reason := _reason(study, run, job, logs):
            failed.append(Failure(cell.name, earlier, *reason))
    advice = _advice(study.name, ended, told, len(failed) + len(latest), len(now), len(held))
    return [*ended, *held, *failed, *latest, *now.values()], advice


def _advice(
    study: str, ended: list[Failure], told: list[Failure], n_runs: int, n_jobs: int, n_held: int
) -> list[str]:
    """What to type, a sentence for each kind of failure."""
    advice = []
    for status, n in Counter(failure.kind for failure in ended).items():
        what = f"{n} ended as {status}, which is a result"
        if status == finished.DAMAGED:
            what = f"{n} with a damaged record"
        again = f"lmscaling reset --study {study} --status {status}"
        advice.append(f"{what}; to train again from update 0: {again}")
    reasons = " ".join(failure.reason for failure in told)
    advice += [remedy for state, remedy in REMEDIES if state in reasons]
    if n_jobs:
        what = "job" if n_jobs == 1 else "jobs"
        advice.append(f"{n_jobs} {what} failed; mend the cause, then run snakemake again")
    if n_runs:
        advice.append(f"{n_runs} failed; run snakemake again to continue from checkpoints")
    if n_held:
        advice.append(
            f"{n_held} held after repeated failures; to continue from checkpoints: "
            f"lmscaling reset --go-on --study {study} --status held, then snakemake"
        )
    return advice


def _hold(study: Path, run: str) -> ledger.Hold | None:
    """Why a run without a record waits; None if it does not, or if it is being trained."""
    scratch = study / "scratch" / run
    if lock.holder(scratch):
        return None
    return ledger.hold(ledger.entries(scratch / ledger.NAME, ledger.RECENT_BYTES))


def _logs(study: Path, job: str) -> list[Path]:
    return [path for rule in ("train", "branch") for path in study.glob(f"logs/{rule}/{job}.log")]


def _reason(study: Path, run: str, job: str, logs: list[Path]) -> tuple[str, str] | None:
    """Why a run without a record has stopped, and its log; None if it trains or has not begun."""
    scratch = study / "scratch" / run
    if lock.holder(scratch) or not (logs or scratch.exists()):
        return None
    slurm = sorted(SLURM_LOGS.glob(f"rule_*/{job}/*.log"), key=lambda path: path.stat().st_mtime)
    logs = [*logs, *slurm[-1:]]
    for path in logs:
        if reason := job_logs.last_error(path):
            return reason, str(path)
    return "unknown reason", ", ".join(map(str, logs))
