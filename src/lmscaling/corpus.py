"""From a dataset row to its documents, one source shard at a time.

Training and validation never share a document: a row either names validation files (then
``tokenize`` drops their documents from training, by digest) or holds out a share of its documents
by a hash of the content, so that equal documents always fall on the same side.
"""

import gzip
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from lmscaling.errors import UserError, choose
from lmscaling.fields import Split
from lmscaling.rows import Corpus, Dataset, Hub, Jsonl, Stdlib, Text

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Folders of the standard library that hold other people's code or differ between builds."""

INSTALLED = {"site-packages", "dist-packages"}
"""Names of the folders on Python's path that hold installed packages."""


def digest(text: str) -> bytes:
    """Sixteen bytes that stand for a document's content."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def documents(corpus: Corpus, split: Split, shard: int) -> Iterator[str]:
    """The documents of one source shard, in order.

    Raises:
        UserError: A file is missing, cut short, or holds something else than documents.
    """
    row = corpus.source
    names = row.files(split)
    if not 0 <= shard < len(names):
        raise UserError(f"{corpus.dataset} has {len(names)} {split} shards; there is no {shard}")
    match row:
        case Hub():
            texts = _hub(row, split, names[shard])
        case Jsonl():
            texts = _lines(Path(names[shard]), row.text)
        case Text():
            files = row.train if split == "train" else row.validation or row.train
            texts = (_read(Path(name)) for name in files)
        case Stdlib():
            if split == "validation" and row.validation:
                texts = _lines(Path(names[shard]), "text")
            else:
                texts = _sources(row.packages)
    return _side(texts, row, split)


def _side(texts: Iterator[str], row: Dataset, split: Split) -> Iterator[str]:
    """The share of the documents that belongs to a split, where a row holds some out."""
    if isinstance(row, Hub) or row.validation:
        return texts
    below = int(row.holdout * 2**64)
    wanted = split == "validation"
    return (t for t in texts if (int.from_bytes(digest(t)[:8], "big") < below) == wanted)


def _hub(row: Hub, split: Split, file: str) -> Iterator[str]:
    """Stream one file of a hub repository, or of a local folder laid out like one."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    place = f"{file} of {row.repository}"
    local = Path(row.repository)
    if row.repository.startswith((".", "/")) and not (local / file).is_file():
        raise UserError(f"{place} does not exist; {choose(file, _names(local / file))}")
    try:
        rows = load_dataset(
            row.repository,
            data_files={split: [file]},
            revision=row.revision or None,
            split=split,
            streaming=True,
        )
        for example in rows:
            if not isinstance(example.get(row.text), str):
                raise UserError(f"{place} has no column {row.text!r}; {choose(row.text, example)}")
            yield example[row.text]
    except (OSError, EOFError, DatasetsError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{place} cannot be read: {problem}") from error


def _lines(path: Path, key: str) -> Iterator[str]:
    for number, line in enumerate(_read(path).splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: not valid JSON: {error}") from None
        if not isinstance(record, dict) or not isinstance(record.get(key), str):
            known = record if isinstance(record, dict) else []
            raise UserError(f"{path}, line {number}: no text under {key!r}; {choose(key, known)}")
        yield record[key]


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


def provenance(corpus: Corpus, split: Split, shard: int) -> dict[str, str]:
    """Where the documents of a source shard came from, for its sidecar."""
    row = corpus.source
    origin = {"kind": row.kind, "files": row.files(split)[shard]}
    if isinstance(row, Hub):
        origin |= {"repository": row.repository, "revision": row.revision}
    if isinstance(row, Stdlib):
        origin["python"] = sys.version.split()[0]
    return origin
