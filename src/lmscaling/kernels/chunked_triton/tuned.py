"""Launch options that were measured on a device, stored in ``tuned.json`` beside the code.

``lmscaling tune kernels`` writes them after it has checked the results. A kernel uses the
entry of the same architecture, dtype and width whose heads and tokens are nearest, or the table of
``plan.py`` if there is none.
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
    """The fastest options for one shape."""

    architecture: int
    """Numbered as in ``sm_90``."""
    dtype: str
    width: int
    """Padded width of keys and values."""
    heads: int
    """Heads, over all sequences."""
    tokens: int
    forward: Config
    backward_q: Config
    backward_kv: Config
    backward: Config | None = None
    """Of the backward pass in one kernel, if it was faster than with both others."""
    seconds: dict[str, float]
    """Median time of the forward pass, and of both passes with each kernel of the backward pass."""
    device: str
    triton: str
    ptxas: str = ""
    """Empty where Triton does not say which it calls."""

    def distance(self, heads: int, tokens: int) -> float:
        """Distance to another call, in doublings of heads and tokens."""
        return abs(math.log2(self.heads / heads)) + abs(math.log2(self.tokens / tokens))


def read(path: Path = TUNED) -> list[Entry]:
    """The entries of a file; empty if it does not exist."""
    if not path.is_file():
        return []
    roles = ("forward", "backward", "backward_q", "backward_kv")
    return [
        Entry(**row | {role: Config(**row[role]) for role in roles if row.get(role)})
        for row in json.loads(path.read_text())
    ]


@cache
def entries() -> tuple[Entry, ...]:
    """The entries of ``tuned.json``, read once."""
    return tuple(read())


def find(
    known: tuple[Entry, ...], architecture: int, dtype: str, width: int, heads: int, tokens: int
) -> Entry | None:
    """The entry nearest to a call, or None if its architecture, dtype and width have none."""
    kind = (architecture, dtype, width)
    same = [e for e in known if (e.architecture, e.dtype, e.width) == kind]
    return min(same, key=lambda e: e.distance(heads, tokens), default=None)
