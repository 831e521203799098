"""Reads study files as users write them; reads and writes the workflow's ``study.json``."""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import yaml

from lmscaling.config import lr_law
from lmscaling.config.grid import Grid, expand
from lmscaling.errors import UserError, choose
from lmscaling.files import read_json, write_json, write_text

SECTIONS = ("calibrate", "branches", "evaluate", "speed")
"""Sections that null and ``{}`` both switch off."""

OWN: dict[str, Any] = {
    "dataset": MISSING, "skip": [], "exceptions": [], **dict.fromkeys(SECTIONS)
}  # fmt: skip
"""What each study says for itself, with the value where it does not."""

INHERIT = "inherit"

ABSENT = "not given"

MOST_CHARACTERS = 60
"""Longest text of a value in the list of changes."""


@dataclass(frozen=True)
class Record:
    """The content of ``study.json``: a study, and the command that runs it."""

    command: str
    grid: Grid


def write_record(path: Path, values: dict[str, Any]) -> Grid:
    """Check the study in ``values``, and write ``study.json`` and ``cells/<run>.json`` beside it.

    A file with the same content is not written again: its time stays, so no rule runs because of
    it.

    Returns:
        The grid of the study.
    """
    grid = expand(values["study"])
    if not path.is_file() or read_json(path, "study record") != values:
        write_json(path, values)
    for run, cell in (grid.cells | grid.branches).items():
        file = path.parent / "cells" / f"{run}.json"
        if not file.is_file() or file.read_text() != cell.to_json() + "\n":
            write_text(file, cell.to_json() + "\n")
    return grid


def changes(path: Path, study: dict[str, Any]) -> list[str]:
    """What a study changes in that of ``study.json``: ``key: before -> now``; empty without one."""
    try:
        before = read_json(path, "study record")["study"]
    except (UserError, KeyError, TypeError):
        return []
    return list(_changes("", before, study))


def _changes(key: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for part in before | now:
            inner = f"{key}.{part}".lstrip(".")
            yield from _changes(inner, before.get(part, ABSENT), now.get(part, ABSENT))
    elif isinstance(before, list) and isinstance(now, list) and before != now:
        removed = [f"without {_short(value)}" for value in before if value not in now]
        added = [f"with {_short(value)}" for value in now if value not in before]
        yield f"{key}: {', '.join(removed + added) or 'in another order'}"
    elif before != now:
        yield f"{key}: {_short(before)} -> {_short(now)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."


def read_record(path: Path) -> Record:
    """The study of a folder of results.

    Raises:
        UserError: The file is missing or incomplete; the message lists the existing studies.
    """
    if not path.is_file():
        known = sorted(p.parent.name for p in path.parent.parent.glob("*/study.json"))
        raise UserError(f"{path} does not exist; studies: {choose(path.parent.name, known)}")
    values = read_json(path, "study record")
    if not isinstance(values, dict) or not {"command", "study"} <= values.keys():
        raise UserError(f"study record {path} is incomplete; delete it and run snakemake again")
    return Record(values["command"], expand(values["study"]))


def read_study(paths: list[Path], changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The study of a file and of those laid over it: mappings are merged, other values replaced.

    A study with another name than that of the first file is one of its own: it gets none of the
    first file's ``OWN`` keys. ``inherit`` as the value of such a key takes it over all the same.

    Args:
        paths: The complete study, then what differs from it.
        changes: Keys with values that are laid over the files.

    Raises:
        UserError: A file is missing or is not a YAML mapping.
    """
    base, *others = [*map(_read, paths), _without_empty(changes or {})]
    over: dict[str, Any] = {}
    for values in others:
        _merge(over, values)
    inherited = {key for key in OWN if over.get(key) == INHERIT}
    if over.get("study", base.get("study")) != base.get("study"):
        for key in (key for key in OWN if key not in inherited):  # in order: the text is compared
            base.pop(key, None)
            if OWN[key] is not MISSING:
                base[key] = copy.copy(OWN[key])
    _merge(base, {key: value for key, value in over.items() if key not in inherited})
    return lr_law.filled(base)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise UserError(f"study file {path} does not exist") from None
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise UserError(f"study file {path} is not valid YAML: {problem}") from None
    if not isinstance(values, dict):
        raise UserError(f"study file {path} contains {values!r}; allowed: keys with values")
    return _without_empty(values)


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """With null for each section that is ``{}``."""
    return {k: None if k in SECTIONS and value == {} else value for k, value in values.items()}


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value
