"""Study files as people write them, and ``study.json`` as the workflow records them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lmscaling.config.grid import Grid, expand
from lmscaling.errors import UserError, choose
from lmscaling.files import read_json, write_json, write_text


@dataclass(frozen=True)
class Record:
    """``study.json``: a study as it was laid out, and the command that makes it."""

    command: str
    grid: Grid


def write_record(path: Path, values: dict[str, Any]) -> Grid:
    """Write ``study.json``, and ``cells/<run>.json`` beside it, if the values are whole.

    A file that would not change keeps its time, so that nothing is made anew for it.

    Returns:
        The study's grid.
    """
    grid = expand(values["study"])
    if not path.is_file() or read_json(path, "study record") != values:
        write_json(path, values)
    for run, cell in (grid.cells | grid.branches).items():
        file = path.parent / "cells" / f"{run}.json"
        if not file.is_file() or file.read_text() != cell.to_json() + "\n":
            write_text(file, cell.to_json() + "\n")
    return grid


def read_record(path: Path) -> Record:
    """The study that lies in a folder of results.

    Raises:
        UserError: The file is missing or not whole; nearest says which studies there are.
    """
    if not path.is_file():
        known = sorted(p.parent.name for p in path.parent.parent.glob("*/study.json"))
        raise UserError(f"{path} does not exist; studies: {choose(path.parent.name, known)}")
    values = read_json(path, "study record")
    if not isinstance(values, dict) or not {"command", "study"} <= values.keys():
        raise UserError(f"study record {path} is not whole; delete it and run snakemake again")
    return Record(values["command"], expand(values["study"]))


def read_study(paths: list[Path]) -> dict[str, Any]:
    """Study files laid over each other as Snakemake does: mappings merge, all else is replaced.

    Raises:
        UserError: A file is missing or no YAML mapping.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        try:
            values = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            raise UserError(f"study file {path} does not exist") from None
        except yaml.YAMLError as error:
            problem = " ".join(str(error).split())
            raise UserError(f"study file {path} is not valid YAML: {problem}") from None
        if not isinstance(values, dict):
            raise UserError(f"study file {path} holds {values!r}; allowed: keys with values")
        _lay_over(merged, values)
    return merged


def _lay_over(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _lay_over(below[key], value)
        else:
            below[key] = value
