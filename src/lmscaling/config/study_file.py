"""Reads study files as users write them; reads and writes the workflow's ``study.json``."""

import copy
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pydantic import TypeAdapter, ValidationError

from lmscaling import registry
from lmscaling.config import lr_law, yaml_file
from lmscaling.config.attention_row import Row
from lmscaling.config.grid import Grid, expand
from lmscaling.config.places import Values, located
from lmscaling.config.types import less
from lmscaling.config.yaml_file import Content, KeyPath, Place
from lmscaling.errors import UserError, choose, shown
from lmscaling.files import read_json, update_text, write_json

SECTIONS = ("calibrate", "branches", "evaluate", "speed")
"""Sections that null and ``{}`` both switch off."""

OWN: dict[str, Any] = {
    "dataset": MISSING, "skip": [], "exceptions": [], **dict.fromkeys(SECTIONS), "tasks": MISSING
}  # fmt: skip
"""What each study says for itself, with the value where it does not."""

PARTS = ("skip", "exceptions", "calibrate", "branches", "evaluate")
"""Keys whose entries are parts of the grid."""

SET = "set"
"""Key of ``--config`` of Snakemake with the texts of ``--set``."""

PLAIN = '=.,[]{}":'
"""What need not be written as ``%3A`` in such a text; Snakemake reads the value as YAML."""

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
    return Record(values["command"], expand(_of_record(values["study"])))


def _of_record(study: dict[str, Any]) -> dict[str, Any]:
    """The study of a record: texts of kinds that are gone are ``former``, unused ones left out."""
    named = [study.get("dataset"), *((study.get("evaluate") or {}).get("datasets") or [])]
    named += [task.get("dataset") for task in (study.get("tasks") or {}).values()]
    rows, known = dict(study.get("datasets") or {}), registry.sources("data/kinds")
    for name, row in list(rows.items()):
        if name not in named:
            del rows[name]
        elif row["kind"] not in known:
            kept = {key: row[key] for key in ("shuffle", "block_tokens") if key in row}
            rows[name] = {"kind": "former", "row": less(row, *kept), **kept}
    return {**study, "datasets": rows} if rows else study


def read_study(
    paths: list[Path], changes: Mapping[str, Any] | None = None, overrides: Iterable[str] = ()
) -> Values:
    """The study of a file and of those laid over it: mappings are merged, other values replaced.

    A study with another name than that of the first file is one of its own: it gets none of the
    first file's ``OWN`` keys. ``inherit`` as the value of such a key takes it over all the same.

    Args:
        paths: The complete study, then what differs from it.
        changes: Keys with values that are laid over the files, as from ``--config``.
        overrides: Texts as ``axes.context=[1024]``, from ``--set``, that are laid over all others.

    Raises:
        UserError: A file is missing or is not a YAML mapping.
    """
    base, *others = [*map(_read, paths), _given(changes or {})]
    over = Values()
    for content in others:
        _merge(over, content)
    overrides, axes = list(overrides), _axes(base.values) | _axes(over)
    override(over, overrides, base.values)
    study = Values()
    _merge(study, base)
    for path, content in zip(paths[1:], others, strict=False):
        same = content.values.get("study") == base.values.get("study", "")
        if same and not path.samefile(paths[0]):
            study.repeated_name = str(paths[0])
    inherited = {key for key in OWN if over.get(key) == INHERIT}
    if over.get("study", study.get("study")) != study.get("study"):
        for key in (key for key in OWN if key not in inherited):  # in order: the text is compared
            study.pop(key, None)
            study.forget((key,))
            if OWN[key] is not MISSING:
                study[key] = copy.copy(OWN[key])
    for key in inherited:
        del over[key]
        over.forget((key,))
    _merge(study, Content(over, over.keys_at, over.values_at))
    if not study.get("tasks", True):  # switched off
        study.pop("tasks")
        study.forget(("tasks",))
    _narrow(study, axes, overrides)
    with located(study):
        study.update(lr_law.filled(study))
    return study


def overridden(config: Mapping[str, Any], overrides: Iterable[str]) -> Values:
    """A whole study that Snakemake has read, with what ``--set`` lays over it."""
    if not isinstance(config, Mapping):
        raise UserError(f"the study is {shown(config)}; allowed: keys with values")
    study = Values()
    study.update({key: copy.deepcopy(value) for key, value in config.items() if key != SET})
    overrides, axes = list(overrides), _axes(study)
    override(study, overrides)
    _narrow(study, axes, overrides)
    with located(study):
        study.update(lr_law.filled(study))
    return study


def passed(value: Any) -> list[str]:
    """The texts of ``--set`` from ``--config 'set=KEY=VALUE&KEY=VALUE'`` of Snakemake."""
    return [] if value is None else [unquote(text) for text in str(value).split("&")]


def with_overrides(command: str, overrides: Iterable[str]) -> str:
    """A command of Snakemake with what it lays over the study, behind what it has of this already.

    Of several options ``--config`` Snakemake would read the last.
    """
    texts = "&".join(quote(text, safe=PLAIN) for text in overrides)
    words = shlex.split(command)
    if not texts:
        return command
    given = [i for i, word in enumerate(words) if word.startswith(f"{SET}=")]
    if given:
        words[given[0]] += f"&{texts}"
    elif "--config" in words:
        words.insert(words.index("--config") + 1, f"{SET}={texts}")
    else:
        words += ["--config", f"{SET}={texts}"]
    return shlex.join(words)


