"""Records of how correctly a device computes."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.records import schema


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding in ``checks/<name>.json``: whether a part of a model is right on a device."""

    key: dict[str, Any]
    """What the finding depends on: the part, the device, versions, sources and launch options."""
    way: str
    """Name of the part: an attention, or what a kernel computes."""
    message: str
    """What is wrong with it; empty if nothing is."""
    seconds: float
    """Seconds that the check took, most of them for compiling."""
    started: str
    """UTC, ISO 8601."""


def findings(path: Path) -> list[Finding]:
    """The findings of ``checks/<name>.json``; none if there is no file, or it is damaged."""
    if not path.is_file():
        return []
    try:
        rows = read_json(path, "check")["findings"]
        return [Finding(**schema.read(Finding, row, f"check {path}", "")[0]) for row in rows]
    except (UserError, KeyError, TypeError) as error:
        print(f"{path} is not used: {error}; the kernels are checked again", file=sys.stderr)
        return []
