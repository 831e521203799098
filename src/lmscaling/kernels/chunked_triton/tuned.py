"""Configurations that were measured on a device, kept beside the code in ``tuned.json``.

``python -m lmscaling tune kernels`` writes them, and only those that computed the right numbers.
Nothing is measured when a kernel runs: the entry of the same architecture, dtype and width whose
heads and tokens are nearest is taken, else the table of ``plan.py``.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lmscaling.kernels.chunked_triton.config import Config

TUNED = Path(__file__).with_name("tuned.json")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was fastest at one point."""

    architecture: int
    """Numbered as in ``sm_90``."""
    dtype: str
    width: int
    """Padded width of keys and values."""
    heads: int
    """Heads of all sequences."""
    tokens: int
    forward: Config
    backward_q: Config
    backward_kv: Config
    seconds: dict[str, float]
    """Median time of the forward pass, and of the backward pass with each of its kernels."""
    device: str
    triton: str

    def distance(self, heads: int, tokens: int) -> float:
        """How far another call is, in doublings."""
        return abs(math.log2(self.heads / heads)) + abs(math.log2(self.tokens / tokens))


def read(path: Path = TUNED) -> list[Entry]:
    """The entries of a file; none if it is not there."""
    if not path.is_file():
        return []
    roles = ("forward", "backward_q", "backward_kv")
    return [
        Entry(**row | {role: Config(**row[role]) for role in roles})
        for row in json.loads(path.read_text())
    ]


@cache
def entries() -> tuple[Entry, ...]:
    """Those that come with the code, read once."""
    return tuple(read())


def find(
    known: tuple[Entry, ...], architecture: int, dtype: str, width: int, heads: int, tokens: int
) -> Entry | None:
    """The entry nearest to a call, or None if its kind was never measured."""
    kind = (architecture, dtype, width)
    same = [e for e in known if (e.architecture, e.dtype, e.width) == kind]
    return min(same, key=lambda e: e.distance(heads, tokens), default=None)
