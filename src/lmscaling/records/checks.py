"""What is written down of how right a device computes: checks of kernels, and lost digits of dq.

As in ``records.py``, a column exists because it is a field here; its unit is in its name or in its
docstring.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from lmscaling.records.run import FORMAT, columns_of

CHECK_STATUSES = {
    "right": "at most as far from the exact result as is allowed",
    "wrong": "farther, or no number",
    "failed": "raised an error, or ended its process",
    "oom": "memory did not suffice",
    "slow": "had not ended after the time limit",
}
"""How a check can end; only what is ``right`` in all of them may be timed."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """``checks/<name>.jsonl``: one comparison of what a device computes with what is right."""

    record: ClassVar[str] = "check"
    name: str
    """``attention/implementation``, or an attention alone: the module with what it uses itself."""
    case: str
    """What was computed: inputs, and sequences x tokens x heads x width."""
    dtype: str
    """Of inputs and results."""
    quantity: str
    """``y``, ``dq``, ``dk``, ``dv`` of an implementation; ``y``, ``dx``, ``step``, ``compiled`` of
    an attention; empty where an error came before."""
    error: float | None
    """Root mean square of the difference over that of the exact result, or the largest difference
    of integers; null if it is no number or there is none."""
    allowed: float
    """The largest error that is right."""
    status: str
    """A key of ``CHECK_STATUSES``."""
    message: str
    """What happened, in words; empty if all went well."""
    started: str
    """UTC, ISO 8601."""
    device: str
    environment: dict[str, Any]
    """Host, device, versions, git commit."""
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """``numerics/<run>.jsonl``: what one layer of a trained model loses of its gradients.

    Errors are relative: norm of the difference from float64 over norm of the float64 result, of the
    same inputs. Inputs are what the layer saw and got back in training, on validation tokens.
    """

    record: ClassVar[str] = "numerics"
    run: str
    """Cell name and hash."""
    layer: int
    """Block, from 0."""
    implementation: str
    """File stem in ``kernels/linear/`` or of another library; ``centred`` and ``uncentred`` are the
    fused kernels' arithmetic in PyTorch, every operand of a product rounded to bfloat16."""
    tokens: int
    """Tokens of the sequence: the context of the run."""
    dtype: str
    """Of the inputs."""
    mean_over_sd: float
    """Root mean square over heads and channels of the mean of v over tokens, over that of its
    standard deviation."""
    y_error: float | None
    dq_error: float | None
    dk_error: float | None
    dv_error: float | None
    status: str
    """``done``, or why there are no errors: a key of ``CHECK_STATUSES``."""
    message: str
    """What happened, in words; empty if all went well."""
    started: str
    """UTC, ISO 8601."""
    device: str
    environment: dict[str, Any]
    """Host, device, versions, git commit."""
    format: int = FORMAT


def check_columns() -> dict[str, str]:
    """Every column of a check, with its SQL type; nested values stay JSON."""
    return {"record": "VARCHAR", **columns_of(Check), "environment": "JSON"}


def numerics_columns() -> dict[str, str]:
    """Every column of a row of the numerics, with its SQL type; nested values stay JSON."""
    return {"record": "VARCHAR", **columns_of(Numerics), "environment": "JSON"}
