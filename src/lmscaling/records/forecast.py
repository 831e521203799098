"""The files in which predictions are sealed before runs begin.

A seal is a JSON file ``forecasts/<date>-<hash8>.json`` of a study. It holds predictions of runs
that had not begun (``forecasts``), the hash of the study, version and commit of the code, the date
``sealed``, and the SHA-256 of all these values, whose first eight digits are in its name. It is
never written again.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lmscaling import files
from lmscaling.errors import UserError
from lmscaling.formatting import bytes_of

QUANTITIES = {
    "update_seconds": "seconds of an update",
    "memory_bytes": "memory",
    "loss": "final loss",
}
"""What is predicted, and its name in tables."""


def shown(row: Mapping[str, Any], of: str) -> str:
    """A value of a row of ``Sealed`` as text; empty without one."""
    form = {"update_seconds": "{:.3g}".format, "memory_bytes": bytes_of}
    value = row.get(of)
    return (
        "" if value is None or value != value else form.get(row["quantity"], "{:.4f}".format)(value)
    )


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """One quantity of one run, as a seal has it: a row of the table ``forecasts``."""

    run: str = ""
    """Cell name and hash."""
    name: str = ""
    """Name of the cell, for people."""
    quantity: str = ""
    """``update_seconds``, the mean of the run; ``memory_bytes``, the most on a device; or ``loss``,
    the final validation loss in nats per token."""
    median: float | None = None
    """Median of the prediction, in the unit of the quantity; null without a prediction."""
    sd: float | None = None
    """Scale of the logarithm: its standard deviation if it is normal; null without an interval."""
    degrees: float | None = None
    """Degrees of freedom of its t distribution; null if it is normal."""
    reason: str = ""
    """Why there is no prediction; empty if there is one."""
    baseline: str = ""
    """What the prediction has to beat; empty without it."""
    baseline_median: float | None = None
    """What that predicts, in the unit of the quantity."""
    near: float | None = None
    """Loss of the nearer of the two sizes or lengths that the ruler goes through."""
    far: float | None = None
    """Loss of the other."""
    seal: str
    """The file's name, which ends with eight digits of its SHA-256."""
    sealed: str = ""
    """When it was sealed: UTC, ISO 8601."""
    intact: bool
    """Whether the values of the file have the SHA-256 of its name; if not, the seal is one row."""


def write(study: Path, forecasts: list[dict[str, Any]], /, **values: Any) -> tuple[Path, str]:
    """Seal predictions where nobody changes them by mistake: the path, and the SHA-256 to publish;
    ``values`` are further ones of the file."""
    now = datetime.now(UTC).isoformat(timespec="seconds")  # as runs have it
    values = {"sealed": now, **values, "forecasts": forecasts}
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
            own = {field.name: one[field.name] for field in fields(Sealed) if field.name in one}
            yield asdict(Sealed(**own, seal=path.stem, sealed=values["sealed"], intact=True))
