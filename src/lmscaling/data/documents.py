"""Text of files as documents, read as a stream by Hugging Face's ``datasets``.

A file is a path on this machine or an address of the hub, ``hf://datasets/<owner>/<name>@<commit>/
<path>``, and is read while it arrives, with the user's login, mirror and proxy. JSON lines are read
as lines of text and parsed here: the JSON reader of ``datasets`` has one schema for a file, so it
ends at the first line with other keys, and text that looks like a number or a date becomes one.

Training and validation never share a document. A row either lists validation files, whose
documents ``selection`` drops from training, or holds out a share of its documents by a hash of
their content, so that equal documents are always on the same side.
"""

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from lmscaling.config.datasets import Corpus, Documents
from lmscaling.config.types import Split
from lmscaling.errors import UserError, choose
from lmscaling.files import sha256_of

if TYPE_CHECKING:
    from datasets import IterableDataset

LINES = tuple(
    plain + packed for plain in (".json", ".jsonl", ".ndjson") for packed in ("", ".gz", ".zst")
)
"""Ends of the names of files with a JSON object on each line."""

PARQUET = ".parquet"

HUB = "hf://"

BATCH = 250
"""Rows that are decoded at once."""

REMEDY = "get the file again from its source, or write on_bad: skip in the dataset's row"


