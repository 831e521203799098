"""Axes of any value of a study, by its dotted name: ``axes: {optimizer.weight_decay: [0.1, 0.3]}``.

Each combination of such values, and each value under ``ablate``, is a study of its own, whose cells
join the grid. They are told apart by the label of the attention, as options are:
``softmax.weight_decay0.3``. So every table and figure compares them, and the cells of the study's
own values keep their names. Budgets are told apart by themselves, as ``Cell.rung``: one attention
at several budgets is what laws are fitted to.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from lmscaling.config.attention_row import Layer
from lmscaling.config.axes import AXES
from lmscaling.config.budget import canonical, parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.places import KeyPath, StudyError
from lmscaling.errors import choose, shown

VARIED = (
    "position", "documents", "update_tokens", "epochs", "block", "width_rule", "optimizer",
    "schedule", "sizes", "budget",
)  # fmt: skip
"""Sections whose values can be an axis. Losses on different texts are not compared."""
BUDGET = ("budget",)
SHAPE = ("n_layer", "n_head", "d_model")
"""What makes a size: each depends on the others, and the learning rate on all."""

Setting = dict[KeyPath, Any]
"""Values by their paths."""


def apart(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A study without its dotted axes, and their values by name."""
    axes = values.get("axes")
    varied = {".".join(path): v for path, v in _leaves(axes) if path and path[0] not in AXES}
    if not varied:
        return values, {}
    own = copy.copy(values)
    own["axes"] = {key: value for key, value in values["axes"].items() if key in AXES}
    return own, varied


def combined(usual: dict[str, Any], varied: dict[str, Any]) -> Iterator[Setting]:
    """All combinations of the values of dotted axes but that of a study's own, and each value under
    ``ablate`` alone.

    Args:
        usual: The dump of the study.
        varied: Values by the names of axes.

    Raises:
        StudyError: A name is none of a value that cells can differ in, or its values are no list
            with the study's own among them.
    """
    known = _known(usual)
    for name, found in varied.items():
        place = ("axes", *name.split("."))
        own = _at(usual, _path(place, name, known))
        if known[name] == BUDGET and isinstance(found, list):
            found = varied[name] = _budgets(found, usual)
        if not isinstance(found, list) or len({*map(str, found)}) < max(1, len(found)):
            raise StudyError(place, f"is {shown(found)}; allowed: a list of different values")
        if own not in found:
            raise StudyError(place, f"leaves out {shown(own)}, the study's own; add it")
    for found in product(*varied.values()):
        setting = dict(zip((known[name] for name in varied), found, strict=True))
        if any(value != _at(usual, path) for path, value in setting.items()):
            yield setting
    known.pop(BUDGET[0])  # losses at another budget are no verdict on a recipe
    for name, value in ((".".join(path), v) for path, v in _leaves(usual["ablate"]) if path):
        place = ("ablate", *name.split("."))
        path = _path(place, name, known)
        if value == _at(usual, path):
            raise StudyError(place, f"is {shown(value)}, the study's own; write another value")
        yield {path: value}


def _budgets(found: list[Any], usual: dict[str, Any]) -> list[str]:
    """The values of an axis of budgets, as cells have them.

    Raises:
        StudyError: One is none, they do not have the unit of the study's own, or runs would be the
            beginnings of each other.
    """
    place = ("axes", *BUDGET)
    try:
        budgets = [canonical(text) for text in found]
    except ValueError as error:
        raise StudyError(place, str(error)) from None
    units = {parse_budget(text).unit for text in (*budgets, usual["budget"])}
    if len(units) > 1:
        raise StudyError(place, f"has budgets in {' and '.join(sorted(units))}; write one unit")
    if usual["schedule"]["kind"] == "constant":
        raise StudyError(
            place,
            "makes runs that are the beginnings of each other, as schedule: constant does not know "
            "the budget; write schedule: cosine, or branches in the place of the axis",
        )
    return budgets


def _path(place: KeyPath, name: str, known: dict[str, KeyPath]) -> KeyPath:
    if name.startswith("sizes.") and name.endswith(SHAPE):
        raise StudyError(place, "makes a size; write a row under sizes for each of its values")
    if name.startswith("sizes.") and "lr" in place:
        raise StudyError(place, "has an axis of its own; write factors of it under axes.lr_scale")
    if name not in known:
        named = [*AXES, *known] if place[0] == "axes" else known
        problem = f"names no value that cells can differ in: {name!r}; {choose(name, named)}"
        raise StudyError(place, problem, is_key=True)
    return known[name]


def _leaves(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What no mapping is, by its keys; ``lr_scale`` may be a mapping of its own."""
    if isinstance(value, dict) and path[:1] not in {(axis,) for axis in AXES}:
        for key in value:
            yield from _leaves(value[key], *path, str(key))
    else:
        yield path, value


def _known(usual: dict[str, Any]) -> dict[str, KeyPath]:
    """The paths of values that can be an axis, by their dotted names."""
    paths = [(section, *rest) for section in VARIED for rest, _ in _leaves(usual[section])]
    on_axis = (p for p in paths if p[0] != "sizes" or p[1] in usual["axes"]["size"])
    return {".".join(path): path for path in on_axis if {*path}.isdisjoint({*SHAPE, "lr"})}


def _at(values: dict[str, Any], path: KeyPath) -> Any:
    found: Any = values
    for key in path:
        found = found[key]
    return found


def laid_over(values: dict[str, Any], usual: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """A study with the values of a setting, and without its tasks and ablations."""
    made = dict(values) | {"tasks": {}, "ablate": {}}
    made |= {str(path[0]): copy.deepcopy(usual[str(path[0])]) for path in setting}
    for path, value in setting.items():
        level: Any = made
        for key in path[:-1]:
            level = level[key]
        level[path[-1]] = value
    return made


def labelled(cell: Cell, usual: dict[str, Any], setting: Setting) -> Cell | None:
    """A cell of a setting with the label of the setting; None if the setting is of other sizes.

    The label ends with the last key and the value of each value that is not the study's own.
    """
    ending = ""
    for path, value in setting.items():
        if value == _at(usual, path):
            continue
        if path[0] == "sizes" and path[1] != cell.size:
            return None
        if path == BUDGET:
            cell = replace(cell, rung=value)
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        text = f"{value:g}" if isinstance(value, float) else str(value).lower()
        between = "" if is_number else "_"
        ending += f".{path[-1]}{between}{re.sub(r'[^A-Za-z0-9_.]+', '_', text).strip('_')}"
    if not ending:
        return cell
    layers = cell.layers or (Layer(attention=cell.attention),)
    return replace(cell, attention=cell.attention + ending, layers=layers)
