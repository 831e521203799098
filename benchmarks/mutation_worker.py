"""A process that runs tests in a copy of the repository; see ``mutate.py``."""

import ast
import contextlib
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/lmscaling")
Batch = tuple[list[str], float]
"""Tests, or files with tests, and the CPU seconds that they usually take."""
LIMIT = 300.0
"""Seconds by the clock that tests get beyond ten times their usual ones, for those that wait."""
NOTE = """
def _noted_(name, seen=__import__("sys").__dict__.setdefault("_noted", set()),
            os=__import__("os"), open=__import__("os").open, write=__import__("os").write):
    if name not in seen:
        seen.add(name)
        try:
            file = open({!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            write(file, name.encode() + b"\\n")
            os.close(file)
        except OSError:
            pass
"""
"""What each noting module executes: its functions append their names to a file, once a test; so do
those in processes that the test starts, even if they are killed."""


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of a file, outer ones first."""
    nodes = ast.walk(tree)
    found = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sorted(found, key=lambda node: node.lineno)


def noting(text: str, name: str, note: Path) -> str:
    """A source file whose functions note their calls as ``name:line`` of their ``def``."""
    tree, lines = ast.parse(text), text.split("\n")
    heads = [node for node in tree.body if getattr(node, "module", "") == "__future__"]
    heads += tree.body[: ast.get_docstring(tree) is not None]
    head = max((node.end_lineno or 0 for node in heads), default=0)
    added = [(head, f"exec(open({str(note)!r}).read())")]
    for function in functions(tree):
        first, indent = function.body[0], " " * function.body[0].col_offset
        at = min(node.lineno for node in [first, *getattr(first, "decorator_list", [])]) - 1
        if ast.get_docstring(function) is not None:
            at = first.end_lineno or 0
        compiled = any("triton.jit" in ast.unparse(node) for node in function.decorator_list)
        if not compiled and lines[first.lineno - 1].startswith(indent):
            added.append((at, f"{indent}_noted_('{name}:{function.lineno}')"))
    for line, statement in sorted(added, reverse=True):
        lines.insert(line, statement)
    return "\n".join(lines)


class Notes:
    """A plugin of pytest: CPU seconds and called functions of tests and of shared fixtures."""

    def __init__(self, calls: Path) -> None:
        self.calls, self.place, self.since = calls, "", 0.0
        self.functions: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = defaultdict(float)
        self.shared: dict[str, list[str]] = {}
        self.outcomes: dict[str, set[str]] = defaultdict(set)

    def turn(self, place: str) -> str:
        """What follows belongs to this place: a test, a fixture, or the imports of a file."""
        who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        now = sum(sum(resource.getrusage(one)[:2]) for one in who)
        self.seconds[self.place] += now - self.since
        if self.calls.exists():
            self.functions[self.place] |= set(self.calls.read_text().split())
            self.calls.unlink()
        sys.__dict__.get("_noted", set()).clear()
        before, self.place, self.since = self.place, place, now
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.turn(item.nodeid)
        result = yield
        self.turn("")
        names = getattr(item, "fixturenames", [])
        self.shared[item.nodeid] = [name for name in names if f"fixture {name}" in self.seconds]
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = self.turn(f"fixture {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self.turn(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes[report.outcome].add(report.nodeid)

    def summary(self) -> dict[str, Any]:
        """Of each test that passed: its CPU seconds, those of its fixtures, its functions."""
        self.turn("")
        tests = {}
        for test in self.shared.keys() - self.outcomes["failed"] - self.outcomes["skipped"]:
            fixtures = [f"fixture {name}" for name in self.shared[test]]
            called = set().union(self.functions[test], *(self.functions[f] for f in fixtures))
            seconds = {name: round(self.seconds[name], 3) for name in fixtures}
            tests[test] = [round(self.seconds[test], 3), seconds, sorted(called)]
        at_import, failed = sorted(self.functions[""]), sorted(self.outcomes["failed"])
        return {"tests": tests, "imports": at_import, "failed": failed}


class Chosen:
    """A plugin of pytest: runs some tests of the files, in their order."""

    def __init__(self, tests: list[str]) -> None:
        self.rank = {test: i for i, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.rank]
        items[:] = sorted(chosen, key=lambda item: self.rank[item.nodeid])


class Worker:
    """A copy of the repository and the process that tests what was changed in it."""

    def __init__(self, folder: Path) -> None:
        self.copy, self.log, self.scratch = folder / "repository", folder / "log", folder / "tmp"
        self.summary = folder / "summary"
        self.pid, self.cpu, self.until = 0, 0.0, 0.0
        self.mutant: Any = None
        self.batches: list[Batch] = []
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        for name in filter(None, names.stdout.split("\0")):
            (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(ROOT / name, self.copy / name, follow_symlinks=False)
        (self.copy / ".venv").symlink_to(sys.prefix)
        for name, beside in (("shared", ROOT.parent), ("repository/.triton", ROOT)):
            target, link = beside / Path(name).name, folder / name
            if target.is_dir() and not link.is_symlink():
                link.symlink_to(target.resolve())

    def write(self, path: Path | str, text: str | None = None) -> None:
        """A source file of the copy becomes this text, or that of the repository again."""
        place = self.copy / path
        shutil.copy2(ROOT / path, place) if text is None else place.write_text(text)
        Path(importlib.util.cache_from_source(place)).unlink(missing_ok=True)

    def note(self, on: bool) -> None:
        """Let the functions of the copy note their calls, or be as they were."""
        note = self.copy.parent / "note.py"
        note.write_text(NOTE.format(str(self.copy.parent / "calls")))
        for path in (ROOT / PACKAGE).rglob("*.py"):
            name = str(path.relative_to(ROOT / PACKAGE))
            self.write(path.relative_to(ROOT), noting(path.read_text(), name, note) if on else None)

    def start(self, mutant: Any, batches: list[Batch]) -> None:
        """Change a file and run batches until a test fails; without a mutant, note calls."""
        self.mutant, self.batches, self.cpu = mutant, batches[:], 0.0
        if mutant:
            self.write(mutant.path, mutant.source)
        self._fork()

    def _fork(self) -> None:
        tests, seconds = self.batches.pop(0)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        self.summary.unlink(missing_ok=True)
        self.until = time.monotonic() + LIMIT + 10 * seconds
        self.pid = os.fork()
        if self.pid == 0:
            code = 3
            try:
                code = self._test(tests, int(30 + 5 * seconds))
            finally:
                os._exit(code)

    def _test(self, tests: list[str], seconds: int) -> int:
        os.setsid()
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_DATA, memory)):
            resource.setrlimit(kind, (limit, limit + 5))
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self.copy)
        os.environ |= {"PYTHONPATH": str(self.copy / "src"), "TMPDIR": str(self.scratch)}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode, tempfile.tempdir = False, None
        sys.path.insert(0, str(self.copy / "src"))
        notes = None if self.mutant else Notes(self.copy.parent / "calls")
        options = ["-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["-m", "not slow and not ci and not slurm and not gpu"]
        options += ["-o", "addopts=", "-o", "timeout=0", *(["-x"] if self.mutant else [])]
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        code = int(pytest.main([*options, *files], plugins=[notes or Chosen(tests)]))
        if notes:
            self.summary.write_text(json.dumps(notes.summary() | {"code": code}))
        return code

    def ended(self, ignored: bool) -> tuple[str, float, str] | None:
        """Outcome, CPU seconds and the first test that failed; None while tests run.

        Exit code 1 without a failed test, as for a new sentence, is a failure unless ``ignored``.
        """
        pid, status, used = os.wait4(self.pid, os.WNOHANG)
        late = not pid and time.monotonic() > self.until
        if not pid and not late:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # also what the tests have started
        if late:
            _, status, used = os.wait4(self.pid, 0)
        self.cpu += used.ru_utime + used.ru_stime
        code = os.waitstatus_to_exitcode(status)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", self.log.read_text(errors="replace"), re.M)
        late |= -code in (signal.SIGXCPU, signal.SIGKILL)
        survived = code in (0, 5) or (code == 1 and not failed and ignored)
        if survived and self.batches:
            self._fork()
            return None
        if self.mutant:
            self.write(self.mutant.path)
        outcome = "timeout" if late else "survived" if survived else "killed"
        return outcome, round(self.cpu, 1), failed[1] if failed else ""
