"""What must be there before the first measurement, each thing that is not said in one sentence."""

from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lmscaling.bench.checks import passed_checks
from lmscaling.bench.isolation import isolated
from lmscaling.config.grid import Grid
from lmscaling.errors import UserError
from lmscaling.files import parse_json
from lmscaling.runtime import environment

PACKAGES = ("numpy", "torch", "lightning", "safetensors", "tiktoken", "isal", "orjson")
"""Beside those without which no study can be read."""
LIMIT_SECONDS = 120.0


def packages(on_gpu: bool) -> None:
    """Raise UserError where packages are missing."""
    wanted = [*PACKAGES, *(["triton"] if on_gpu else [])]
    if missing := [name for name in wanted if not find_spec(name)]:
        raise UserError(f"this Python has no {', '.join(missing)}; install them or use another")


def device(gpus: int) -> dict[str, Any]:
    """The environment of the device, from a process of its own: this one must never ask CUDA.

    Raises:
        UserError: There is no such device.
    """
    found = isolated(partial(environment.complete, gpus), LIMIT_SECONDS)
    if found.status != "done":
        raise UserError(f"the device cannot be used: {found.message}")
    return found.value


def same_setup(out: Path, here: dict[str, Any]) -> None:
    """Raise UserError where a folder holds what another device or other versions have computed."""
    for then in map(_environment, sorted((out / "checks").glob("*.jsonl"))):
        now, before = _setup(here), _setup(then)
        if now != before:
            raise UserError(
                f"{out} holds records of {before} and this is {now}; give --out another folder"
            )


def _environment(path: Path) -> dict[str, Any]:
    first = path.read_text().partition("\n")[0]
    return parse_json(first, f"checks {path}")["environment"]


def _setup(of: dict[str, Any]) -> str:
    versions = (f"{name} {of['versions'].get(name, 'none')}" for name in passed_checks.DECIDING)
    return ", ".join([of["device"], *versions])


def texts(grid: Grid, out: Path, validation: Iterable[str]) -> None:
    """Raise UserError where the vocabulary or a file of documents is missing, and still needed."""
    for name in validation:
        if not Path(name).is_file():
            raise UserError(f"validation file {name} does not exist")
    if not (out / "tokens" / grid.tokens / "manifest.json").is_file():
        from lmscaling.data.vocabulary import encoding

        encoding(grid.corpora[grid.tokens].encoding)
