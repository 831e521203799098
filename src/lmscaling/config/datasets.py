"""Rows of the study file: sizes, datasets and tokenizers.

A kind of dataset is one file in ``data/kinds/``: the file stem is the value of ``kind``, and the
class has that name in CamelCase (``hub.py`` defines ``Hub``). The class subclasses ``Dataset``.
"""

import json
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Annotated, Any, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema, JsonValue
from pydantic.dataclasses import dataclass
from pydantic_core import CoreSchema

from lmscaling import registry
from lmscaling.config import file_names
from lmscaling.config.types import (
    STRICT,
    Context,
    Estimate,
    Flag,
    Heads,
    HeldOut,
    InitStd,
    Layers,
    Name,
    Positive,
    Rate,
    Split,
    Vocabulary,
    Width,
    dump,
    less,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Size:
    """One model size: the shape of a GPT-2 and its learning rates."""

    n_layer: Layers
    """Number of transformer blocks."""
    n_head: Heads
    """Number of attention heads; must divide ``d_model``."""
    d_model: Width
    """Width of the residual stream."""
    lr: Rate | dict[Name, Rate]
    """Peak learning rate at ``lr_scale`` 1; or that of each attention by label, as in ``{softmax:
    6e-4, linear: 1e-3}``."""
    token_shift: Flag = False
    """Whether each token's embedding also has a learned share of the token before it."""
    init_std: InitStd = 0.02
    """Standard deviation of the initial weights; GPT-2's is 0.02."""

    def __post_init__(self) -> None:
        if self.d_model % self.n_head:
            low = self.d_model - self.d_model % self.n_head
            raise ValueError(
                f"d_model {self.d_model} is not a multiple of n_head {self.n_head}; "
                f"nearest widths are {low} and {low + self.n_head}"
            )

    def rate(self, attention: str) -> float:
        """The rate of an attention. One that only the speed study has may be without: its times do
        not depend on it, so it gets the first."""
        if isinstance(self.lr, dict):
            return self.lr.get(attention, next(iter(self.lr.values())))
        assert not isinstance(self.lr, str)
        return self.lr


@plain_dataclass(frozen=True)
class Documents:
    """The documents of one shard, while they are read."""

    texts: Iterator[str]
    """The documents that belong to the split, in order."""
    describe_file: Callable[[], dict[str, Any]] = dict
    """Returns size (``bytes``) and ``sha256`` of the file that was read, once all its documents
    were read; empty if the documents come from several files."""


BLOCK_TOKENS = 131_072
"""See ``TrainingText.block_tokens``."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainingText:
    """Fields of every dataset row: what training reads of its text, and in which order.

    The descriptions are arguments: pydantic reads the docstrings of a class's own fields only.
    """

    shuffle: Literal["none", "blocks", "documents"] | None = Field(
        default=None,
        description="``blocks`` reads blocks of ``block_tokens`` in an order that is drawn from "
        "the seed and the epoch, so that an update is no run of neighbouring documents. "
        "``documents`` also shuffles the documents of each file when they are tokenized, with all "
        "its text in memory. ``none`` reads the files from end to end. If not given, it is "
        "``none``, and ``blocks`` where ``protocol.all`` of the study is 2 or more.",
    )
    block_tokens: Context = Field(
        default=BLOCK_TOKENS,
        description="Tokens of a block. An update should have several blocks, and a block be as "
        "long as the longest context.",
    )

    def blocks(self, protocol: int, context: int) -> int | None:
        """Tokens of the blocks that training shuffles, at a ``protocol.all``; None for none. Those
        of sequences depend on the context."""
        shuffle = self.shuffle or ("blocks" if protocol > 1 else "none")
        return None if shuffle == "none" else self.block_tokens


class Dataset(TrainingText, ABC):
    """A dataset row. Planning uses every member except ``read``, ``tokens`` and ``provenance``;
    only these may import what planning does not need."""

    kind: Any
    """File stem in ``data/kinds/``; each class narrows the type to this literal."""
    expected_tokens: float | None = None
    """Training tokens of all shards, if the row states them."""
    expected_bytes: float | None = None
    """Size of all training files, if the row states it."""
    shards_per_job: int = 16
    """Number of shards that one job makes."""

    @property
    def pinned(self) -> bool:
        """Whether the identity determines the files of every shard. If not, a shard whose sidecar
        lists other files than the row is tokenized again."""
        return False

    @abstractmethod
    def files(self, split: Split) -> list[str]:
        """The source of each shard of a split: a file, or a description of several files."""

    def first(self, n: int) -> Self:
        """The row with only its first n training shards; itself if it has only one."""
        return self

    def identity(self) -> dict[str, JsonValue]:
        """The values that determine the text. More training shards only lengthen the stream, so
        their number is not one of these values."""
        return self._text()

    def _text(self, *others: str) -> dict[str, JsonValue]:
        """The fields that are not the default, without those that leave the tokens as they are."""
        values = less(dump(self, exclude_defaults=True), "block_tokens", "shards_per_job", *others)
        return values if self.shuffle == "documents" else less(values, "shuffle")

    def local(self) -> list[tuple[str, str]]:
        """Local files and folders that must be there before anything is planned, each with the key
        that names it.

        Raises:
            UserError: No file matches a pattern.
        """
        return []

    def most_tokens(self, split: Split) -> float | None:
        """A number of tokens that a split cannot exceed; None if it is unknown. A token of text is
        at least one byte."""
        return None

    def document_counts(self, split: Split) -> list[int]:
        """Numbers of documents that a complete file of a split can have; empty if unknown."""
        return []

    @property
    def length(self) -> int | None:
        """Tokens of each document, if all are sequences of one length; see ``sequences.py``."""
        return None

    @property
    def is_fetched(self) -> bool:
        """Whether the text comes from a network while it is tokenized."""
        return False

    @abstractmethod
    def read(self, split: Split, shard: int) -> Documents:
        """The documents of one shard.

        Args:
            split: ``"train"`` or ``"validation"``.
            shard: Number of the shard, from 0 to ``len(files(split)) - 1``.

        Raises:
            UserError: A file is missing, truncated or contains something other than documents.
                Errors inside a file are raised while the documents are read.
        """

    def tokens(self, split: Split, end_of_text: int) -> Iterator[Any] | None:
        """The only shard of a split as NumPy arrays of tokens, with end-of-text before each
        document, if the dataset has tokens in place of text; else None."""
        return None

    def provenance(self, split: Split, shard: int) -> dict[str, Any]:
        """Where the documents of a shard come from, beyond ``kind`` and ``files``."""
        return {}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TextFiles(Dataset):
    """Fields of the rows of files of text, which may also name ``validation`` files."""

    holdout: HeldOut = Field(
        default=0.01,
        description="Share of the documents of the first training shard that is held out, chosen "
        "by content hash, if the row names no validation files.",
    )
    expected_tokens: Estimate | None = Field(
        default=None,
        description="Estimated training tokens of all shards; plans use it until the shards are "
        "tokenized.",
    )
    shards_per_job: Positive = Field(
        default=16,
        description="Number of shards that one job tokenizes, one after another: a job takes "
        "seconds to start. No result depends on it.",
    )

    def local(self) -> list[tuple[str, str]]:
        named = {key: getattr(self, key) or [] for key in ("train", "validation")}
        return file_names.keyed(**named)


def class_of(kind: str) -> type[Dataset]:
    """The class of a kind, from its file in ``data/kinds/``."""
    module = import_module(f"lmscaling.data.kinds.{kind}")
    return getattr(module, kind.title().replace("_", ""))


def _union_of_kinds(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    kinds = list(map(class_of, registry.sources("data/kinds")))
    return handler(Annotated[reduce(or_, kinds), Field(discriminator="kind")])


DatasetRow = Annotated[Dataset, GetPydanticSchema(_union_of_kinds)]
"""A dataset of any kind; ``kind`` selects the class. The kinds are imported when the first class
with such a field is built, so this package has no static import of ``data``."""


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


# The kinds import this module, so the schema of Corpus is built when it is first used.
@dataclass(frozen=True, kw_only=True, config={**STRICT, "defer_build": True})
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
