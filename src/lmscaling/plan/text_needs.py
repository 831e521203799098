"""How much text a study needs, what of it is there, and what is still to be fetched."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from lmscaling.config.datasets import Dataset, Hub
from lmscaling.config.grid import Grid
from lmscaling.config.types import Split
from lmscaling.formatting import bytes_of, short
from lmscaling.plan.estimate import Forecast

TOKEN_BYTES = 2


def missing(row: Dataset, folder: Path, split: Split, n: int) -> list[int]:
    """Which of the first n shards of a split are not in a folder of tokens, whole.

    Like a record, a shard that is there with its sidecar is a source file: neither a mirror that
    has moved nor another backend makes it anew. But a list of local files can change, and then a
    shard that was made from others is missing; what is fetched is pinned by the folder's name.
    """
    there = {path.name for path in folder.glob(f"{split}-*")}
    ends = [".bin", ".json", *([".fingerprints"] if split == "validation" else [])]
    found = []
    for i, files in enumerate(row.files(split)[:n]):
        name = f"{split}-{i:05d}"
        whole = {name + end for end in ends} <= there
        if not whole or (not isinstance(row, Hub) and _made_from(folder / f"{name}.json") != files):
            found.append(i)
    return found


def _made_from(sidecar: Path) -> str:
    try:
        return json.loads(sidecar.read_bytes())["source"]["files"]
    except (ValueError, KeyError, TypeError):
        return ""


@dataclass(frozen=True, kw_only=True)
class Supply:
    """The training text of a study."""

    dataset: str
    shards: int
    """Training shards of the study."""
    missing: int
    """Of them, how many are not tokenized yet."""
    fetch_files: int
    """Training files that are fetched for them."""
    fetch_bytes: float | None
    """Their size, if the dataset's row says how large all files are."""
    write_bytes: float | None
    """Size of the missing shards, if the number of tokens is known."""
    shard_tokens: float | None
    """Tokens of a shard, on average."""
    suffice: dict[str, int]
    """By size of model: how many shards its longest run reads."""

    def said(self) -> list[str]:
        """For people, in sentences."""
        have = self.shards - self.missing
        there = f"{have:,} of them there" if have else "none of them there yet"
        parts = [f"text: {self.shards:,} shards of {self.dataset}, {there}"]
        if self.fetch_files:
            parts.append(f"to fetch: {self.fetch_files:,} files{_about(self.fetch_bytes)}")
        if self.write_bytes:
            parts.append(f"to write: tokens{_about(self.write_bytes)}")
        said = ["; ".join(parts)]
        if self.shard_tokens and self.suffice and self.shards > 1:
            each = ", ".join(
                f"{size} {'all' if n == self.shards else format(n, ',')}"
                for size, n in self.suffice.items()
            )
            said.append(
                f"shards of {short(self.shard_tokens)} tokens that suffice, by size: {each}; "
                "shards: in the dataset's row sets how many are fetched"
            )
        return said


def _about(n: float | None) -> str:
    return f" of about {bytes_of(n)}" if n else ""


def supply(grid: Grid, forecasts: list[Forecast], tokens: float | None, results: Path) -> Supply:
    """What a study needs and has.

    Args:
        grid: The study.
        forecasts: Of its cells, in their order.
        tokens: Training tokens of all shards as counted or expected, or None.
        results: ``results/<study>``.
    """
    row = grid.study.datasets[grid.study.dataset]
    n = len(row.files("train"))
    lacking = len(missing(row, results / "tokens" / grid.tokens, "train", n))
    fetched = lacking if isinstance(row, Hub) and not row.folder else 0
    expected = getattr(row, "expected_bytes", None)
    suffice: dict[str, int] = {}
    for cell, forecast in zip(grid.cells.values(), forecasts, strict=True):
        if forecast.epochs:
            read = math.ceil(n * min(1.0, forecast.epochs))
            suffice[cell.size] = max(suffice.get(cell.size, 0), read)
    return Supply(
        dataset=grid.study.dataset,
        shards=n,
        missing=lacking,
        fetch_files=fetched,
        fetch_bytes=expected * fetched / n if expected and fetched else None,
        write_bytes=tokens * TOKEN_BYTES * lacking / n if tokens and lacking else None,
        shard_tokens=tokens / n if tokens else None,
        suffice=suffice,
    )
