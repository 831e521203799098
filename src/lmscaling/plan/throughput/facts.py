"""Published times of updates: 42 training runs of nine stacks, and the steps of the post.

``facts.csv`` has what the sources print (``published`` in ``unit``) and what follows from it.
Micro-batches that are not published are taken as 16,384 tokens or one sequence, and updates as
65,536 tokens a device. The blocks of the post were recomputed, as its longest contexts fit into 80
GB only so.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmscaling.config import devices
from lmscaling.config.devices import Device
from lmscaling.plan.throughput.model import Timing, vector
from lmscaling.plan.throughput.terms import Work, read_work

FACTS = Path(__file__).with_name("facts.csv")

POST = "post"
POST_SOURCE = "Buckman and Gelada 2024: results/published/step_time.csv"
POST_DEVICE = "NVIDIA H100"
SHAPES = {124: (12, 12, 768), 355: (24, 16, 1024), 774: (36, 20, 1280), 1558: (48, 25, 1600)}
"""Layers, heads and width of GPT-2 by millions of parameters."""

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


def read() -> dict[str, list[Timing]]:
    """Published updates by stack."""
    stacks: dict[str, list[Timing]] = {}
    with FACTS.open(newline="") as file:
        for row in csv.DictReader(file):
            x_K = vector(read_work(row), devices.DEVICES[row["device"]])
            stacks.setdefault(row["stack"], []).append(Timing(x_K, float(row["seconds"])))
    return stacks


def read_post(path: Path) -> list[tuple[Mapping[str, str], Timing]]:
    """The steps of the post with their rows, from ``results/published/step_time.csv``."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["milliseconds"]]
    device = devices.DEVICES[POST_DEVICE]
    return [(r, Timing(vector(_step(r), device), float(r["milliseconds"]) / 1e3)) for r in rows]


def _step(row: Mapping[str, str]) -> Work:
    layers, heads, width = SHAPES[int(row["params_millions"])]
    method = row["implementation"].replace("_", " ", 1)
    return step(method, layers, heads, width, int(row["context"]), recompute=1.0)


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
