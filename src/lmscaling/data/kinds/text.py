"""Local plain-text files, such as PG-19: one document per file."""

from dataclasses import field
from typing import Literal

from pydantic import JsonValue
from pydantic.dataclasses import dataclass

from lmscaling.data import file_names
from lmscaling.data.dataset import Documents, TextFiles
from lmscaling.types import STRICT, Distinct, Positive, Split


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Text(TextFiles):
    """Local plain-text files, plain or packed: one document per file, with ``\\n`` at the end of
    lines. Files whose names sort after all others change only the last shard."""

    kind: Literal["text"]
    train: Distinct[str]
    """Training files in the order of the stream. ``a-{000..013}.txt`` and ``a-*.txt`` are several
    files, sorted by name."""
    validation: list[str] = field(default_factory=list)
    """Validation files, written like ``train``, in one shard; if empty, ``holdout`` of the first
    training shard is held out."""
    files_per_shard: Positive = 512
    """Training files per shard; 512 files of PG-19 have about 50 million tokens."""

    def _shards(self, split: Split) -> list[list[str]]:
        """The files of each shard of a split."""
        if split == "validation" and self.validation:
            return [file_names.local(self.validation)]
        names, n = file_names.local(self.train), self.files_per_shard
        shards = [names[i : i + n] for i in range(0, len(names), n)]
        return shards if split == "train" else shards[:1]

    def most_tokens(self, split: Split) -> float | None:
        return file_names.most_tokens(name for names in self._shards(split) for name in names)

    def files(self, split: Split) -> list[str]:
        return [" ".join(names) for names in self._shards(split)]

    def identity(self) -> dict[str, JsonValue]:
        return self._text("expected_tokens")

    def read(self, split: Split, shard: int) -> Documents:
        from lmscaling.data import documents

        found = documents.of_files(self._shards(split)[shard])
        return found if self.validation else documents.hold_out(found, split, self.holdout)
