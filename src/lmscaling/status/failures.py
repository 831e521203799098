"""Which runs of a study have not ended well, why, and what to type: the last words of a workflow.

A run that ended as ``oom`` or ``diverged`` has a record, and nothing trains it again by itself. One
that has none goes on from its last checkpoint with the next ``snakemake``.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from lmscaling.config import study_file
from lmscaling.files import read_json
from lmscaling.formatting import aligned
from lmscaling.runtime import lock

TAIL_BYTES = 65536
"""Read from the end of a job's output."""

SLURM_LOGS = Path(".snakemake/slurm_logs")
"""Where the Slurm plugin leaves what ``sbatch`` said, below the folder of the workflow."""


def text(study: Path) -> str:
    """The runs of ``results/<study>/`` that have failed; empty if none has.

    Raises:
        UserError: There is no such study.
    """
    laid_out = study_file.read_record(study / "study.json").grid
    ended: list[tuple[str, str, str]] = []
    open_: list[tuple[str, str, str]] = []
    for run, cell in (laid_out.cells | laid_out.branches).items():
        record = study / "runs" / run / "run.json"
        if record.is_file():
            made = read_json(record, "run record")
            if made["status"] != "done":
                ended.append((cell.name, made["status"], made["message"]))
        elif reason := _failed(study, run):
            open_.append((cell.name, "failed", reason))
    if not ended and not open_:
        return ""
    lines = aligned([list(row) for row in (*ended, *open_)], left={0, 1, 2})
    return "\n".join([*lines, *_advice(study, Counter(status for _, status, _ in ended), open_)])


def _advice(study: Path, ended: Counter[str], open_: list[Any]) -> list[str]:
    said = [
        f"{n} ended as {status}, which is a result; to train again from update 0: "
        f"python -m lmscaling rerun --study {study.name} --status {status}"
        for status, n in ended.items()
    ]
    if open_:
        said.append(f"{len(open_)} failed; the same snakemake goes on from their checkpoints")
    return said


def _failed(study: Path, run: str) -> str:
    """Why a run without a record is not being trained; empty if it is, or was never begun."""
    scratch = study / "scratch" / run
    logs = [study / "logs" / rule / f"{run}.log" for rule in ("train", "branch")]
    begun = [path for path in logs if path.is_file()]
    if lock.holder(scratch) or not (begun or scratch.exists()):
        return ""
    of_slurm = sorted(SLURM_LOGS.glob(f"rule_*/{run}/*.log"), key=lambda p: p.stat().st_mtime)
    for path in (*begun, *of_slurm[-1:]):
        if reason := _last_error(path):
            return f"{reason} ({path})"
    return f"no reason is known ({', '.join(map(str, (*begun, *of_slurm[-1:]))) or 'no log'})"


def _last_error(path: Path) -> str:
    """The last line that tells of an error: ours, an exception's, or Slurm's."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    told = [line for line in lines if "error:" in line.lower() and line[:1].strip()]
    return told[-1].strip() if told else ""
