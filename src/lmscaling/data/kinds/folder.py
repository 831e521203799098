"""A folder of plain-text files in the layout of PG-19: one document per file, in order of names."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import JsonValue
from pydantic.dataclasses import dataclass

from lmscaling.config.datasets import Dataset, Documents
from lmscaling.config.types import STRICT, Estimate, HeldOut, Positive, Split
from lmscaling.errors import UserError

MOST_SHARDS = 10**6


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Folder(Dataset):
    """A folder of plain-text files, such as PG-19: one document per file, in order of names.

    Every shard except the last contains ``files_per_shard`` files. New files whose names sort after
    all others therefore change only the last shard and lengthen the stream.
    """

    kind: Literal["folder"]
    train: str
    """Folder of the training files."""
    validation: str = ""
    """Folder of the validation files, which form one shard; if empty, ``holdout`` of the first
    training shard is held out."""
    holdout: HeldOut = 0.01
    """Share of documents held out, chosen by content hash, if ``validation`` is empty."""
    pattern: str = "*.txt"
    """Pattern of the names of documents, such as ``*.txt.gz``; other files are ignored."""
    n_files: Positive
    """Number of training files to tokenize; plans need it before the folder exists."""
    files_per_shard: Positive = 512
    """Training files per shard; 512 files of PG-19 have about 50 million tokens."""
    expected_tokens: Estimate | None = None
    """Estimated training tokens; plans use it until the shards are tokenized."""
    shards_per_job: Positive = 16
    """Number of shards that one job fetches or tokenizes, one after another: a job takes seconds to
    start. No result depends on it."""

    def __post_init__(self) -> None:
        if self.n_files > MOST_SHARDS * self.files_per_shard:
            raise ValueError(
                f"n_files {self.n_files} is more than {MOST_SHARDS:,} shards of files_per_shard "
                f"{self.files_per_shard}; write files_per_shard: {-(-self.n_files // MOST_SHARDS)}"
            )

    def _parts(self, split: Split) -> list[tuple[str, int, int | None]]:
        """For each shard of a split: folder, first file and end, which is None for all files."""
        if split == "validation" and self.validation:
            return [(self.validation, 0, None)]
        starts = range(0, self.n_files, self.files_per_shard)
        parts: list[tuple[str, int, int | None]] = [
            (self.train, i, min(i + self.files_per_shard, self.n_files)) for i in starts
        ]
        return parts if split == "train" else parts[:1]

    def _paths(self, split: Split, shard: int) -> list[Path]:
        folder, start, stop = self._parts(split)[shard]
        paths = sorted(Path(folder).glob(self.pattern), key=lambda path: path.name)
        if not paths:
            raise UserError(
                f"folder {folder} has no file {self.pattern}; correct the dataset's row, or "
                "download the files"
            )
        if len(paths) < (stop or 0):
            raise UserError(
                f"folder {folder} has {len(paths)} files {self.pattern}, but shard {shard} needs "
                f"files {start + 1} to {stop}; lower n_files to {len(paths)}, or download the rest"
            )
        return paths[start:stop]

    def files(self, split: Split) -> list[str]:
        return [
            f"{folder}/{self.pattern}" + (f", {start + 1} to {stop} by name" if stop else "")
            for folder, start, stop in self._parts(split)
        ]

    def first(self, n: int) -> Self:
        n_files = min(self.n_files, n * self.files_per_shard)
        return replace(self, n_files=n_files, expected_tokens=None)

    def identity(self) -> dict[str, JsonValue]:
        return self._text("n_files", "expected_tokens")

    def read(self, split: Split, shard: int, file: Path | None) -> Documents:
        from lmscaling.data import sources

        documents = Documents(map(sources.read_text, self._paths(split, shard)))
        return documents if self.validation else sources.hold_out(documents, split, self.holdout)

    def provenance(self, split: Split, shard: int) -> dict[str, Any]:
        paths = self._paths(split, shard)
        return {"first": paths[0].name, "last": paths[-1].name}
