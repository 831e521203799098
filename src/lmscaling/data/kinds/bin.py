"""Files of tokens that another program has made: of llm.c, or of nanoGPT."""

import os
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

from pydantic import JsonValue
from pydantic.dataclasses import dataclass

from lmscaling.config import file_names
from lmscaling.config.datasets import Dataset, Documents, Tokens
from lmscaling.config.types import STRICT, Distinct, Positive, Split
from lmscaling.errors import UserError

SHARD_TOKENS = 2**27
"""Tokens of a shard from a file without a header: nanoGPT has one file for all of OpenWebText."""

TOKEN_BYTES = 2


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Bin(Dataset):
    """Files of tokens, whose text is unknown: they are copied, none is lost or added."""

    kind: Literal["bin"]
    layout: Literal["llm.c", "nanogpt"]
    """``llm.c`` has a header and end-of-text before each document, and a document can continue in
    the next file; ``nanogpt`` has uint16 tokens alone, and end-of-text after each document."""
    train: Distinct[str]
    """Training files in the order of the stream; append files to lengthen it. ``a-{001..100}.bin``
    and ``a-*.bin`` are several files, sorted by name."""
    validation: list[str] = field(default_factory=list)
    """Validation files, written like ``train``."""
    shards_per_job: Positive = 16
    """Number of shards that one job copies, one after another: a job takes seconds to start. No
    result depends on it."""

    def __post_init__(self) -> None:
        if not self.validation:
            raise ValueError("validation is missing; name files of tokens that are validated on")
        for key in ("decontaminate", "shuffle"):
            if getattr(self, key) not in (None, "none", "blocks"):
                raise ValueError(f"{key} needs text, and a dataset of kind bin has tokens alone")

    def _parts(self, split: Split) -> list[tuple[Path, int]]:
        """For each shard of a split: its file, and which of the shards of the file it is."""
        names = file_names.local(self.train if split == "train" else self.validation)
        if self.layout == "llm.c":
            return [(Path(name), 0) for name in names]
        shard_bytes = SHARD_TOKENS * TOKEN_BYTES
        return [(Path(name), i) for name in names for i in range(-(-_size(name) // shard_bytes))]

    def local(self) -> list[tuple[str, str]]:
        return file_names.keyed(train=self.train, validation=self.validation)

    def most_tokens(self, split: Split) -> float | None:
        n_bytes = file_names.most_tokens(self.train if split == "train" else self.validation)
        return n_bytes and n_bytes / TOKEN_BYTES

    def files(self, split: Split) -> list[str]:
        if self.layout == "llm.c":
            return [str(path) for path, _ in self._parts(split)]
        return [f"{path}, part {i + 1}" for path, i in self._parts(split)]

    def identity(self) -> dict[str, JsonValue]:
        return replace(self, train=self.train[:1])._text()

    def read(self, split: Split, shard: int, file: Path | None) -> Documents:
        raise UserError(
            "a dataset of kind bin has tokens and no text; write a dataset of another kind"
        )

    def tokens(self, split: Split, shard: int, end_of_text: int) -> Tokens:
        from lmscaling.data import token_files

        parts = self._parts(split)
        if self.layout == "llm.c":
            return token_files.of_llm_c([path for path, _ in parts[: shard + 1]], end_of_text)
        path, i = parts[shard]
        return token_files.of_nanogpt(path, i * SHARD_TOKENS, SHARD_TOKENS, end_of_text)


def _size(name: str) -> int:
    path = Path(name)
    if not os.path.isfile(name):
        raise UserError(f"dataset file {path} does not exist; correct the dataset's row")
    return path.stat().st_size
