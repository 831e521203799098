"""Readers that the kinds of datasets share: records, text files and held-out documents.

Training and validation never share a document. A row either lists validation files, whose
documents ``tokenize`` then drops from training, or holds out a share of its documents by a hash of
their content, so that equal documents are always on the same side.
"""

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import xxhash

from lmscaling.config.datasets import Corpus, Documents
from lmscaling.config.types import Split
from lmscaling.data import jsonlines
from lmscaling.data.bad_documents import BadDocuments
from lmscaling.errors import UserError, choose
from lmscaling.files import sha256_of


def digest(text: str) -> bytes:
    """First 16 bytes of the SHA-256 of a document; decides on which side it is held out."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def fingerprint(text: str) -> bytes:
    """Sixteen bytes that identify a document; several times as fast as ``digest``, not secure."""
    return xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass"))


def n_bytes(text: str) -> int:
    """Length of a document in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def read_shard(corpus: Corpus, split: Split, shard: int, file: Path | None = None) -> Documents:
    """The documents of one source shard; arguments and errors are those of ``Dataset.read``."""
    n = len(corpus.source.files(split))
    if not 0 <= shard < n:
        raise UserError(
            f"{corpus.dataset} has no {split} shard {shard}; allowed: from 0 to {n - 1}"
        )
    documents = corpus.source.read(split, shard, file)
    if corpus.source.shuffle == "documents":
        return replace(documents, texts=_shuffled(documents.texts))
    return documents


def _shuffled(texts: Iterator[str]) -> Iterator[str]:
    """The documents in the order of their fingerprints, which has nothing to do with their text."""
    yield from sorted(texts, key=fingerprint)


def read_records(path: Path, key: str, bad_share: float = 0.0, what: str = "") -> Documents:
    """The documents of a file with one record per document.

    Args:
        path: JSON lines or Parquet, by the end of the name.
        key: Key or column that contains the document.
        bad_share: Largest share of documents that cannot be read and are left out; 0 for none.
        what: Name of the file in error messages; the path if empty.
    """
    _check_file(path, what or f"dataset file {path}")
    bad = BadDocuments(bad_share)
    if path.name.endswith(jsonlines.SUFFIXES):
        lines = jsonlines.Lines(path, key, bad)
        return Documents(
            iter(lines), lambda: {"bytes": lines.bytes, "sha256": lines.sha256}, bad.counts
        )
    if path.name.endswith(".parquet"):
        from lmscaling.data import parquet

        return Documents(
            parquet.texts(path, key, bad),
            lambda: {"bytes": path.stat().st_size, "sha256": sha256_of(path)},
            bad.counts,
        )
    raise UserError(
        f"dataset file {path} has a name of no known format; allowed: names that end in "
        f"{', '.join(jsonlines.SUFFIXES)} or .parquet"
    )


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


def read_text(path: Path) -> str:
    """A text file, plain or gzip; bytes that are not UTF-8 become the replacement character."""
    _check_file(path, f"dataset file {path}")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise UserError(
            f"dataset file {path} is not valid gzip: {error}; get the file again from its source"
        ) from error
    return data.decode("utf-8", "replace")


def _check_file(path: Path, what: str) -> None:
    if not path.is_file():
        folder = path.parent
        names = sorted(p.name for p in folder.iterdir())[:20] if folder.is_dir() else []
        raise UserError(f"{what} does not exist; {choose(path.name, names)}")
