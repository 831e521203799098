"""Rows of the study file: sizes, datasets and tokenizers, one class a kind.

A row holds numbers and names; the code that reads a dataset is ``corpus.py``. A dataset's
``identity`` is what its text depends on: lengthening it changes no run that is finished.
"""

import json
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from lmscaling.config.types import STRICT, Distinct, Fraction, Name, Positive, Split, dump, less


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Size:
    """One rung of the ladder: the shape of a GPT-2 and the learning rate that suits it."""

    n_layer: Positive
    """Transformer blocks."""
    n_head: Positive
    """Attention heads; must divide ``d_model``."""
    d_model: Positive
    """Width of the residual stream."""
    lr: Annotated[float, Field(gt=0)]
    """Peak learning rate at ``lr_scale`` 1."""

    def __post_init__(self) -> None:
        if self.d_model % self.n_head:
            low = self.d_model - self.d_model % self.n_head
            raise ValueError(
                f"d_model {self.d_model} is not a multiple of n_head {self.n_head}; "
                f"nearest widths are {low} and {low + self.n_head}"
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Hub:
    """A dataset repository of the Hugging Face hub, or a local folder laid out like one."""

    kind: Literal["hub"]
    repository: str
    """``owner/name`` on the hub, or a local folder written ``./...``, ``../...`` or ``/...``."""
    revision: str = ""
    """Commit of the repository; needed on the hub, where branches move."""
    train: str
    """Path of a training file with ``{shard}`` for its number, as in ``en/{shard:05d}.json.gz``."""
    validation: str
    """Path of one validation file, written like ``train``."""
    text: str = "text"
    """Column that holds the document."""
    shards: Positive
    """Training files to tokenize, from number 0; raising it changes no run that is finished."""
    validation_shards: Positive = 1
    """Validation files to tokenize."""
    mirror: str = ""
    """Local folder laid out like the repository; files are read there and nothing is fetched."""
    documents: list[Positive] = field(default_factory=list)
    """Numbers of documents that a whole training file can have; none leaves it unchecked."""
    validation_documents: list[Positive] = field(default_factory=list)
    """Numbers of documents that a whole validation file can have."""
    expected_tokens: Annotated[float, Field(gt=0)] | None = None
    """Training tokens of all shards as far as is known; plans count with it before tokenizing."""
    expected_bytes: Annotated[float, Field(gt=0)] | None = None
    """Size of all training files as far as is known; plans count with it before fetching."""

    def __post_init__(self) -> None:
        for split in ("train", "validation"):
            template = getattr(self, split)
            try:
                numbered = template.format(shard=0) != template.format(shard=1)
            except (KeyError, IndexError, ValueError):
                numbered = False
            if not numbered:
                raise ValueError(
                    f"{split} {template!r} does not number its files; "
                    "write the place of the number as {shard} or {shard:05d}"
                )
        if not self.revision and not self.is_local:
            raise ValueError(
                f"revision is missing for {self.repository!r} on the hub; "
                "give the commit, for branches move"
            )

    @property
    def is_local(self) -> bool:
        """Whether the repository itself is a folder."""
        return self.repository.startswith((".", "/"))

    @property
    def folder(self) -> str:
        """Local folder that holds the files; empty if they are fetched from the hub."""
        return self.repository if self.is_local else self.mirror

    def counts(self, split: Split) -> list[int]:
        """Numbers of documents that a whole file of a split can have."""
        return self.documents if split == "train" else self.validation_documents

    def files(self, split: Split) -> list[str]:
        """What each shard of a split is made from."""
        template, n = (
            (self.train, self.shards)
            if split == "train"
            else (self.validation, self.validation_shards)
        )
        return [template.format(shard=i) for i in range(n)]

    def first(self, n: int) -> "Hub":
        """The row with its first n training shards only."""
        return replace(self, shards=n, expected_tokens=None, expected_bytes=None)

    def identity(self) -> dict[str, Any]:
        """What the text depends on; more shards only lengthen the stream."""
        return less(dump(self, exclude_defaults=True), "shards", *ABOUT_FILES)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Jsonl:
    """Local JSON lines, plain or ``.gz``: one shard a file, one document a line."""

    kind: Literal["jsonl"]
    train: Distinct[str]
    """Training files in the order of the stream; append to lengthen it."""
    validation: list[str] = field(default_factory=list)
    """Validation files; without any, ``holdout`` of the first training file is held out."""
    holdout: Fraction = 0.01
    """Share of documents held out, chosen by content hash, if ``validation`` is empty."""
    text: str = "text"
    """Key that holds the document."""

    def files(self, split: Split) -> list[str]:
        """What each shard of a split is made from."""
        return self.train if split == "train" else self.validation or self.train[:1]

    def first(self, n: int) -> "Jsonl":
        """The row with its first n training shards only."""
        return replace(self, train=self.train[:n])

    def identity(self) -> dict[str, Any]:
        """What the text depends on; files after the first only lengthen the stream."""
        return dump(self.first(1), exclude_defaults=True)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Text:
    """Local plain-text files, plain or ``.gz``: one document a file, all in one shard."""

    kind: Literal["text"]
    train: Distinct[str]
    """Training files in the order of the stream."""
    validation: list[str] = field(default_factory=list)
    """Validation files; without any, ``holdout`` of the training files are held out."""
    holdout: Fraction = 0.01
    """Share of documents held out, chosen by content hash, if ``validation`` is empty."""

    def files(self, split: Split) -> list[str]:
        """One shard a split, made from all its files."""
        return [" ".join(self.train if split == "train" else self.validation or self.train)]

    def first(self, n: int) -> "Text":
        """The row itself: it has one training shard."""
        return self

    def identity(self) -> dict[str, Any]:
        """What the text depends on."""
        return dump(self, exclude_defaults=True)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Folder:
    """A folder of plain-text files, as PG-19 is laid out: one document a file, in order of names.

    Every shard but the last is made from ``files_per_shard`` of them, so that files whose names
    come behind all others change nothing but the last shard and lengthen the stream.
    """

    kind: Literal["folder"]
    train: str
    """Folder of the training files."""
    validation: str = ""
    """Folder of the validation files, all in one shard; without one, ``holdout`` of the first
    training shard is held out."""
    holdout: Fraction = 0.01
    """Share of documents held out, chosen by content hash, if ``validation`` is empty."""
    pattern: str = "*.txt"
    """What names of documents look like, such as ``*.txt.gz``; other files are left alone."""
    n_files: Positive
    """Training files to tokenize, from the first: plans count shards before the folder is there."""
    files_per_shard: Positive = 512
    """Training files in a shard; of PG-19, some 50 million tokens."""
    expected_tokens: Annotated[float, Field(gt=0)] | None = None
    """Training tokens as far as is known; plans count with it before tokenizing."""

    def parts(self, split: Split) -> list[tuple[str, int, int | None]]:
        """Folder, first file and the first behind it (None for all) of each shard of a split."""
        if split == "validation" and self.validation:
            return [(self.validation, 0, None)]
        starts = range(0, self.n_files, self.files_per_shard)
        made: list[tuple[str, int, int | None]] = [
            (self.train, i, min(i + self.files_per_shard, self.n_files)) for i in starts
        ]
        return made if split == "train" else made[:1]

    def files(self, split: Split) -> list[str]:
        """What each shard of a split is made from."""
        return [
            f"{folder}/{self.pattern}" + (f", {start + 1} to {stop} by name" if stop else "")
            for folder, start, stop in self.parts(split)
        ]

    def first(self, n: int) -> "Folder":
        """The row with its first n training shards only."""
        n_files = min(self.n_files, n * self.files_per_shard)
        return replace(self, n_files=n_files, expected_tokens=None)

    def identity(self) -> dict[str, Any]:
        """What the text depends on; more files only lengthen the stream."""
        return less(dump(self, exclude_defaults=True), "n_files", "expected_tokens")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stdlib:
    """The source files of the running Python's standard library: real text on every machine."""

    kind: Literal["stdlib"]
    packages: bool = False
    """Whether the sources of installed packages are read, too: other text on every machine."""
    validation: list[str] = field(default_factory=list)
    """Validation files, JSON lines with the document under ``text``; without any, ``holdout`` of
    the source files."""
    holdout: Fraction = 0.05
    """Share of files held out by content hash, if ``validation`` is empty."""

    def files(self, split: Split) -> list[str]:
        """One shard a split of sources; of validation files one each."""
        if split == "validation" and self.validation:
            return self.validation
        return ["stdlib"]

    def first(self, n: int) -> "Stdlib":
        """The row itself: it has one training shard."""
        return self

    def identity(self) -> dict[str, Any]:
        """What the text depends on, but for the Python version, which the shards record."""
        return dump(self, exclude_defaults=True)


ABOUT_FILES = ("mirror", "documents", "validation_documents", "expected_tokens", "expected_bytes")
"""Fields of a hub row that say where its files lie and how large they are, not what is in them."""

Dataset = Annotated[Hub | Jsonl | Text | Folder | Stdlib, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Tokenizer:
    """A tokenizer. Its backend changes how fast it is, never a token."""

    encoding: Literal["gpt2", "bytes"]
    """``gpt2`` is OpenAI's byte-pair encoding; ``bytes`` has one token a byte, no download."""
    vocab_size: Positive
    """Tokens, end-of-text (the last) included; checked when tokenizing."""
    backend: Literal["tiktoken", "gigatoken", "simple"] = "tiktoken"
    """``tiktoken`` reads JSON lines by isal and orjson; ``gigatoken`` is several times as fast and
    compared with tiktoken in every shard; ``simple`` reads through ``datasets``, slowly."""

    def __post_init__(self) -> None:
        if self.backend == "gigatoken" and self.encoding != "gpt2":
            raise ValueError(
                f"backend gigatoken has no encoding {self.encoding!r}; write backend: tiktoken"
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Corpus:
    """A dataset row and a tokenizer row: all that tokenizing needs to know."""

    dataset: Name
    """Row under ``datasets:``."""
    source: Dataset
    tokenizer: Name
    """Row under ``tokenizers:``."""
    encoding: Tokenizer

    def to_json(self, shards: int) -> str:
        """One line of JSON, with the first ``shards`` training shards: a longer corpus does not
        change what made the shards that it already has."""
        return json.dumps(dump(replace(self, source=self.source.first(shards))))
