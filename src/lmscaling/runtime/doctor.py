"""What this machine and this Python can run, and what to type where something is missing.

No check needs a network, imports PyTorch or initializes CUDA, and each has its own time limit: a
file system or a controller that does not answer is a finding.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lmscaling.formatting import bytes_of, noted

OK, ABSENT, WRONG = "ok", "absent", "wrong"
"""States: ``absent`` is what the demo does without, ``wrong`` is to be mended."""

COLOURS = {OK: 32, ABSENT: 33, WRONG: 31}

SECONDS = 10.0
"""Time limit of a check; all run at the same time. A busy machine or a GPU that sleeps takes
seconds."""

NAMED = ("snakemake", "torch", "triton")
"""Packages that have lines of their own."""

WRITTEN = 4_000_000
"""Bytes that are written to measure the results folder."""

LEAST_FREE = 500_000_000
"""Bytes of a disk below which the demo may not end."""


@dataclass(frozen=True)
class Finding:
    """What a check has found."""

    state: str
    found: str
    advice: str
    """What works, or what to type."""


@dataclass(frozen=True)
class Check:
    """One line of the answer."""

    what: str
    look: Callable[[], Finding]
    is_needed: bool = False
    """Whether the demo needs it."""


def examine(results: Path) -> tuple[str, bool]:
    """All findings as a table, and whether the demo can run.

    Args:
        results: Folder of all studies.
    """
    checks = [
        Check("Python", _python, True),
        *(Check(name, lambda name=name: _package(name), name != "triton") for name in NAMED),
        Check("other packages", _other_packages, True),
        Check("GPU", _gpu),
        Check("C compiler", _compiler),
        Check("results folder", lambda: _folder(results), True),
        Check("Slurm", _slurm),
        *(
            Check(name, lambda name=name, path=path: _cache(name, path))
            for name, path in _caches().items()
        ),
    ]
    found = _all([check.look for check in checks])
    lines = [["state", "what", "found"]]
    lines += [
        [finding.state, check.what, f"{finding.found}; {finding.advice}"]
        for check, finding in zip(checks, found, strict=True)
    ]
    pairs = zip(checks, found, strict=True)
    missing = [c.what for c, finding in pairs if c.is_needed and finding.state == WRONG]
    verdict = f"the demo cannot run before this is mended: {', '.join(missing)}"
    if not missing:
        verdict = "the demo can run, without a network; type lmscaling demo"
    return "\n".join([*noted(lines, left={0, 1}), "", verdict]), not missing


def _all(looks: list[Callable[[], Finding]]) -> list[Finding]:
    """What each check finds within its time limit."""
    found: dict[int, Finding] = {}

    def look(i: int) -> None:
        try:
            found[i] = looks[i]()
        except subprocess.TimeoutExpired as error:
            found[i] = Finding(WRONG, *_silent(str(error.cmd[0])))
        except OSError as error:
            found[i] = Finding(WRONG, f"{error.strerror}: {error.filename}", "mend it, and repeat")

    threads = [threading.Thread(target=look, args=(i,), daemon=True) for i in range(len(looks))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + SECONDS + 0.2  # a program that is ended says so itself
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [found.get(i) or Finding(WRONG, *_silent("it")) for i in range(len(looks))]


def _silent(what: str) -> tuple[str, str]:
    return f"{what} gives no answer in {SECONDS:g} s", "ask who runs this machine, and repeat"


def _said(*command: str) -> str:
    """What a program prints; empty if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    allowed = metadata("lmscaling")["Requires-Python"] if _is_installed() else ""
    if SpecifierSet(allowed).contains(found):
        return Finding(OK, found, sys.executable)
    return Finding(WRONG, f"{found}, allowed {allowed}", "install lmscaling with another Python")


def _is_installed() -> bool:
    try:
        return bool(version("lmscaling"))
    except PackageNotFoundError:  # it runs from a folder of sources
        return False


def _requirements() -> list[Requirement]:
    """What the demo needs, and Triton; none if this package runs from a folder of sources."""
    wanted = [Requirement(text) for text in requires("lmscaling") or []] if _is_installed() else []
    return [
        each
        for each in wanted
        if each.name == "triton" or not each.marker or each.marker.evaluate({"extra": ""})
    ]


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _package(name: str) -> Finding:
    found = _installed(name)
    allowed = next((r.specifier for r in _requirements() if r.name == name), SpecifierSet())
    if found and allowed.contains(found, prereleases=True):
        return Finding(OK, found, f"allowed {allowed or 'any'}")
    if not found and name == "triton":
        return Finding(ABSENT, "not installed", "PyTorch's own kernels are used; a GPU wants it")
    told = f"{found}, allowed {allowed}" if found else "not installed"
    return Finding(WRONG, told, _install([f"{name}{allowed}"]))


