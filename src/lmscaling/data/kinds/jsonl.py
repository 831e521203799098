"""Local files of records: one shard per file, one document per line or row."""

from dataclasses import field, replace
from typing import Literal, Self

from pydantic import JsonValue
from pydantic.dataclasses import dataclass

from lmscaling.data import file_names
from lmscaling.data.dataset import Documents, TextFiles
from lmscaling.types import STRICT, Distinct, Split


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Jsonl(TextFiles):
    """Local JSON lines, plain or packed, or Parquet: one shard per file, one document per line or
    row."""

    kind: Literal["jsonl"]
    train: Distinct[str]
    """Training files in the order of the stream; append files to lengthen it. ``a-{0..9}.jsonl``
    and ``a-*.jsonl`` are several files, sorted by name."""
    validation: list[str] = field(default_factory=list)
    """Validation files, written like ``train``; if empty, ``holdout`` of the first training file is
    held out."""
    text: str = "text"
    """Key or column that contains the document."""

    def files(self, split: Split) -> list[str]:
        if split == "validation" and self.validation:
            return file_names.local(self.validation)
        files = file_names.local(self.train)
        return files if split == "train" else files[:1]

    def most_tokens(self, split: Split) -> float | None:
        return file_names.most_tokens(self.files(split))

    def first(self, n: int) -> Self:
        return replace(self, train=self.files("train")[:n])

    def identity(self) -> dict[str, JsonValue]:
        return replace(self, train=self.train[:1])._text("expected_tokens")

    def read(self, split: Split, shard: int) -> Documents:
        from lmscaling.data import documents

        found = documents.of_records(self.files(split)[shard], self.text)
        return found if self.validation else documents.hold_out(found, split, self.holdout)
