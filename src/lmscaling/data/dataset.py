"""What a dataset is to the rest of the program: the fields and the methods of its row.

A kind of dataset is one file in ``data/kinds/``: the file stem is the value of ``kind``, and the
class has that name in CamelCase (``hub.py`` defines ``Hub``). The class subclasses ``Dataset``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass as plain_dataclass
from typing import Any, Literal, Self

from pydantic import Field, JsonValue
from pydantic.dataclasses import dataclass

from lmscaling.data import file_names
from lmscaling.types import STRICT, Context, Estimate, HeldOut, Positive, Split, dump, less


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

    def known(self, context: int, tokens: Any) -> dict[str, float]:
        """Losses in windows of ``context`` tokens that are known without a model, nats per token
        that counts, by name: ``exact`` is the lowest that is possible. ``tokens`` are those of the
        validation, a NumPy array, and the one behind them."""
        return {}

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
