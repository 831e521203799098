"""Records of how correctly a device computes: checks of kernels, and errors of gradients."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lmscaling.errors import UserError
from lmscaling.files import read_json
from lmscaling.records import schema
from lmscaling.records.run import FORMAT


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding in ``checks/<name>.json``: whether a part of a model is right on a device."""

    key: dict[str, Any]
    """What the finding depends on: the part, the device, versions, sources and launch options."""
    way: str
    """Name of the part: an attention, or what a kernel computes."""
    message: str
    """What is wrong with it; empty if nothing is."""
    seconds: float
    """Seconds that the check took, most of them for compiling."""
    started: str
    """UTC, ISO 8601."""


def findings(path: Path) -> list[Finding]:
    """The findings of ``checks/<name>.json``; none if there is no file, or it is damaged."""
    if not path.is_file():
        return []
    try:
        rows = read_json(path, "check")["findings"]
        return [Finding(**schema.read(Finding, row, f"check {path}", "")[0]) for row in rows]
    except (UserError, KeyError, TypeError) as error:
        print(f"{path} is not used: {error}; the kernels are checked again", file=sys.stderr)
        return []


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """``numerics/<run>.jsonl``: rounding errors of the gradients of one layer of a trained
    model.

    Errors are relative: norm of the difference from float64 over norm of the float64 result of the
    same inputs. Inputs are the activations and gradients of the layer on validation tokens.
    """

    record: ClassVar[str] = "numerics"
    run: str
    """Cell name and hash."""
    layer: int
    """Block, from 0."""
    implementation: str
    """File stem in ``kernels/linear/`` or name in another library; ``centred`` and ``uncentred``
    are the arithmetic of the fused kernels in PyTorch, with operands of products in bfloat16."""
    tokens: int
    """Tokens of the sequence: the context of the run."""
    dtype: str
    """Data type of the inputs."""
    mean_over_sd: float
    """Root mean square over heads and channels of the mean of v over tokens, over that of its
    standard deviation."""
    y_error: float | None
    """Relative error of the output."""
    dq_error: float | None
    """Relative error of the gradient of the queries."""
    dk_error: float | None
    """Relative error of the gradient of the keys."""
    dv_error: float | None
    """Relative error of the gradient of the values."""
    status: str
    """``done``, or why there are no errors: ``failed``, ``oom`` or ``slow``."""
    message: str
    """The reason; empty unless something went wrong."""
    started: str
    """UTC, ISO 8601."""
    device: str
    """Name of the GPU or the CPU."""
    environment: dict[str, Any]
    """Host, device, versions, git commit."""
    format: int = FORMAT
    """Version of the record's format."""
