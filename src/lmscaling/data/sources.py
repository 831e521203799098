"""From a dataset row to its documents, one source shard at a time.

Training and validation never share a document: a row either names validation files (then
``tokenize`` drops their documents from training, by digest) or holds out a share of its documents
by a hash of the content, so that equal documents always fall on the same side.
"""

import gzip
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from lmscaling.config.datasets import Corpus, Dataset, Folder, Hub, Jsonl, Stdlib, Text
from lmscaling.config.types import Split
from lmscaling.data.jsonlines import SUFFIXES, Lines
from lmscaling.errors import UserError, choose
from lmscaling.files import sha256_of

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Folders of the standard library that hold other people's code or differ between builds."""

INSTALLED = {"site-packages", "dist-packages"}
"""Names of the folders on Python's path that hold installed packages."""


def digest(text: str) -> bytes:
    """Sixteen bytes that stand for a document's content, wherever its place depends on it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def fingerprint(text: str) -> bytes:
    """Sixteen bytes that tell documents apart, several times as fast as a digest; no secret."""
    return xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass"))


@dataclass
class Source:
    """One source shard while it is read."""

    texts: Iterator[str]
    """Its documents that belong to the split."""
    path: Path | None = None
    """The file that is read, if it is one."""
    lines: Lines | None = None
    """Its reader, if that hashes what it reads."""

    def described(self) -> dict[str, Any]:
        """Size and SHA-256 of the file, once its documents were read; nothing if it is not one."""
        if self.lines is not None:
            return {"bytes": self.lines.bytes, "sha256": self.lines.sha256}
        if self.path is not None:
            return {"bytes": self.path.stat().st_size, "sha256": sha256_of(self.path)}
        return {}


def opened(corpus: Corpus, split: Split, shard: int, file: Path | None = None) -> Source:
    """A source shard about to be read; its documents come in order.

    Args:
        corpus: What is read.
        split: ``"train"`` or ``"validation"``.
        shard: Number of the source shard, from 0.
        file: Where a hub row's file lies, if not in the row's own folder.

    Raises:
        UserError: Now or while the documents are read: a file is missing, cut short, or holds
            something else than documents.
    """
    row = corpus.source
    names = row.files(split)
    if not 0 <= shard < len(names):
        raise UserError(f"{corpus.dataset} has {len(names)} {split} shards; there is no {shard}")
    path = None
    match row:
        case Hub():
            path = file or Path(row.folder) / names[shard]
            _check_file(path, f"{names[shard]} of {row.repository}")
            texts = _records(path, row.text, corpus.encoding.backend)
        case Jsonl():
            path = Path(names[shard])
            _check_file(path, f"dataset file {path}")
            texts = _records(path, row.text, corpus.encoding.backend)
        case Text():
            files = row.train if split == "train" else row.validation or row.train
            texts = (_read(Path(name)) for name in files)
        case Folder():
            texts = map(_read, _files(row, split, shard))
        case Stdlib():
            if split == "validation" and row.validation:
                path = Path(names[shard])
                _check_file(path, f"dataset file {path}")
                texts = _records(path, "text", corpus.encoding.backend)
            else:
                texts = _sources(row.packages)
    lines = texts if isinstance(texts, Lines) else None
    return Source(_side(iter(texts), row, split), path, lines)


def _records(path: Path, key: str, backend: str) -> Iterable[str]:
    """The documents of a file with one a row."""
    if path.name.endswith(SUFFIXES) and backend != "simple":
        return Lines(path, key)
    return through_datasets(path, key)


def _check_file(path: Path, what: str) -> None:
    """A file that is missing is named with its neighbours before anything is written."""
    if not path.is_file():
        raise UserError(f"{what} does not exist; {choose(path.name, _names(path))}")


def _side(texts: Iterator[str], row: Dataset, split: Split) -> Iterator[str]:
    """The share of the documents that belongs to a split, where a row holds some out."""
    if isinstance(row, Hub) or row.validation:
        return texts
    below = int(row.holdout * 2**64)
    wanted = split == "validation"
    return (t for t in texts if (int.from_bytes(digest(t)[:8], "big") < below) == wanted)


def through_datasets(path: Path, column: str) -> Iterator[str]:
    """One document at a time, from any format that ``datasets`` knows by the file's ending."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset(
            str(path.parent), data_files={"train": [path.name]}, split="train", streaming=True
        )
        for example in rows:
            if not isinstance(example.get(column), str):
                raise UserError(f"{path} has no column {column!r}; {choose(column, example)}")
            yield example[column]
    except (OSError, EOFError, DatasetsError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read: {problem}") from error


def _files(row: Folder, split: Split, shard: int) -> list[Path]:
    """The files of one shard of a folder, in order of names."""
    folder, start, stop = row.parts(split)[shard]
    found = sorted(Path(folder).glob(row.pattern), key=lambda path: path.name)
    if not found:
        raise UserError(f"no file {row.pattern} lies in {folder}; correct the row, or fetch them")
    if len(found) < (stop or 0):
        raise UserError(
            f"{folder} has {len(found)} files {row.pattern}, shard {shard} is made from "
            f"{start + 1} to {stop}; lower n_files to {len(found)}, or fetch the others"
        )
    return found[start:stop]


def _read(path: Path) -> str:
    """A text file, plain or gzip; bytes that are no UTF-8 become the replacement character."""
    if not path.is_file():
        raise UserError(f"dataset file {path} does not exist; {choose(path.name, _names(path))}")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise UserError(f"dataset file {path} is not whole gzip: {error}") from error
    return data.decode("utf-8", "replace")


def _names(path: Path) -> list[str]:
    """What does lie in the folder where a file is missing."""
    folder = path.parent
    return sorted(p.name for p in folder.iterdir())[:20] if folder.is_dir() else []


def _sources(packages: bool) -> Iterator[str]:
    """Modules of the running Python, ordered by content so that paths do not matter."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in root.rglob("*.py") if not LEFT_OUT & {*p.relative_to(root).parts[:-1]}]
    if packages:
        folders = {Path(p).resolve() for p in sys.path if Path(p).name in INSTALLED}
        files += [p for folder in sorted(folders) for p in folder.rglob("*.py") if p.is_file()]
    found: dict[bytes, Path] = {}  # not the texts, which would fill the memory
    for path in files:
        found.setdefault(digest(_read(path)), path)
    yield from (_read(found[key]) for key in sorted(found))


def provenance(corpus: Corpus, split: Split, shard: int) -> dict[str, Any]:
    """Where the documents of a source shard came from, for its sidecar."""
    row = corpus.source
    origin: dict[str, Any] = {"kind": row.kind, "files": row.files(split)[shard], "shard": shard}
    if isinstance(row, Hub):
        origin |= {"repository": row.repository, "revision": row.revision}
    if isinstance(row, Folder):
        names = [path.name for path in _files(row, split, shard)]
        origin |= {"first": names[0], "last": names[-1]}
    if isinstance(row, Stdlib):
        origin["python"] = sys.version.split()[0]
    return origin
