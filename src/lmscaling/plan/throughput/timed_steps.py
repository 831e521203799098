"""Steps of the speed study as work whose time can be predicted."""

from collections.abc import Mapping
from typing import Any

from lmscaling.config import devices
from lmscaling.config.devices import Device
from lmscaling.plan.throughput.model import Timing, vector
from lmscaling.plan.throughput.terms import Work

METHODS = {
    "softmax flash": "flash",
    "softmax flash4": "flash",
    "softmax cudnn": "flash",
    "softmax no_flash": "softmax_scores",
    "linear attention_parallel": "tiled",
    "linear attention_parallel_no_flash": "linear_scores",
    "linear chunked": "chunks",
    "linear state_parallel": "states",
    "linear state": "recurrence",
    "linear attention": "loop",
}
"""Kinds of attention by method of the speed study."""

LISTED = [*devices.DEVICES]
"""Names of devices whose peak is known, or beginnings of their names."""


def step(
    method: str,
    layers: int,
    heads: int,
    width: int,
    context: int,
    batch: int = 1,
    recompute: float = 0.0,
) -> Work:
    """A training step of the speed study, of ``batch`` sequences.

    Raises:
        KeyError: The kind of the method is not known.
    """
    tokens = batch * context
    return Work(
        kinds={METHODS[method]: layers}, heads=heads, width=width, context=context,
        tokens=tokens, micro_tokens=tokens, recompute=recompute,
    )  # fmt: skip


def measured_step(row: Mapping[str, Any]) -> tuple[Device, Timing] | None:
    """A step of the view ``speeds`` with its device; None of an unknown method or device."""
    device = devices.find(row["device"] or "")
    if device is None or row["method"] not in METHODS:
        return None
    shape = [int(row[name]) for name in ("n_layer", "n_head", "d_model", "context", "batch")]
    recompute = float(row["source"] == "published")
    x_K = vector(step(row["method"], *shape, recompute=recompute), device)
    return device, Timing(x_K, row["seconds"])
