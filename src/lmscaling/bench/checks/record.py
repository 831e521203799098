"""Findings of checks: whether a part of a model is right on a device, found once and written."""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmscaling.files import write_record
from lmscaling.records.checks import Finding, findings
from lmscaling.runtime import environment


def examine(key: dict[str, Any], way: str, fault: Callable[[], str | None]) -> Finding:
    """Make a check; ``key`` and ``way`` as in ``Finding``, ``fault`` says what is wrong."""
    started, before = environment.now(), time.perf_counter()
    message = fault() or ""
    seconds = time.perf_counter() - before
    return Finding(key=key, way=way, message=message, seconds=seconds, started=started)


def settle(path: Path, key: dict[str, Any], way: str, fault: Callable[[], str | None]) -> Finding:
    """The finding with this key in a file, which gets it if it lacks it."""
    found = next((each for each in findings(path) if each.key == key), None)
    if found is None:
        found = examine(key, way, fault)
        write(path, [*findings(path), found])
    return found


def write(path: Path, found: Iterable[Finding]) -> None:
    """Write the findings of ``checks/<name>.json``."""
    write_record(path, {"findings": [asdict(each) for each in found]})
