"""What is predicted of a run before it begins, and the files in which it is sealed.

A seal is a JSON file ``forecasts/<date>-<hash8>.json`` of a study. It holds predictions of the runs
that had not begun, the date, and the SHA-256 of all its values; the first eight digits are in its
name. It is never written again.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lmscaling import files
from lmscaling.errors import UserError

FOLDER = "forecasts"
"""Folder of the seals in ``results/<study>/``."""

QUANTITIES = {
    "update_seconds": "seconds of an update",
    "memory_bytes": "memory",
    "loss": "final loss",
}
"""What is predicted, and its name in tables."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The distribution of a positive quantity: its logarithm has a t or a normal distribution."""

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


@dataclass(frozen=True, kw_only=True)
class Forecast(Predicted):
    """One quantity of one run, as a seal has it."""

    run: str
    """Cell name and hash."""
    name: str
    """Name of the cell, for people."""
    quantity: str
    """``update_seconds``, the mean of the run; ``memory_bytes``, the most on a device; or ``loss``,
    the final validation loss in nats per token."""


@dataclass(frozen=True, kw_only=True)
class Sealed(Forecast):
    """A forecast with the seal that holds it: a row of the table ``forecasts``."""

    seal: str
    """The file's name, which ends with eight digits of its SHA-256."""
    sealed: str
    """When it was sealed: UTC, ISO 8601."""
    intact: bool
    """Whether the values of the file have the SHA-256 of its name."""


@dataclass(frozen=True, kw_only=True)
class Seal:
    """The content of a file of predictions."""

    study: str
    study_sha256: str
    """Of all values of the study."""
    version: str
    """Of this package."""
    commit: str | None
    """Of its source; null if it is not known."""
    sealed: str
    """UTC, ISO 8601."""
    forecasts: list[Forecast]

    @property
    def values(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def sha256(self) -> str:
        """Of the values as JSON with sorted keys."""
        return files.digest(self.values)


def write(study: Path, seal: Seal) -> Path:
    """Write a seal that nobody can change by mistake; equal ones are one file."""
    path = study / FOLDER / f"{seal.sealed[:10]}-{seal.sha256[:8]}.json"
    if not path.exists():
        files.write_record(path, seal.values)
        path.chmod(0o444)
    return path


def read(path: Path) -> tuple[dict[str, Any], bool]:
    """The values of a seal, and whether they are what its name says.

    Raises:
        UserError: It is no JSON object.
    """
    values = files.parse_json(path.read_bytes(), f"sealed forecast {path}")
    if not isinstance(values, dict):
        raise UserError(
            f"sealed forecast {path} holds no object; put the file back that was sealed"
        )
    claimed = values.pop(files.DIGEST, "")
    found = files.digest(values)
    return values, found == claimed and path.stem.endswith(f"-{found[:8]}")


def rows(study: Path) -> Iterator[dict[str, Any]]:
    """The forecasts of all seals of a study, in the order of their names. A file that cannot be
    read has one row without a run."""
    names = {field.name for field in fields(Forecast)}
    for path in sorted((study / FOLDER).glob("*.json")):
        empty = Sealed(run="", name="", quantity="", seal=path.stem, sealed="", intact=False)
        try:
            values, intact = read(path)
            found = [
                asdict(empty) | {name: one[name] for name in names & one.keys()}
                for one in values["forecasts"]
            ]
            sealed = str(values["sealed"])
        except (UserError, KeyError, TypeError, AttributeError, OSError):
            yield asdict(empty)
            continue
        for row in found:
            yield row | {"sealed": sealed, "intact": intact}
