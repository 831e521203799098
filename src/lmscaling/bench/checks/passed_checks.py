"""Whether an implementation has passed its checks on this device with these versions."""

import json
from pathlib import Path
from typing import Any

DECIDING = ("torch", "triton", "ptxas")
"""Programs whose version can change the result of a kernel. Records of earlier versions have no
ptxas: they stay readable, and their checks are repeated."""


def faults(folder: Path, name: str, here: dict[str, Any]) -> str:
    """Why something may not be timed; empty if it passed all of its checks.

    Args:
        folder: ``checks/``.
        name: ``attention/implementation``, ``peer/name``, or an attention alone.
        here: ``environment.complete`` of the device.
    """
    rows = [row for row in _read(folder) if row["name"] == name and _is_of(row, here)]
    if not rows:
        return f"{name} was not checked on {here['device']} with these versions"
    timed = rows[0]["dtype"]  # a device times only its first dtype
    wrong = [row for row in rows if row["status"] != "right" and row["dtype"] == timed]
    return f"{name}, {wrong[0]['case']}: {wrong[0]['message']}" if wrong else ""


def _is_of(row: dict[str, Any], here: dict[str, Any]) -> bool:
    then, now = row["environment"]["versions"], here["versions"]
    return row["device"] == here["device"] and all(then.get(p) == now.get(p) for p in DECIDING)


def _read(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
