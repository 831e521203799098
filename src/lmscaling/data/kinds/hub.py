"""A dataset repository of the Hugging Face hub: one shard per file."""

from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, JsonValue
from pydantic.dataclasses import dataclass

from lmscaling.config.datasets import Dataset, Documents
from lmscaling.config.types import STRICT, Positive, Split

NOT_TEXT = (
    "shards", "mirror", "documents", "validation_documents", "expected_tokens", "expected_bytes",
)  # fmt: skip
"""Fields that say where the files are, how many and how large, and nothing about their text."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Hub(Dataset):
    """A dataset repository of the Hugging Face hub, or a local folder with the same layout."""

    kind: Literal["hub"]
    repository: str
    """``owner/name`` on the hub, or a local folder written as ``./...``, ``../...`` or ``/...``."""
    revision: str = ""
    """Commit of the repository; required for the hub, where branches move."""
    train: str
    """Path of a training file with ``{shard}`` for its number, as in ``en/{shard:05d}.json.gz``."""
    validation: str
    """Path of a validation file, written like ``train``."""
    text: str = "text"
    """Column that contains the document."""
    shards: Positive
    """Number of training files to tokenize, from file 0. Raising it changes no finished run."""
    validation_shards: Positive = 1
    """Number of validation files to tokenize."""
    mirror: str = ""
    """Local folder with the layout of the repository; files are read there, none is fetched."""
    documents: list[Positive] = field(default_factory=list)
    """Numbers of documents that a complete training file can have; empty for no check."""
    validation_documents: list[Positive] = field(default_factory=list)
    """Numbers of documents that a complete validation file can have; empty for no check."""
    expected_tokens: Annotated[float, Field(gt=0)] | None = None
    """Estimated training tokens of all shards; plans use it until the shards are tokenized."""
    expected_bytes: Annotated[float, Field(gt=0)] | None = None
    """Estimated size of all training files; plans use it until they are fetched."""
    shards_per_job: Positive = 16
    """Number of shards that one job fetches or tokenizes, one after another: a job takes seconds to
    start. No result depends on it."""

    pinned: ClassVar[bool] = True

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
                    "write {shard} or {shard:05d} in place of the number"
                )
        if not self.revision and not self._is_folder:
            raise ValueError(
                f"revision is missing for {self.repository!r} on the hub; "
                "give the commit, because branches move"
            )

    @property
    def _is_folder(self) -> bool:
        return self.repository.startswith((".", "/"))

    @property
    def folder(self) -> str:
        """Local folder that contains the files; empty if they are fetched from the hub."""
        return self.repository if self._is_folder else self.mirror

    @property
    def is_fetched(self) -> bool:
        return not self.folder

    def document_counts(self, split: Split) -> list[int]:
        return self.documents if split == "train" else self.validation_documents

    def files(self, split: Split) -> list[str]:
        n = self.shards if split == "train" else self.validation_shards
        return [getattr(self, split).format(shard=i) for i in range(n)]

    def first(self, n: int) -> Self:
        return replace(self, shards=n, expected_tokens=None, expected_bytes=None)

    def identity(self) -> dict[str, JsonValue]:
        return self._text(*NOT_TEXT)

    def fetch(self, file: str, out: Path) -> dict[str, Any]:
        from lmscaling.data import download

        return download.fetch(self.repository, self.revision, file, out)

    def read(self, split: Split, shard: int, backend: str, file: Path | None) -> Documents:
        from lmscaling.data import sources

        name = self.files(split)[shard]
        path = file or Path(self.folder) / name
        return sources.read_records(path, self.text, backend, f"{name} of {self.repository}")

    def provenance(self, split: Split, shard: int) -> dict[str, Any]:
        return {"repository": self.repository, "revision": self.revision}