def _other_packages() -> Finding:
    others = [each for each in _requirements() if each.name not in NAMED]
    if not others:
        return Finding(ABSENT, "lmscaling is not installed", "versions are not compared")
    found = {each: _installed(each.name) for each in others}
    bad = [each for each in others if not each.specifier.contains(found[each] or "0", True)]
    if not bad:
        return Finding(OK, f"{len(others)} installed", "all in the allowed ranges")
    told = ", ".join(f"{each.name} {found[each] or 'is not installed'}" for each in bad)
    return Finding(WRONG, told, _install(f"{each.name}{each.specifier}" for each in bad))


def _install(names: Iterable[str]) -> str:
    quoted = " ".join(f"'{name}'" for name in names)
    return f"type {sys.executable} -m pip install {quoted}"


def _gpu() -> Finding:
    on_cpu = "the demo and studies with gpus: 0 work"
    if not shutil.which("nvidia-smi"):
        return Finding(ABSENT, "no nvidia-smi: CPU only", on_cpu)
    query = ("--query-gpu=name,memory.total", "--format=csv,noheader")
    names = _said("nvidia-smi", *query).splitlines()
    if not names:
        advice = f"type nvidia-smi to see why; without it {on_cpu}"
        return Finding(WRONG, "nvidia-smi names no GPU", advice)
    told = f"{len(names)} x {names[0]}"
    if "+cpu" in (torch := _installed("torch")):
        return Finding(
            WRONG, told, f"torch {torch} cannot use it; install a build of torch for CUDA"
        )
    return Finding(OK, told, "studies with gpus: work; type make gpu to measure it")


def _compiler() -> Finding:
    """The compiler that Triton takes (3.6.0, ``runtime/build.py``)."""
    path = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if path and (told := _said(path, "--version")):
        return Finding(OK, told.splitlines()[0], "all that Triton needs")
    if path:
        return Finding(WRONG, f"{path} does not run", "type export CC=gcc, or install a compiler")
    advice = "on a GPU, install one for Triton"
    return Finding(ABSENT, "neither CC, gcc nor clang, which the CPU does without", advice)


def _folder(results: Path) -> Finding:
    place = _existing(results)
    if not os.access(place, os.W_OK | os.X_OK):
        advice = "change into a folder of yours, or name another by --results"
        return Finding(WRONG, f"{place.absolute()} cannot be written", advice)
    free = shutil.disk_usage(place).free
    began = time.monotonic()
    with tempfile.TemporaryFile(dir=place) as file:
        file.write(bytes(WRITTEN))
        file.flush()
        os.fsync(file.fileno())
    speed = WRITTEN / (time.monotonic() - began)
    told = f"{results}: {bytes_of(free)} free, writes {bytes_of(speed)}/s"
    if free < LEAST_FREE:
        return Finding(WRONG, told, f"make room: the demo asks for {bytes_of(LEAST_FREE)}")
    return Finding(OK, told, "see lmscaling plan")


def _slurm() -> Finding:
    programs = ("sbatch", "squeue", "scontrol")
    absent = [name for name in programs if not shutil.which(name)]
    if len(absent) == len(programs):
        return Finding(ABSENT, "no sbatch", "jobs run on this machine; the demo needs no more")
    if absent:
        advice = "snakemake --profile slurm needs it: type module load slurm, or extend PATH"
        return Finding(WRONG, f"no {', '.join(absent)}", advice)
    told = _said("scontrol", "ping")
    if re.search(r"\bUP\b", told):
        return Finding(OK, told.splitlines()[0], "type snakemake --profile slurm")
    told = told.splitlines()[0] if told else "scontrol ping fails"
    return Finding(WRONG, told, "no job can start; type sinfo")


def _caches() -> dict[str, Path]:
    """The folders in which other packages keep files, by the variable that names them."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    defaults = {
        "TRITON_CACHE_DIR": Path.home() / ".triton" / "cache",
        "HF_HOME": home / "huggingface",
        "TIKTOKEN_CACHE_DIR": Path(tempfile.gettempdir()) / "data-gym-cache",
    }
    return {name: Path(os.environ.get(name) or path) for name, path in defaults.items()}


def _cache(name: str, path: Path) -> Finding:
    if os.access(_existing(path), os.W_OK | os.X_OK):
        return Finding(OK, str(path), "can be written")
    advice = f"type export {name}=, then a folder that you can write"
    return Finding(WRONG, f"{path} cannot be written", advice)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())
