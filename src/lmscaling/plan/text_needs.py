"""How much text a study needs, how much is tokenized already, and what comes from the hub."""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from lmscaling.config.grid import Grid
from lmscaling.data.dataset import Dataset
from lmscaling.errors import UserError
from lmscaling.formatting import bytes_of, short
from lmscaling.plan import documents
from lmscaling.plan.estimate import Forecast
from lmscaling.types import Split


@dataclass(frozen=True)
class Chunk:
    """Consecutive shards of a split that one job makes; as text ``train-00000-00015``."""

    split: Split
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.split}-{self.first:05d}-{self.last:05d}"

    @staticmethod
    def named(name: str) -> "Chunk":
        """The chunk with this name.

        Raises:
            UserError: It is not the name of a chunk.
        """
        match = re.fullmatch(r"(train|validation)-(\d+)-(\d+)", name)
        if not match:
            raise UserError(f"{name!r} is no chunk of shards; allowed: names as train-00000-00015")
        split: Split = "train" if match[1] == "train" else "validation"
        return Chunk(split, int(match[2]), int(match[3]))

    @property
    def numbers(self) -> range:
        """Numbers of its shards."""
        return range(self.first, self.last + 1)


def chunks(row: Dataset, split: Split, n: int) -> list[Chunk]:
    """The first n shards of a split in chunks of ``shards_per_job``."""
    size = row.shards_per_job
    return [Chunk(split, i, min(i + size, n) - 1) for i in range(0, n, size)]


def missing(row: Dataset, folder: Path, split: Split, n: int, first: int = 0) -> list[int]:
    """Numbers of those of the first n shards of a split that a folder of tokens does not have.

    Like a run record, a complete shard is a source file: a mirror that has moved does not
    cause it to be tokenized again. A list of local files, however, can change; a
    shard that was made from other files counts as missing. It looks at shards from ``first`` on.
    """
    names = {path.name for path in folder.glob(f"{split}-*")}
    suffixes = [".bin", ".json"]
    if split == "validation":
        suffixes.append(".fingerprints")
    numbers = []
    for i, files in enumerate(row.files(split)[first:n], start=first):
        shard = f"{split}-{i:05d}"
        complete = {shard + suffix for suffix in suffixes} <= names
        if not complete or not (row.pinned or _source_files(folder / f"{shard}.json") == files):
            numbers.append(i)
    return numbers


def listed(folder: Path) -> dict[str, int]:
    """Number of shards of each split in the manifest of a folder; empty if there is none."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        return {split: len(entries) for split, entries in manifest.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _source_files(sidecar: Path) -> str:
    try:
        return json.loads(sidecar.read_bytes())["source"]["files"]
    except (ValueError, KeyError, TypeError):
        return ""


@dataclass(frozen=True, kw_only=True)
class Supply:
    """The training text of a study."""

    dataset: str
    shards: int
    """Number of training shards."""
    missing: int
    """Number of training shards that are not tokenized yet."""
    fetch_files: int
    """Number of training files that are read from the hub for them."""
    fetch_bytes: float | None
    """Size of these files, if the dataset's row states the size of all files."""
    write_bytes: float | None
    """Size of the missing shards, if the number of tokens is known."""
    shard_tokens: float | None
    """Mean number of tokens per shard."""
    suffice: dict[str, int]
    """For each model size, the number of shards that its longest run reads."""
    left_out: list[str] = field(default_factory=list)
    """Sentences about documents that are not in the text, once it is tokenized."""

    def summary(self) -> list[str]:
        """The needs in sentences."""
        tokenized = self.shards - self.missing
        parts = [f"text: {self.dataset}, shards: {self.shards:,}, tokenized: {tokenized:,}"]
        if self.fetch_files:
            parts.append(
                f"to read from the hub: {self.fetch_files:,} files{_about(self.fetch_bytes)}"
            )
        if self.write_bytes:
            parts.append(f"to write: tokens{_about(self.write_bytes)}")
        lines = ["; ".join(parts)]
        if self.shard_tokens and self.suffice and self.shards > 1:
            needs = ", ".join(
                f"{size} {'all' if n == self.shards else format(n, ',')}"
                for size, n in self.suffice.items()
            )
            lines.append(
                f"shards of {short(self.shard_tokens)} tokens that the longest run of each size "
                f"reads: {needs}; shards: in the dataset's row limits how many are read"
            )
        return lines + self.left_out


def _about(n: float | None) -> str:
    return f" of about {bytes_of(n)}" if n else ""


def supply(grid: Grid, forecasts: list[Forecast], tokens: float | None, results: Path) -> Supply:
    """The training text that a study needs and has.

    Args:
        grid: The study.
        forecasts: Forecasts of its cells, in the same order.
        tokens: Training tokens of all shards, counted or expected; None if unknown.
        results: ``results/<study>``.
    """
    corpus = grid.corpora[grid.tokens]
    row, token_bytes = corpus.source, corpus.encoding.token_bytes
    n = len(row.files("train"))
    n_missing = len(missing(row, results / "tokens" / grid.tokens, "train", n))
    n_fetched = n_missing if row.is_fetched else 0
    suffice: dict[str, int] = {}
    for cell, forecast in zip(grid.cells.values(), forecasts, strict=True):
        if forecast.epochs:
            read = math.ceil(n * min(1.0, forecast.epochs))
            suffice[cell.size] = max(suffice.get(cell.size, 0), read)
    return Supply(
        dataset=grid.study.dataset,
        shards=n,
        missing=n_missing,
        fetch_files=n_fetched,
        fetch_bytes=row.expected_bytes * n_fetched / n
        if row.expected_bytes and n_fetched
        else None,
        write_bytes=tokens * token_bytes * n_missing / n if tokens and n_missing else None,
        shard_tokens=tokens / n if tokens else None,
        suffice=suffice,
        left_out=documents.sentences(documents.read(results / "tokens" / grid.tokens)),
    )
