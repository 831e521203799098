"""From study files to the records of this machine's device, one call after another."""

import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from lmscaling.bench import peers
from lmscaling.config import grid, study_file, sweeps
from lmscaling.device import preflight
from lmscaling.device.session import Session
from lmscaling.device.tasks import PARTS, lay_out, of_parts
from lmscaling.errors import UserError, choose
from lmscaling.files import read_json
from lmscaling.runtime import lock

MEASURED = Path("results/measured")
"""Each device has a folder there."""


def run(
    files: list[Path], out: Path | None, validation: list[str], parts: list[str], minutes: float
) -> tuple[str, bool]:
    """Do what a call has time for; what there is to say, and whether all is done.

    Args:
        files: Study files, each laid over those before it.
        out: Folder of the records; ``results/measured/<device>`` without.
        validation: JSON lines whose documents are the validation set; those of the call before, or
            a share of the sources, without any.
        parts: Keys of ``PARTS``, with what they need of others; all without any.
        minutes: How long the call may take.

    Raises:
        UserError: Something is missing that a measurement would need later.
    """
    begun = time.monotonic()
    for part in parts:
        if part not in PARTS:
            raise UserError(f"part {part!r} is not known; {choose(part, PARTS)}")
    values = study_file.read_study(files)
    gpus = values.get("gpus", 0)
    preflight.packages(bool(gpus))
    here = preflight.device(gpus)
    out = out or MEASURED / slug(here["device"])
    _give(values, validation or _before(out))
    laid_out = grid.expand(values)
    preflight.same_setup(out, here)
    preflight.texts(laid_out, out, validation)
    names = " ".join(map(str, files))
    study_file.write_record(
        out / "study.json", {"command": f"python -m lmscaling gpu {names}", "study": values}
    )
    sweeps.write(out, laid_out.study)
    others = [f"peer/{name}" for name in peers.installed()] if gpus else []
    pieces = lay_out(laid_out, out, others)
    left = 60 * minutes - (time.monotonic() - begun)
    session = Session(out, of_parts(pieces, parts) if parts else pieces, here, left)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with lock.hold(out / "scratch", f"{out} is being measured"):
        complete = session.run()
    return session.table(), complete


def slug(device: str) -> str:
    """The name of a device as a folder: ``nvidia-h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def _give(values: dict[str, Any], validation: list[str]) -> None:
    """Let the study's own text have these documents as its validation set."""
    row = values.get("datasets", {}).get(values.get("dataset"), {})
    if validation:
        row["validation"] = validation
    elif not row.get("validation"):
        print("gpu: validation is a share of the training sources: no --validation", flush=True)


def _before(out: Path) -> list[str]:
    """The validation set that earlier calls had."""
    path = out / "study.json"
    if not path.is_file():
        return []
    values = read_json(path, "study record")["study"]
    return values["datasets"][values["dataset"]].get("validation", [])
