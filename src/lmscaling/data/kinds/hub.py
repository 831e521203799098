"""A dataset repository of the Hugging Face hub: one shard per file."""

import re
from dataclasses import field, replace
from functools import cache
from typing import Any, Literal, Self, get_args

from pydantic import JsonValue
from pydantic.dataclasses import dataclass

from lmscaling.data import file_names
from lmscaling.data.dataset import Documents, TextFiles
from lmscaling.types import STRICT, Estimate, OneOrMore, Positive, Shards, Split

NOT_TEXT = (
    "shards", "mirror", "documents", "validation_documents", "expected_tokens", "expected_bytes",
)  # fmt: skip
"""Fields that say where the files are, how many and how large, and nothing about their text."""

NUMBER = re.compile(r"\{shard(:0\d{1,2}d)?\}")
"""A field for the number of a file, of a template that ``shards`` ends."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Hub(TextFiles):
    """A dataset repository of the Hugging Face hub, or a local folder with the same layout."""

    kind: Literal["hub"]
    repository: str
    """``owner/name`` on the hub, or a local folder written as ``./...``, ``../...`` or ``/...``."""
    revision: str = ""
    """Commit of the repository; required for the hub, where branches move."""
    train: OneOrMore[str]
    """Paths of the training files: one with ``{shard}`` for the number from 0, as in
    ``en/{shard:05d}.json.gz``, or one or more with ranges, as in ``a-{000..013}.parquet``. JSON
    lines, plain or packed, or Parquet. Append paths to lengthen the stream."""
    validation: OneOrMore[str] | None = None
    """Paths of the validation files, written like ``train``; if not given, ``holdout`` of the first
    training file is held out."""
    text: str = "text"
    """Column that contains the document."""
    shards: Shards | None = None
    """Number of training files to tokenize, from the first; all by default, and required with
    ``{shard}``. Raising it changes no finished run."""
    mirror: str = ""
    """Local folder with the layout of the repository, in which files are read without a network."""
    documents: list[Positive] = field(default_factory=list)
    """Numbers of documents that a complete training file can have; empty for no check."""
    validation_documents: list[Positive] = field(default_factory=list)
    """Numbers of documents that a complete validation file can have; empty for no check."""
    expected_bytes: Estimate | None = None
    """Estimated size of all training files; plans use it until they are read."""

    def __post_init__(self) -> None:
        for names in (self.train, self.validation or []):
            for name in names:
                rest = file_names.RANGE.sub("", NUMBER.sub("", name) if len(names) == 1 else name)
                if set(rest) & set("*?[{"):
                    why = "is a pattern, and plans do not ask the hub which files match"
                    remedy = "write a range, as {000..013}, or list the files"
                    raise ValueError(f"{name!r} {why}; {remedy}")
        n = sum(map(file_names.count, self.train))
        if NUMBER.search(self.train[0]):
            if not self.shards:
                raise ValueError(f"shards is missing; give the number of files {self.train[0]!r}")
        elif (self.shards or 0) > n:
            raise ValueError(f"shards {self.shards} is more than the {n} files that train names")
        if self.documents and not self.validation:
            raise ValueError("documents counts whole files, but a share is held out; leave it out")
        if not self.revision and not self._is_folder:
            raise ValueError(
                f"revision of {self.repository!r} is missing; give a commit: branches move"
            )

    @property
    def _is_folder(self) -> bool:
        return self.repository.startswith((".", "/"))

    @property
    def folder(self) -> str:
        """Local folder that contains the files; empty if they are on the hub."""
        return self.repository if self._is_folder else self.mirror

    @property
    def is_fetched(self) -> bool:
        return not self.folder

    @property
    def pinned(self) -> bool:
        return len(self.train) == 1

    def local(self) -> list[tuple[str, str]]:
        key = "repository" if self._is_folder else "mirror"
        firsts = sorted({f"/{self.files(split)[0]}" for split in get_args(Split)})
        return [(key, self.folder + name) for name in ("", *firsts)] if self.folder else []

    def most_tokens(self, split: Split) -> float | None:
        if split == "train" or self.validation or not self.expected_tokens:
            return None
        # The estimate is of all files, and the first one can be larger than the others.
        return 2 * self.holdout * self.expected_tokens / len(self.files("train"))

    def document_counts(self, split: Split) -> list[int]:
        return self.documents if split == "train" else self.validation_documents

    def files(self, split: Split) -> list[str]:
        if split == "validation" and self.validation:
            return [*_expanded(tuple(self.validation), 1)]
        files = _expanded(tuple(self.train), self.shards or 0)
        return [*files[: self.shards]] if split == "train" else [*files[:1]]

    def first(self, n: int) -> Self:
        return replace(self, shards=n, expected_tokens=None, expected_bytes=None)

    def identity(self) -> dict[str, JsonValue]:
        """A single path is written without a list, and later training paths lengthen the stream."""
        values = self._text(*NOT_TEXT) | {"train": self.train[0]}
        if self.validation and len(self.validation) == 1:
            values["validation"] = self.validation[0]
        return values

    def read(self, split: Split, shard: int) -> Documents:
        from lmscaling.data import documents

        folder = self.folder or f"{documents.HUB}datasets/{self.repository}@{self.revision}"
        path = f"{folder}/{self.files(split)[shard]}"
        found = documents.of_records(path, self.text)
        return found if self.validation else documents.hold_out(found, split, self.holdout)

    def provenance(self, split: Split, shard: int) -> dict[str, Any]:
        return {"repository": self.repository, "revision": self.revision}


@cache
def _expanded(names: tuple[str, ...], n: int) -> tuple[str, ...]:
    """The files that the paths of a row mean, n of a template; asked again for every shard."""
    if NUMBER.search(names[0]):
        return tuple(names[0].format(shard=i) for i in range(n))
    return tuple(file for name in names for file in file_names.numbered(name))
