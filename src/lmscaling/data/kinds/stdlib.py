"""The Python sources on this machine: real text that needs no download."""

import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from lmscaling.data import file_names
from lmscaling.data.dataset import Dataset, Documents
from lmscaling.types import STRICT, Flag, HeldOut, Positive, Split

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Folders of the standard library with third-party code, or that differ between builds."""

INSTALLED = {"site-packages", "dist-packages"}
"""Names of the folders on Python's path that contain installed packages."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stdlib(Dataset):
    """The source files of the running Python's standard library: real text on every machine."""

    kind: Literal["stdlib"]
    most_files: Positive | None = None
    """Most source files of each split, the first by content hash; by default all."""
    packages: Flag = False
    """Whether sources of installed packages are read as well; the text then differs by machine."""
    validation: list[str] = field(default_factory=list)
    """Validation files, JSON lines with the document under ``text``; if empty, ``holdout`` of the
    source files is held out."""
    holdout: HeldOut = 0.05
    """Share of files held out, chosen by content hash, if ``validation`` is empty."""

    def local(self) -> list[tuple[str, str]]:
        return [("validation", path) for path in self.validation]

    def most_tokens(self, split: Split) -> float | None:
        if split == "validation" and self.validation:
            return file_names.most_tokens(self.validation)
        if self.packages:
            return None
        sizes = sorted((p.stat().st_size for p in _sources()), reverse=True)
        # Thousands of files are held out by chance: no share is twice what it should be.
        most = sum(sizes) * (2 * self.holdout if split == "validation" else 1.0)
        longest = sizes[: self.most_files]
        return min(most, sum(longest) + len(longest))  # with the token at the end of each

    def files(self, split: Split) -> list[str]:
        return (self.validation if split == "validation" else []) or ["stdlib"]

    def read(self, split: Split, shard: int) -> Documents:
        from lmscaling.data import documents

        if split == "validation" and self.validation:
            return documents.of_records(self.validation[shard], "text")
        found = Documents(_modules(self.packages))
        if not self.validation:
            found = documents.hold_out(found, split, self.holdout)
        return replace(found, texts=islice(found.texts, self.most_files))

    def provenance(self, split: Split, shard: int) -> dict[str, Any]:
        return {"python": sys.version.split()[0]}


def _sources() -> list[Path]:
    """Source files of the standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return [p for p in root.rglob("*.py") if not LEFT_OUT & {*p.relative_to(root).parts[:-1]}]


def _modules(packages: Flag) -> Iterator[str]:
    """Distinct modules of the running Python, ordered by content so that paths do not matter."""
    from lmscaling.data.documents import digest

    paths = _sources()
    if packages:
        folders = {Path(p).resolve() for p in sys.path if Path(p).name in INSTALLED}
        paths += [p for folder in sorted(folders) for p in folder.rglob("*.py") if p.is_file()]
    distinct: dict[bytes, Path] = {}  # paths, because the texts would fill the memory
    for path in paths:
        distinct.setdefault(digest(path.read_bytes().decode("utf-8", "replace")), path)
    yield from (distinct[key].read_bytes().decode("utf-8", "replace") for key in sorted(distinct))
