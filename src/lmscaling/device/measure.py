"""From study files to the folder of this machine's device."""

import re
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lmscaling.bench.checks import kernels, passed_checks
from lmscaling.bench.isolation import isolated
from lmscaling.config import grid, study_file, sweeps
from lmscaling.config.grid import Grid
from lmscaling.device import plan
from lmscaling.device.session import Session
from lmscaling.errors import UserError
from lmscaling.files import parse_json, read_json
from lmscaling.runtime import environment, lock

MEASURED = Path("results/measured")
"""Each device has a folder there."""

PACKAGES = ("numpy", "safetensors", "tiktoken", "isal", "orjson")
"""Packages that steps import; this module itself has loaded torch, pydantic and yaml."""

SETUP_SECONDS = 120.0
"""Time limit for the first process to find the device."""


def measure(
    files: list[Path],
    out: Path | None,
    validation: list[str],
    minutes: float,
    overrides: Sequence[str] = (),
) -> tuple[str, bool]:
    """Run as many steps as one call has time for.

    Args:
        files: Study files, each laid over those before it.
        out: Folder of the device; ``results/measured/<device>`` by default.
        validation: JSON lines whose documents are the validation set; by default those of the
            previous call or, in the first call, a share of the training sources.
        minutes: Time limit of this call.
        overrides: See ``study_file.read_study``.

    Returns:
        A table of what is done and left, and whether nothing is left.

    Raises:
        UserError: A package, the device, a file or the vocabulary is missing, or the folder has
            records of another device or other versions.
    """
    end = time.monotonic() + 60 * minutes
    values = study_file.read_study(files, overrides=overrides)
    grid.expand(values)  # before anything is looked up in it
    gpus = values.get("gpus", 0)
    _check_packages(bool(gpus))
    # In a process of its own, for the process that forks others must not initialize CUDA.
    device = isolated(partial(environment.complete, gpus), SETUP_SECONDS)
    if device.status != "done":
        raise UserError(
            f"the device cannot be used: {device.message}; type python -m lmscaling doctor"
        )
    out = out or MEASURED / folder_name(device.value["device"])
    _set_validation(values, validation or _previous_validation(out))
    study = grid.expand(values)
    check_setup(out, device.value)
    _check_text(study, out, validation)
    program = f"python -m lmscaling gpu {' '.join(map(str, files))}"
    command = study_file.command(program, [], {}, overrides)
    study_file.write_record(out / "study.json", {"command": command, "study": values})
    sweeps.write(out, study.study)
    steps = plan.steps(study, out, kernels.names(gpus))
    session = Session(out, steps, device.value, end - time.monotonic())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with lock.hold(out / "scratch", f"{out} is being measured"):
        complete = session.run()
    return session.table(), complete


def folder_name(device: str) -> str:
    """The name of a device as a folder: ``nvidia-h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def check_setup(out: Path, here: dict[str, Any]) -> None:
    """Raise UserError if a folder has checks of another device or other versions."""
    for path in sorted((out / "checks").glob("*.jsonl")):
        first = path.read_text().partition("\n")[0]
        then = _setup(parse_json(first, f"checks {path}")["environment"])
        if then != (now := _setup(here)):
            raise UserError(
                f"{out} holds records of {then} and this is {now}; give --out another folder"
            )


def _setup(described: dict[str, Any]) -> str:
    versions = described["versions"]
    names = (f"{name} {versions.get(name, 'none')}" for name in passed_checks.DECIDING)
    return ", ".join([described["device"], *names])


def _check_packages(on_gpu: bool) -> None:
    wanted = [*PACKAGES, *(["triton"] if on_gpu else [])]
    if missing := [name for name in wanted if not find_spec(name)]:
        raise UserError(f"this Python has no {', '.join(missing)}; install them or use another")


def _check_text(study: Grid, out: Path, validation: list[str]) -> None:
    for name in validation:
        if not Path(name).is_file():
            raise UserError(f"validation file {name} does not exist; correct --validation")
    if not (out / "tokens" / study.tokens / "manifest.json").is_file():
        from lmscaling.data import vocabulary

        vocabulary.load(study.corpora[study.tokens].encoding)


def _set_validation(values: dict[str, Any], validation: list[str]) -> None:
    row = values.get("datasets", {}).get(values.get("dataset"), {})
    if validation:
        row["validation"] = validation
    elif not row.get("validation"):
        print("gpu: no --validation: a share of the training sources is used", flush=True)


def _previous_validation(out: Path) -> list[str]:
    path = out / "study.json"
    if not path.is_file():
        return []
    values = read_json(path, "study record")["study"]
    return values["datasets"][values["dataset"]].get("validation", [])
