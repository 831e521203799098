"""Reads study files as users write them; reads and writes the workflow's ``study.json``."""

import copy
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from lmscaling.config import yaml_file
from lmscaling.config.grid import Grid, expand
from lmscaling.config.places import KeyPath, Place, Values
from lmscaling.errors import UserError, choose, shown
from lmscaling.files import read_json, update_text, write_json

SECTIONS = ("calibrate", "branches", "evaluate", "speed", "tasks")
"""Sections that null and ``{}`` both switch off."""

SET = "set"
"""Key of ``--config`` of Snakemake with the texts of ``--set``."""

PLAIN = '=.,[]{}":'
"""What need not be written as ``%3A`` in such a text; Snakemake reads the value as YAML."""

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
    for run, cell in (grid.cells | grid.branches | grid.tasks).items():
        file = path.parent / "cells" / f"{run}.json"
        update_text(file, cell.to_json() + "\n")
    return grid


def changes(path: Path, study: dict[str, Any]) -> list[str]:
    """What a study changes in that of ``study.json``: ``key: before -> now``; empty without one."""
    try:
        before = read_json(path, "study record")["study"]
    except (UserError, KeyError, TypeError):
        return []
    return list(_changes(before, study, ""))


def _changes(before: Any, now: Any, key: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for part in before | now:
            values = before.get(part, ABSENT), now.get(part, ABSENT)
            yield from _changes(*values, f"{key}.{part}".lstrip("."))
    elif before != now and isinstance(before, list) and isinstance(now, list):
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


def read_study(
    paths: list[Path], changes: Mapping[str, Any] | None = None, overrides: Iterable[str] = ()
) -> Values:
    """The study of a file and of those laid over it: mappings are merged, other values replaced.

    Args:
        paths: The complete study, then what differs from it.
        changes: Keys with values that are laid over the files, as from ``--config``.
        overrides: Texts as ``axes.context=[1024]``, from ``--set``, that are laid over all others.

    Raises:
        UserError: A file is missing or is not a YAML mapping.
    """
    study = Values()
    for path in paths:
        values, places = yaml_file.read(path)
        if not isinstance(values, dict):
            raise UserError(
                f"study file {path} contains {shown(values)}; allowed: keys with values"
            )
        _merge(study, values, places)
    given = {key: Place(f"--config {key}") for key in changes or {}}
    _merge(study, changes or {}, {(key,): (place, place) for key, place in given.items()})
    return _complete(study, overrides)


def overridden(config: Mapping[str, Any], overrides: Iterable[str]) -> Values:
    """A whole study that Snakemake has read, with what ``--set`` lays over it."""
    if not isinstance(config, Mapping):
        raise UserError(f"the study is {shown(config)}; allowed: keys with values")
    study = Values()
    study.update({key: copy.deepcopy(value) for key, value in config.items() if key != SET})
    return _complete(study, overrides)


def _complete(study: Values, overrides: Iterable[str]) -> Values:
    """A study with texts as ``axes.context=[1024]``, a path of keys and a value in YAML, over it.

    Raises:
        UserError: A text has no ``=``, no key, or no value that is YAML.
    """
    for text in overrides:
        place = Place(f"--set {text}")
        keys, equals, value = text.partition("=")
        if not (equals and all(keys.split("."))):
            raise UserError(f"{place}: allowed: a key and a value, such as axes.context=[1024]")
        path = _keys(keys, study)
        made: Any
        made, inner = yaml_file.parse(value, str(place))
        for key in reversed(path):
            made = {key: made}
        known = [path[:i] for i in range(1, len(path))] + [(*path, *rest) for rest in inner]
        _merge(study, made, dict.fromkeys(known, (place, place)))
    if not study.get("tasks", True):  # switched off
        study.pop("tasks")
        study.forget(("tasks",))
    return study


def _keys(text: str, study: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of ``sizes.124M.lr``. Names may have dots, so known keys come first."""
    found: list[str] = []
    rest, level = text, study
    while rest:
        known = [k for k in level if rest == k or rest.startswith(f"{k}.")]
        key = max(known, key=len, default=rest.partition(".")[0])
        found.append(key)
        rest = rest[len(key) + 1 :]
        inner = level.get(key)
        level = inner if isinstance(inner, dict) else {}
    return tuple(found)


def _merge(
    study: Values, changes: Mapping[str, Any], places: Mapping[KeyPath, tuple[Place, Place]]
) -> None:
    """Lay values with their places over a study."""
    off = {key: None for key in SECTIONS if changes.get(key) == {}}
    _merge_values(study, (), study, {**changes, **off})
    study.places |= places


def _merge_values(
    study: Values, path: KeyPath, base: dict[str, Any], changes: Mapping[str, Any]
) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge_values(study, (*path, key), base[key], value)
        else:
            if isinstance(base.get(key), dict | list):
                study.forget((*path, key))
            base[key] = value


def command(
    program: str, files: Iterable[Path], changes: Mapping[str, Any], overrides: Iterable[str]
) -> str:
    """The command that reads the same study again.

    Args:
        program: Its beginning.
        files: Files after ``--configfile``.
        changes: Values after ``--config``.
        overrides: Texts after ``--set``.
    """
    words = shlex.split(program)
    if names := [str(file) for file in files]:
        words += ["--configfile", *names]  # once: the last of several would count
    if changes:
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in changes.items()}
        words += ["--config", *(f"{key}={text}" for key, text in texts.items())]
    return with_overrides(shlex.join(words), overrides)


def with_overrides(command: str, overrides: Iterable[str]) -> str:
    """A command of Snakemake with what it lays over the study, behind what it has of this already.

    Of several options ``--config`` Snakemake would read the last.
    """
    texts = "&".join(quote(text, safe=PLAIN) for text in overrides)
    words = shlex.split(command)
    given = [i for i, word in enumerate(words) if word.startswith(f"{SET}=")]
    if texts and given:
        words[given[0]] += f"&{texts}"
    elif texts:
        words += [] if "--config" in words else ["--config"]
        words.insert(words.index("--config") + 1, f"{SET}={texts}")
    return shlex.join(words)


def passed(value: Any) -> list[str]:
    """The texts of ``--set`` from ``--config 'set=KEY=VALUE&KEY=VALUE'`` of Snakemake."""
    return [] if value is None else [unquote(text) for text in str(value).split("&")]
