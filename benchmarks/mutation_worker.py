"""A process that runs tests in a copy of the repository; see ``mutate.py``."""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "config", "workflow", "profiles", "results/published", "benchmarks",
          "default", "slurm", "Snakefile", "pyproject.toml", "README.md")  # fmt: skip


class Calls:
    """A plugin of pytest: how long each test takes, and which functions of a folder it calls.

    What modules and fixtures call is noted under the empty name, for tests share them.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.test = folder, ""
        self.code: dict[str, set[CodeType]] = defaultdict(set)
        self.seconds: dict[str, float] = defaultdict(float)

    def trace(self, frame: FrameType, event: str, argument: Any) -> None:
        """For ``sys.settrace``: sees calls, and no lines."""
        self.code[self.test].add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Calls from here on are those of the test itself."""
        self.test = item.nodeid
        try:
            return (yield)
        finally:
            self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of a set-up, a test or a tear-down."""
        self.seconds[report.nodeid] += report.duration

    def summary(self) -> dict[str, Any]:
        """Seconds of each test, and files and first lines of the functions that it calls."""
        calls = {
            test: sorted(
                f"{c.co_filename.removeprefix(self.folder)}:{c.co_firstlineno}"
                for c in codes
                if c.co_filename.startswith(self.folder)
            )
            for test, codes in self.code.items()
        }
        return {"seconds": self.seconds, "calls": calls}


class Worker:
    """A copy of the repository and the process that tests what was changed in it."""

    def __init__(self, folder: Path) -> None:
        self.copy = folder / "repository"
        for name in COPIED:
            source, target = ROOT / name, self.copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir() and not source.is_symlink():
                shutil.copytree(source, target, symlinks=True)
            elif source.exists():
                shutil.copy2(source, target, follow_symlinks=False)
        (self.copy / ".venv").symlink_to((ROOT / ".venv").resolve())
        if (ROOT.parent / "shared").is_dir():
            (folder / "shared").symlink_to(ROOT.parent / "shared")
        self.log, self.scratch, self.calls = folder / "log", folder / "tmp", folder / "calls"
        self.pid = 0
        self.job: Any = None

    def start(self, mutant: Any, tests: list[str], limit: float) -> None:
        """Change the file, if one is given, and begin to test; else note what the tests call."""
        self.job, self.begun = (mutant, tests), time.monotonic()
        self.limit = limit
        if mutant:
            (self.copy / mutant.path).write_text(mutant.source)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        self.pid = os.fork()
        if self.pid == 0:
            self._test(tests, None if mutant else Calls(str(self.copy / "src" / "lmscaling") + "/"))

    def _test(self, tests: list[str], calls: Calls | None) -> NoReturn:
        os.setsid()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self.copy)
        os.environ |= {"PYTHONPATH": str(self.copy / "src"), "TMPDIR": str(self.scratch)}
        tempfile.tempdir = None
        sys.path.insert(0, str(self.copy / "src"))
        marks, names = "not slow and not ci and not slurm and not gpu", "not two_ranks and not kill"
        chosen = ["-m", marks, "-k", names, "-o", "addopts=", "-o", "timeout=0"]
        options = ["-x", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
        code = 3
        try:
            if calls:
                sys.settrace(calls.trace)
                threading.settrace(calls.trace)
            code = int(pytest.main([*options, *chosen, *tests], plugins=[calls] if calls else []))
            if calls:
                sys.settrace(None)
                self.calls.write_text(json.dumps(calls.summary()))
        finally:
            os._exit(code)

    def ended(self) -> tuple[str, float, str] | None:
        """Outcome, seconds and the first test that failed; None while tests run."""
        seconds = time.monotonic() - self.begun
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = not pid and seconds > self.limit
        if not pid and not late:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # also what the tests have started
        if late:
            os.waitpid(self.pid, 0)
        if self.job[0]:
            shutil.copy2(ROOT / self.job[0].path, self.copy / self.job[0].path)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", self.log.read_text(errors="replace"), re.M)
        code = os.waitstatus_to_exitcode(status) if pid else 0
        outcome = "timeout" if late else "killed" if code else "survived"
        return outcome, round(seconds, 1), failed[1] if failed else ""
