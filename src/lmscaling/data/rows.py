"""Rows of the study file: datasets of any kind, tokenizers, and a text as the two together."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from lmscaling import registry
from lmscaling.data.dataset import Dataset
from lmscaling.data.sequences import Sequences
from lmscaling.types import STRICT, Name, Vocabulary, dump

KINDS: dict[str, type[Dataset]] = {
    kind: getattr(import_module(f"lmscaling.data.kinds.{kind}"), kind.title().replace("_", ""))
    for kind in registry.sources("data/kinds")
}
"""The class of each kind of dataset, from its file."""

if TYPE_CHECKING:
    DatasetRow = Dataset
else:
    DatasetRow = Annotated[reduce(or_, KINDS.values()), Field(discriminator="kind")]
    """A dataset of any kind; ``kind`` selects the class."""


SIZES = {"bytes": 257, "gpt2": 50_257}
"""Tokens of each encoding: ids up to the largest of ordinary text, and then end-of-text."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Tokenizer:
    """A tokenizer: one of ``encoding`` and ``file``."""

    encoding: Literal["gpt2", "bytes"] | None = None
    """``gpt2`` is OpenAI's byte-pair encoding, by tiktoken; ``bytes`` has one token per byte and
    needs no download. Others are files."""
    file: str = ""
    """Path of a ``tokenizer.json`` of Hugging Face's ``tokenizers``, a byte-level BPE. Its special
    tokens are ordinary text."""
    sha256: str = ""
    """SHA-256 of ``file``; required there. The path may change, the content may not."""
    vocab_size: Vocabulary | None = None
    """Number of tokens, including end-of-text, which is the last. Required beside ``file``, where
    it is checked before tokenization; otherwise it follows from the rest."""

    def __post_init__(self) -> None:
        if bool(self.encoding) == bool(self.file):
            raise ValueError(
                f"found {'encoding and file' if self.file else 'no tokenizer'}; "
                "allowed: one of encoding and file"
            )
        if self.file and not (self.sha256 and self.vocab_size):
            raise ValueError(
                f"file {self.file!r} needs its sha256 and vocab_size in the row, which "
                f"`lmscaling vocabulary copy.json --file {shlex.quote(self.file)}` prints"
            )
        if self.sha256 and not (self.file and re.fullmatch("[0-9a-f]{64}", self.sha256)):
            raise ValueError(
                f"sha256 is {self.sha256!r}; allowed: the 64 hexadecimal digits of a file"
            )
        if self.vocab_size not in (None, self.n_vocab):
            raise ValueError(
                f"{self.name} has {self.n_vocab} tokens, but its row states vocab_size "
                f"{self.vocab_size}; write vocab_size: {self.n_vocab}"
            )

    @property
    def name(self) -> str:
        """The encoding, or ``file``."""
        return self.encoding or "file"

    @property
    def n_vocab(self) -> int:
        """Number of tokens, including end-of-text, whose id is one less."""
        return SIZES[self.encoding] if self.encoding else self.vocab_size or 0

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in a shard."""
        return 2 if self.n_vocab <= 2**16 else 4


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Corpus:
    """A dataset row and a tokenizer row: everything that tokenization needs."""

    dataset: Name
    """Row under ``datasets:``."""
    source: DatasetRow
    tokenizer: Name
    """Row under ``tokenizers:``."""
    encoding: Tokenizer

    def to_json(self, shards: int) -> str:
        """One line of JSON with only the first ``shards`` training shards, so that a longer corpus
        does not change the input of the shards that exist already."""
        return json.dumps(dump(replace(self, source=self.source.first(shards))))


def of_cell(source: Mapping[str, Any]) -> Sequences | None:
    """The row of a cell's dataset, from its identity; None if it has no sequences."""
    kind = KINDS.get(source.get("kind", ""), Dataset)  # that of an earlier record may be gone
    return TypeAdapter(kind).validate_python(source) if issubclass(kind, Sequences) else None
