"""Published times of updates: 42 training runs of nine stacks, and the steps of the post.

``facts.csv`` has what the sources print (``published`` in ``unit``) and what follows from it.
Micro-batches that are not published are taken as 16,384 tokens or one sequence, and updates as
65,536 tokens a device. The blocks of the post were recomputed, as its longest contexts fit into 80
GB only so.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from lmscaling.config import devices
from lmscaling.plan.throughput.model import Timing, vector
from lmscaling.plan.throughput.terms import Work, read_work

FACTS = Path(__file__).with_name("facts.csv")

POST = "post"
POST_SOURCE = "Buckman and Gelada 2024: results/published/step_time.csv"
POST_DEVICE = "NVIDIA H100"
SHAPES = {124: (12, 12, 768), 355: (24, 16, 1024), 774: (36, 20, 1280), 1558: (48, 25, 1600)}
"""Layers, heads and width of GPT-2 by millions of parameters."""

KINDS = {
    "softmax_flash": "flash",
    "softmax_no_flash": "softmax_scores",
    "linear_attention_parallel": "tiled",
    "linear_attention_parallel_no_flash": "linear_scores",
    "linear_chunked": "chunks",
    "linear_state_parallel": "states",
    "linear_state": "recurrence",
    "linear_attention": "loop",
}
"""Kinds of attention by the names of the post."""


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
    context = int(row["context"])
    return Work(
        kinds={KINDS[row["implementation"]]: layers}, heads=heads, width=width, context=context,
        tokens=context, micro_tokens=context, recompute=1.0,
    )  # fmt: skip
