"""Local JSON lines: one shard per file, one document per line."""

from dataclasses import field, replace
from pathlib import Path
from typing import Literal, Self

from pydantic import JsonValue
from pydantic.dataclasses import dataclass

from lmscaling.config.datasets import Dataset, Documents
from lmscaling.config.types import STRICT, Distinct, Fraction, Positive, Split


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Jsonl(Dataset):
    """Local JSON lines, plain or ``.gz``: one shard per file, one document per line."""

    kind: Literal["jsonl"]
    train: Distinct[str]
    """Training files in the order of the stream; append files to lengthen it."""
    validation: list[str] = field(default_factory=list)
    """Validation files; if empty, ``holdout`` of the first training file is held out."""
    holdout: Fraction = 0.01
    """Share of documents held out, chosen by content hash, if ``validation`` is empty."""
    text: str = "text"
    """Key that contains the document."""
    shards_per_job: Positive = 16
    """Number of shards that one job fetches or tokenizes, one after another: a job takes seconds to
    start. No result depends on it."""

    def files(self, split: Split) -> list[str]:
        return self.train if split == "train" else self.validation or self.train[:1]

    def first(self, n: int) -> Self:
        return replace(self, train=self.train[:n])

    def identity(self) -> dict[str, JsonValue]:
        return self.first(1)._text()

    def read(self, split: Split, shard: int, backend: str, file: Path | None) -> Documents:
        from lmscaling.data import sources

        documents = sources.read_records(Path(self.files(split)[shard]), self.text, backend)
        return documents if self.validation else sources.hold_out(documents, split, self.holdout)
