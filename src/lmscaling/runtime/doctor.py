"""What this machine and this Python can run, and what to type where something is missing.

No check needs a network, imports PyTorch or initializes CUDA, and each has a time limit: a file
system or a controller that does not answer is a finding.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from threading import Thread

from packaging.requirements import Requirement

from lmscaling.formatting import bytes_of, noted

OK, ABSENT, WRONG = "ok", "absent", "wrong"
"""States: ``absent`` is what the demo does without, ``wrong`` is to be corrected."""

COLOURS = {OK: 32, ABSENT: 33, WRONG: 31}

SECONDS = 10.0
"""Time limit of a check. A busy machine or a GPU that sleeps takes seconds."""

LEAST_FREE = 500_000_000
"""Bytes of a disk below which the demo may not end."""

NEEDED = ("packages", "results folder")
"""Checks without which the demo cannot run."""

Finding = tuple[str, str]
"""The state; then what was found, and what works or what to type."""


def examine(results: Path) -> tuple[str, bool]:
    """All findings as a table, and whether the demo can run.

    Args:
        results: Folder of all studies.
    """
    found = {what: _answer(look) for what, look in _checks(results).items()}
    lines = [["state", "what", "found"], *([s, what, told] for what, (s, told) in found.items())]
    missing = ", ".join(what for what in NEEDED if found[what][0] == WRONG)
    verdict = "the demo can run, without a network; type lmscaling demo"
    if missing:
        verdict = f"the demo cannot run before this is corrected: {missing}"
    return "\n".join([*noted(lines, left={0, 1}), "", verdict]), not missing


def _checks(results: Path) -> dict[str, Callable[[], Finding]]:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    caches = {
        "TRITON_CACHE_DIR": Path.home() / ".triton" / "cache",
        "HF_HOME": home / "huggingface",
        "TIKTOKEN_CACHE_DIR": Path(tempfile.gettempdir()) / "data-gym-cache",
    }
    return {
        "packages": _packages,
        "GPU": _gpu,
        "C compiler": lambda: _program(
            # The one that Triton takes (3.6.0, runtime/build.py).
            [os.environ.get("CC") or shutil.which("gcc") or "clang", "--version"],
            answer="",
            absent="neither CC, gcc nor clang; install one if you use a GPU, for Triton",
            wrong="type export CC=gcc, or install a compiler",
            right="all that Triton needs",
        ),
        "results folder": lambda: _folder(results, "name another folder by --results"),
        "Slurm": lambda: _program(
            ["scontrol", "ping"],
            answer=r"\bUP\b",
            absent="no scontrol; jobs run on this machine; the demo needs no more",
            wrong="no job can start; type sinfo",
            right="type snakemake --profile slurm",
        ),
    } | {
        name: partial(_folder, Path(os.environ.get(name) or path), f"type export {name}=FOLDER")
        for name, path in caches.items()
    }


def _answer(look: Callable[[], Finding]) -> Finding:
    """What a check finds within its time limit."""
    found = (WRONG, f"no answer in {SECONDS:g} s; ask who runs this machine, and repeat")

    def ask() -> None:
        nonlocal found
        try:
            found = look()
        except OSError as error:
            found = (WRONG, f"{error.strerror}: {error.filename}; correct it, and repeat")
        except subprocess.TimeoutExpired:
            pass

    thread = Thread(target=ask, daemon=True)  # no time limit ends a wait for a file system
    thread.start()
    thread.join(SECONDS + 0.2)  # a program that is ended says so itself
    return found


def _program(command: list[str], answer: str, absent: str, wrong: str, right: str) -> Finding:
    """Whether a program runs and gives an answer, a pattern, whose first line is shown."""
    if not shutil.which(command[0]):
        return ABSENT, absent
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    said = done.stdout.strip().partition("\n")[0] or f"{command[0]} fails"
    is_right = not done.returncode and re.search(answer, said)
    return (OK, f"{said}; {right}") if is_right else (WRONG, f"{said}; {wrong}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _packages() -> Finding:
    """Compares what the demo needs with what is installed."""
    if not _version("lmscaling"):  # it runs from a folder of sources
        return ABSENT, "lmscaling is not installed; versions are not compared"
    wanted = [each for each in map(Requirement, requires("lmscaling") or []) if not each.marker]
    found = {each.name: _version(each.name) for each in wanted}
    wrong = [each for each in wanted if not each.specifier.contains(found[each.name] or "0", True)]
    if not wrong:
        known = ", ".join(f"{name} {found[name]}" for name in ("torch", "snakemake"))
        return OK, f"{known} and {len(found) - 2} more; {sys.executable}"
    told = ", ".join(f"{each.name} {found[each.name] or 'is not installed'}" for each in wrong)
    names = " ".join(f"'{each.name}{each.specifier}'" for each in wrong)
    return WRONG, f"{told}; type {sys.executable} -m pip install {names}"


def _gpu() -> Finding:
    state, told = _program(
        ["nvidia-smi", "--query-gpu=count,name,memory.total", "--format=csv,noheader"],
        answer=r"^\d",
        absent="no nvidia-smi: CPU only; the demo and studies with gpus: 0 work",
        wrong="type nvidia-smi to see why; the demo and studies with gpus: 0 work",
        right="studies with gpus: work; type make gpu to measure it",
    )
    if state == OK and "+cpu" in (torch := _version("torch")):
        return WRONG, f"torch {torch} cannot use a GPU; install a build of torch for CUDA"
    if state == OK and not _version("triton"):
        return WRONG, f"triton is not installed; type {sys.executable} -m pip install triton"
    return state, told


def _folder(path: Path, advice: str) -> Finding:
    place = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        return WRONG, f"{place.absolute()} cannot be written; {advice}"
    told = f"{path}: {bytes_of(free := shutil.disk_usage(place).free)} free"
    if free < LEAST_FREE:
        return WRONG, f"{told}; make room: the demo asks for {bytes_of(LEAST_FREE)}"
    return OK, f"{told}; can be written"