def digest(text: str) -> bytes:
    """First 16 bytes of the SHA-256 of a document; decides on which side it is held out."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def fingerprint(text: str) -> bytes:
    """Sixteen bytes that identify a document; several times as fast as ``digest``, not secure."""
    return xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass"))


def read_shard(corpus: Corpus, split: Split, shard: int) -> Documents:
    """The documents of one source shard; arguments and errors are those of ``Dataset.read``."""
    n = len(corpus.source.files(split))
    if not 0 <= shard < n:
        raise UserError(
            f"{corpus.dataset} has no {split} shard {shard}; allowed: from 0 to {n - 1}"
        )
    documents = corpus.source.read(split, shard)
    if corpus.source.shuffle == "documents":  # by fingerprints, which ignore what a text is about
        return replace(documents, texts=_sorted(documents.texts))
    return documents


def _sorted(texts: Iterator[str]) -> Iterator[str]:
    yield from sorted(texts, key=fingerprint)


def hold_out(documents: Documents, split: Split, share: float) -> Documents:
    """The documents of one split, where a share of all documents is held out for validation."""
    below = int(share * 2**64)
    held = split == "validation"
    texts = (
        text
        for text in documents.texts
        if (int.from_bytes(digest(text)[:8], "big") < below) == held
    )
    return replace(documents, texts=texts)


def of_files(paths: list[str]) -> Documents:
    """Plain-text files, plain or compressed, as a document each, with ``\\n`` at the end of lines.
    Bytes of plain files that are not UTF-8 become the replacement character."""
    options = {"sample_by": "document", "encoding_errors": "replace"}
    return Documents(text for path in paths for [text] in _rows("text", path, ["text"], **options))


def of_records(path: str, key: str, bad_share: float = 0.0) -> Documents:
    """The documents of a file with one record per document.

    Args:
        path: JSON lines or Parquet, by the end of the name.
        key: Key or column that contains the document.
        bad_share: Largest share of documents that cannot be read and are left out; 0 for none.
    """
    bad: dict[str, int] = {}
    if not path.endswith((*LINES, PARQUET)):
        raise UserError(
            f"dataset file {path} has a name of no known format; allowed: names that end in "
            f"{', '.join(LINES)} or {PARQUET}"
        )
    values = _of_parquet(path, key) if path.endswith(PARQUET) else _of_lines(path, key)
    return Documents(_good(values, path, bad_share, bad), lambda: _described(path), bad)


def _described(path: str) -> dict[str, Any]:
    """Size and SHA-256 of a local file; a commit of the hub names its content."""
    if path.startswith(HUB):
        return {}
    return {"bytes": Path(path).stat().st_size, "sha256": sha256_of(Path(path))}


class _Bad(str):
    """In place of a document: why it cannot be read."""


def _good(values: Iterator[str], path: str, bad_share: float, bad: dict[str, int]) -> Iterator[str]:
    """The documents among ``values``; the others are counted by reason.

    Raises:
        UserError: More than the allowed share is bad, or the last one, where a file was cut off.
    """
    n, last, first = 0, "", ""
    for n, last in enumerate(values, 1):
        if isinstance(last, _Bad):
            first = first or f"{path}, document {n}: {last}; {REMEDY}"
            if not bad_share:
                raise UserError(first)
            bad[last.partition(":")[0]] = bad.get(last.partition(":")[0], 0) + 1
        else:
            yield last
    if isinstance(last, _Bad) and last.startswith("no JSON"):
        raise UserError(f"{path} ends inside a document; get the file again from its source")
    if (left_out := sum(bad.values())) > bad_share * n:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in bad.items())
        raise UserError(
            f"{path}: {left_out:,} of {n:,} documents cannot be read ({reasons}); allowed: a share "
            f"of {bad_share:g}, bad_share: in the dataset's row; the first: {first}"
        )


def _of_lines(path: str, key: str) -> Iterator[str]:
    for [line] in _rows("text", path, ["text"]):
        if line and not line.isspace():
            yield _parsed(line, key)


def _parsed(line: str, key: str) -> str:
    """The document of a line of JSON."""
    import json

    import orjson

    try:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:  # it refuses lone surrogates, which tiktoken replaces
            record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _Bad(f"no JSON: {error}")
    text = record.get(key) if isinstance(record, dict) else None
    if isinstance(text, str):
        return (
            text
            if text.isascii()
            else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        )
    if isinstance(record, dict) and key in record:
        return _Bad(f"{'null' if text is None else type(text).__name__} in place of text: {key!r}")
    keys = record if isinstance(record, dict) else []
    return _Bad(f"no text: under {key!r}; {choose(key, keys)}; set text: in the dataset's row")


def _of_parquet(path: str, column: str) -> Iterator[str]:
    for [value] in _rows("parquet", path, [column], columns=[column], batch_size=BATCH):
        yield _Bad(f"null in place of text: {column!r}") if value is None else value


def _rows(reader: str, path: str, columns: list[str], **options: Any) -> Iterator[tuple[Any, ...]]:
    """Rows of the columns of a file, one after another.

    Raises:
        UserError: The file is not there, cannot be read or has no such columns of text.
    """
    try:
        stream = _opened(reader, path, **options)
        _check(stream, reader, path, columns)
        for table in stream.with_format("arrow").iter(BATCH):
            yield from zip(*(table[name].to_pylist() for name in columns), strict=True)
    except UserError:
        raise
    except Exception as error:  # every format, file system and the hub have errors of their own
        raise UserError(_sentence(path, error)) from error


def _opened(reader: str, path: str, **options: Any) -> "IterableDataset":
    """A file as a stream of ``datasets``; nothing of it is stored."""
    if not path.startswith(HUB) and not os.path.isfile(path):
        folder = Path(path).parent
        names = sorted(p.name for p in folder.iterdir())[:20] if folder.is_dir() else []
        raise UserError(f"dataset file {path} does not exist; {choose(Path(path).name, names)}")
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            "text is read by the package datasets, which is not installed; pip install datasets"
        ) from error
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # it logs what it raises
    files = {"train": [path if path.startswith(HUB) else os.path.abspath(path)]}
    return datasets.load_dataset(reader, data_files=files, split="train", streaming=True, **options)


def _check(stream: "IterableDataset", reader: str, path: str, columns: list[str]) -> None:
    """Check that a Parquet file has these columns, and that they are text."""
    for name in columns if reader == "parquet" else ():
        kind = (stream.features or {}).get(name)
        if kind is None:
            known = _opened(reader, path).features or {}
            raise UserError(
                f"{path} has no column {name!r}; {choose(name, known)}; set text: in the dataset's "
                "row"
            )
        if (type_ := getattr(kind, "dtype", "")) not in ("string", "large_string"):
            raise UserError(
                f"column {name!r} of {path} has type {type_ or kind}; allowed: string; set text: "
                "in the dataset's row"
            )


def _sentence(path: str, error: Exception) -> str:
    """What is wrong with a file and what to do about it."""
    name = type(error).__name__
    problem = " ".join(str(error).split())[:300] or name
    if not path.startswith(HUB):
        return f"{path} cannot be read: {problem}; get the file again from its source"
    mirror = "or set mirror: in the dataset's row to a local folder with the repository"
    remedy = "run snakemake again when the hub can be reached"
    if name in ("GatedRepoError", "RepositoryNotFoundError", "DatasetNotFoundError"):
        remedy = "correct repository: in the dataset's row, or log in with `hf auth login`"
    elif name == "RevisionNotFoundError":
        remedy = "correct revision: in the dataset's row"
    elif isinstance(error, FileNotFoundError):
        remedy = "correct train: or validation: in the dataset's row"
    elif name in ("OfflineModeIsEnabled", "OfflineModeError"):
        remedy = "unset HF_HUB_OFFLINE"
    return f"{path} cannot be read: {problem}; {remedy}, {mirror}"
