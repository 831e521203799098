"""The files in which predictions are sealed before runs begin.

A seal is a JSON file ``forecasts/<date>-<hash8>.json`` of a study. It holds predictions of the runs
that had not begun (``forecasts``), the hash of the study, version and commit of the code, the date
``sealed``, and the SHA-256 of all these values, whose first eight digits are in its name. It is
never written again.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmscaling import files
from lmscaling.errors import UserError

QUANTITIES = {
    "update_seconds": "seconds of an update",
    "memory_bytes": "memory",
    "loss": "final loss",
}
"""What is predicted, and its name in tables."""


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """One quantity of one run, as a seal has it: a row of the table ``forecasts``."""

    baseline: str = ""
    """What the plain guess is that the prediction has to beat; empty without one."""
    baseline_median: float | None = None
    """Median of the plain guess, in the unit of the quantity."""
    baseline_sd: float | None = None
    """Standard deviation of the logarithm of the plain guess."""
    median: float | None = None
    """Median of the prediction, in the unit of the quantity; null without a prediction."""
    sd: float | None = None
    """Scale of the logarithm: its standard deviation if it is normal; null without an interval."""
    degrees: float | None = None
    """Degrees of freedom of its t distribution; null if it is normal."""
    reason: str = ""
    """Why there is no prediction; empty if there is one."""
    run: str = ""
    """Cell name and hash."""
    name: str = ""
    """Name of the cell, for people."""
    quantity: str = ""
    """``update_seconds``, the mean of the run; ``memory_bytes``, the most on a device; or ``loss``,
    the final validation loss in nats per token."""
    seal: str
    """The file's name, which ends with eight digits of its SHA-256."""
    sealed: str = ""
    """When it was sealed: UTC, ISO 8601."""
    intact: bool
    """Whether the values of the file have the SHA-256 of its name; if not, the seal is one row."""


def write(study: Path, values: dict[str, Any]) -> tuple[Path, str]:
    """Write a seal that nobody can change by mistake: its path and its SHA-256."""
    sha256 = files.digest(values)
    path = study / "forecasts" / f"{values['sealed'][:10]}-{sha256[:8]}.json"
    files.write_record(path, values)
    path.chmod(0o444)
    return path, sha256


def read(study: Path) -> dict[Path, dict[str, Any] | None]:
    """The values of the seals of a study by their paths; None of one that was changed."""
    found: dict[Path, dict[str, Any] | None] = {}
    for path in sorted((study / "forecasts").glob("*.json")):
        found[path] = None
        with suppress(UserError):
            values = files.read_json(path, "sealed forecast")
            if path.stem.endswith(f"-{files.digest(values)[:8]}"):
                found[path] = values
    return found


def rows(study: Path) -> Iterator[dict[str, Any]]:
    """Rows of ``Sealed``, in the order of the seals' names."""
    for path, values in read(study).items():
        if values is None:
            yield asdict(Sealed(seal=path.stem, intact=False))
            continue
        for one in values["forecasts"]:
            yield asdict(Sealed(**one, seal=path.stem, sealed=values["sealed"], intact=True))