def override(
    values: Values, overrides: Iterable[str], base: Mapping[str, Any] | None = None
) -> None:
    """Lay texts as ``axes.context=[1024]`` over the values of a study.

    Args:
        values: The study; it is changed.
        overrides: A path of keys with dots, and a value in YAML.
        base: The study below ``values``, whose keys with dots in their names are known too.

    Raises:
        UserError: A text has no ``=``, no key, or no value that is YAML.
    """
    for text in overrides:
        place = f"--set {text}"
        keys, equals, value = text.partition("=")
        if not (equals and all(keys.split("."))):
            raise UserError(f"{place}: allowed: a key and a value, such as axes.context=[1024]")
        path = _keys(keys, [values, base or {}])
        inner = yaml_file.parse(value, place)
        made = inner.values
        for key in reversed(path):
            made = {key: made}
        heads = {path[:i]: Place(place) for i in range(1, len(path) + 1)}
        below = {(*path, *rest): Place(place) for rest in inner.keys}
        _merge(values, _without_empty(Content(made, heads | below, heads | below)))


def _axes(values: Mapping[str, Any]) -> dict[str, Any]:
    axes = values.get("axes")
    return dict(axes) if isinstance(axes, dict) else {}


def _narrow(study: Values, before: Mapping[str, Any], overrides: list[str]) -> None:
    """Take the values that ``--set`` has removed from an axis out of parts of the grid, which were
    written for all of them. A section without a cell is switched off."""
    now = _axes(study)
    removed = {
        axis: [value for value in _names(axis, values) if value not in _names(axis, now[axis])]
        for axis, values in before.items()
        if axis in now
    }
    for key in PARTS:
        entries = study.get(key)
        if any(text.startswith(key) for text in overrides):
            continue
        if isinstance(entries, dict):
            study[key] = _less(entries, removed)
            if study[key] is None:
                study.forget((key,))
        _narrow_list(study, study, (key,), removed)
    tasks = study.get("tasks")
    for name, task in tasks.items() if isinstance(tasks, dict) else ():
        if isinstance(task, dict) and not any(text.startswith("tasks.") for text in overrides):
            inherited = {axis: values for axis, values in removed.items() if axis not in task}
            _narrow_list(study, task, ("tasks", name, "skip"), inherited)


def _narrow_list(
    study: Values, parts: dict[Any, Any], path: KeyPath, removed: Mapping[str, list[Any]]
) -> None:
    """Narrow the entries of a list of parts of the grid, which ``parts`` has under the last key of
    the path."""
    entries = parts.get(path[-1])
    if not isinstance(entries, list):
        return
    left = {i: _less(entry, removed) for i, entry in enumerate(entries)}
    kept = [i for i, entry in left.items() if entry is not None]
    parts[path[-1]] = [left[i] for i in kept]
    if len(kept) < len(entries):
        study.keep(path, kept)


def narrowed(
    study: Mapping[str, Any], before: Mapping[str, list[Any]], now: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """The parts of the grid that change if its axes, given by labels, lose values."""
    fewer = Values()
    fewer.update(copy.deepcopy(dict(study)) | {"axes": dict(now)})
    _narrow(fewer, before, [])
    return {key: fewer[key] for key in PARTS if fewer.get(key) != study.get(key)}


def _less(entry: Any, removed: Mapping[str, list[Any]]) -> Any:
    """An entry without the values that were removed; None if nothing is left of an axis."""
    if not isinstance(entry, dict):
        return entry
    changed = {}
    for axis in (axis for axis in entry if removed.get(axis)):
        left = [value for value in _list(entry[axis]) if value not in removed[axis]]
        if not left:
            return None
        if len(left) < len(_list(entry[axis])):
            changed[axis] = left
    return entry | changed


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _names(axis: str, values: Any) -> list[Any]:
    """The values of an axis as other sections name them: attentions by their labels."""
    return [_label(value) if axis == "attention" else value for value in _list(values)]


def _label(row: Any) -> Any:
    """The label of a row, or the row if it is none."""
    try:
        return TypeAdapter(Row).validate_python(row).label
    except ValidationError:
        return row


def _keys(text: str, studies: list[Mapping[str, Any]]) -> KeyPath:
    """The keys of ``sizes.124M.lr``. Names may have dots, so known keys come first."""
    found: list[str] = []
    rest, levels = text, list(studies)
    while rest:
        known = [k for level in levels for k in level if rest == k or rest.startswith(f"{k}.")]
        key = max(known, key=len, default=rest.partition(".")[0])
        found.append(key)
        rest = rest[len(key) + 1 :]
        levels = [level[key] for level in levels if isinstance(level.get(key), dict)]
    return tuple(found)


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
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in changes.items()}
    words = [
        *_option("--configfile", map(str, files)),  # once: the last of several would count
        *_option("--config", [f"{key}={text}" for key, text in texts.items()]),
    ]
    return with_overrides(" ".join([program, *map(shlex.quote, words)]), overrides)


def _option(name: str, words: Iterable[str]) -> list[str]:
    words = list(words)
    return [name, *words] if words else []


def _given(changes: Mapping[str, Any]) -> Content:
    places: dict[KeyPath, Place] = {(key,): Place(f"--config {key}") for key in changes}
    return _without_empty(Content(dict(changes), places, dict(places)))


def _read(path: Path) -> Content:
    content = yaml_file.read(path)
    if not isinstance(content.values, dict):
        raise UserError(
            f"study file {path} contains {shown(content.values)}; allowed: keys with values"
        )
    return _without_empty(content)


def _without_empty(content: Content) -> Content:
    """With null for each section that is ``{}``."""
    off = {k: None for k in (*SECTIONS, "tasks") if content.values.get(k) == {}}
    values = content.values | off
    return Content(values, content.keys, content.places)


def _merge(base: Values, content: Content) -> None:
    """Lay what a file says over a study, with its places."""
    _merge_values(base, (), base, content.values)
    base.keys_at |= content.keys
    base.values_at |= content.places


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
