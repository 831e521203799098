"""A list of local plain-text files: one document per file, all in one shard."""

from dataclasses import field
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from lmscaling.config import file_names
from lmscaling.config.datasets import Dataset, Documents
from lmscaling.config.types import STRICT, Distinct, HeldOut, Split


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Text(Dataset):
    """Local plain-text files, plain or ``.gz``: one document per file, all in one shard."""

    kind: Literal["text"]
    train: Distinct[str]
    """Training files in the order of the stream. ``a-{000..013}.txt`` and ``a-*.txt`` are several
    files, sorted by name."""
    validation: list[str] = field(default_factory=list)
    """Validation files, written like ``train``; if empty, ``holdout`` of the training files is held
    out."""
    holdout: HeldOut = 0.01
    """Share of documents held out, chosen by content hash, if ``validation`` is empty."""

    def _paths(self, split: Split) -> list[str]:
        names = self.train if split == "train" else self.validation or self.train
        return file_names.local(names)

    def local(self) -> list[tuple[str, str]]:
        return file_names.keyed(train=self.train, validation=self.validation)

    def most_tokens(self, split: Split) -> float | None:
        n_bytes = file_names.most_tokens(self._paths(split))
        return n_bytes and 3 * n_bytes  # a byte that is not UTF-8 becomes a character of three

    def files(self, split: Split) -> list[str]:
        return [" ".join(self._paths(split))]

    def read(self, split: Split, shard: int, file: Path | None) -> Documents:
        from lmscaling.data import sources

        documents = Documents(sources.read_text(Path(path)) for path in self._paths(split))
        return documents if self.validation else sources.hold_out(documents, split, self.holdout)
