"""The check of the kernels that a study times: what is wrong is not timed."""

from functools import partial
from pathlib import Path

from lmscaling.bench import peers
from lmscaling.bench.checks import exactness, right
from lmscaling.bench.isolation import isolated
from lmscaling.config import study_file, sweeps
from lmscaling.config.speed import Sweep
from lmscaling.files import write_json
from lmscaling.runtime import gpus

SECONDS = 300.0
"""Time limit for a kernel; most of it is compiling."""


def check(study: Path, out: Path) -> dict[str, str]:
    """Compare each kernel that a study times with exact results, in a process of its own.

    Args:
        study: ``study.json``.
        out: Gets what is wrong with each kernel, by its name; empty if nothing is.

    Returns:
        The same of those that are wrong.

    Raises:
        UserError: The study is damaged, or the machine has failed.
    """
    planned = study_file.read_record(study).grid.study
    found = sweeps.expand(planned).values()
    steps = [one for one in found if one.kind == "time_step"] or [*found]
    names = sweeps.kernels(planned)
    names = [n for n in names if "peer/" not in n or n.removeprefix("peer/") in peers.installed()]
    with gpus.reserved(1 if planned.gpus else 0):
        faults = {name: _fault(name, steps) for name in (*names, right.LOSS)}
    write_json(out, faults)
    return {name: fault for name, fault in faults.items() if fault}


def _fault(name: str, steps: list[Sweep]) -> str:
    ended = isolated(partial(_first_fault, name, steps), SECONDS)
    return ended.message or ended.value


def _first_fault(name: str, steps: list[Sweep]) -> str:
    return exactness.first_fault(right.compared(name, steps)) or ""
