"""Words that tests hold against files in ``golden/``, so that no test of behaviour repeats them.

``messages.txt`` has every sentence that a test caused, each once: ``refused`` and ``sentence``
collect them, and a session whose sentences are not in the file fails once, at its end. Other files
are complete outputs, such as the text of a report. ``make renew`` writes all of them anew; what has
changed is then read as a diff.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "golden"
MESSAGES = FOLDER / "messages.txt"
PLACES = ((f"{ROOT}/", ""), (rf"{re.escape(tempfile.gettempdir())}/[^\s'\",;:]*/", ".../"))
"""Folders of this machine, and what stands for them in a file."""

said: set[str] = set()
"""Sentences of this process."""


def sentence(kind: str, text: str) -> None:
    """Hold a sentence of any kind, such as a line of the terminal, against ``messages.txt``."""
    for place, name in PLACES:
        text = re.sub(place, name, text)
    said.add(f"{kind}: " + text.strip().replace("\n", "\n    "))


@contextmanager
def refused(kind: type[Exception], *values: object) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block must raise an error of this kind that names all values; its words are collected.

    Args:
        kind: Type of the error.
        values: The place and the offending values. Words belong into ``messages.txt``.
    """
    with pytest.raises(kind) as caught:
        yield caught
    text = str(caught.value)
    missing = [str(value) for value in values if str(value) not in text]
    assert not missing, f"{missing} not named in: {text}"
    sentence(type(caught.value).__name__, text)


class Golden:
    """Compares outputs with files, or writes them with ``--renew``."""

    def __init__(self, renew: bool) -> None:
        self.renew = renew

    def __call__(self, name: str, content: str | bytes) -> None:
        """Output and file must be equal in every byte.

        Args:
            name: Path below ``golden/``.
            content: The output; text is written as UTF-8.
        """
        path = FOLDER / name
        made = content.encode() if isinstance(content, str) else content
        if self.renew:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(made)
        assert path.is_file(), f"{path} does not exist; `make renew` writes it"
        if made != path.read_bytes():
            kept = path.read_text(errors="replace").splitlines()
            changes = unified_diff(kept, made.decode(errors="replace").splitlines(), n=1)
            pytest.fail("\n".join(list(changes)[:60] or ["ends of lines differ"]))


class Sentences:
    """Compares the sentences of a session with the file when it ends, once for all processes."""

    def __init__(self, renew: bool) -> None:
        self.renew = renew
        self.unknown: list[str] = []

    @pytest.hookimpl(optionalhook=True)  # of pytest-xdist
    def pytest_testnodedown(self, node: Any) -> None:
        said.update(getattr(node, "workeroutput", {}).get("said", []))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:  # a process of pytest-xdist
            output["said"] = sorted(said)
            return
        text = MESSAGES.read_text().strip() if MESSAGES.exists() else ""
        known = set(re.split(r"\n(?! )", text))
        self.unknown = sorted(said - known)
        if self.renew:
            FOLDER.mkdir(exist_ok=True)
            MESSAGES.write_text("\n".join(sorted(said | known)).strip() + "\n")
        elif self.unknown and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.unknown:
            state = "new in" if self.renew else "not in"
            terminalreporter.section(f"{len(self.unknown)} sentences are {state} {MESSAGES.name}")
            for text in self.unknown:
                terminalreporter.line(text)
            if not self.renew:
                terminalreporter.line("read them, then type: make renew")
