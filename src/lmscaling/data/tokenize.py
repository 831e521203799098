"""From documents to one shard: end-of-text, the tokens of a document, and the next document.

Text is always encoded as ordinary text: a document that contains the words ``<|endoftext|>`` cannot
fake a boundary, so end-of-text tokens mark exactly the starts of documents. A shard is written
completely from one source shard, with any backend, or not at all.
"""

import hashlib
import platform
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lmscaling import __version__
from lmscaling.config.datasets import Corpus, Documents
from lmscaling.config.types import Split
from lmscaling.data import document_positions, encoders, shards, sources, vocabulary
from lmscaling.errors import UserError
from lmscaling.files import described_at, read_json, replacing, write_json

FINGERPRINT_BYTES = 16

BATCH = 250
"""Documents per batch, about half a megabyte of text; larger batches are not faster."""


def tokenize(
    corpus: Corpus,
    split: Split,
    shard: int,
    out: Path,
    source: Path | None = None,
    ranks: Path | None = None,
) -> dict[str, Any]:
    """Tokenize one source shard into ``out`` (``.bin``); the sidecar (``.json``) is written last.

    A validation shard also writes the fingerprints of its documents (``.fingerprints``). A training
    shard drops every document whose fingerprint is in its folder.

    Args:
        corpus: Dataset and tokenizer.
        split: ``"train"`` or ``"validation"``.
        shard: Number of the source shard, from 0.
        out: Path of the shard.
        source: Fetched file, with its description beside it; if None, the row's own files are read.
        ranks: File of the vocabulary.

    Returns:
        The content of the sidecar.

    Raises:
        UserError: The source or the tokenizer cannot be read or is not the expected one, or no
            document remains.
    """
    row = corpus.encoding
    encoder = vocabulary.load(row, ranks)
    encode = encoders.encode_with(row, encoder, ranks, f"{corpus.dataset} {split} {shard}")
    documents = sources.read_shard(corpus, split, shard, source)
    selection = _Selection(
        _validation_fingerprints(out.parent) if split == "train" else set(),
        record=split == "validation",
    )
    lengths = [np.zeros(0, dtype=np.int64)]
    with shards.writing(out, np.dtype(f"<u{row.token_bytes}")) as writer:
        for texts in _batches(selection.filter(documents.texts), BATCH):
            ids = encode(texts)
            lengths.append(ids.lengths + 1)
            writer.write(encoders.joined(ids, row.n_vocab - 1))
        compared = encode.finish() if isinstance(encode, encoders.Compared) else None
        _check_count(corpus, split, shard, selection.n + selection.n_dropped)
        if not selection.n:
            raise UserError(
                f"{corpus.dataset}: the {split} split has no document; add files, or hold out a "
                "larger share"
            )
        origin = _describe_source(corpus, split, shard) | _check_file(documents, source)
    if split == "validation":
        with replacing(out.with_suffix(".fingerprints")) as file:
            file.write(b"".join(selection.fingerprints))
    sidecar = {
        "split": split,
        "tokens": writer.tokens,
        "sha256": writer.sha256,
        **selection.summary(),
        "own_context": document_positions.own_context(np.concatenate(lengths)),
        "source": origin,
        **_describe_tokenizer(corpus, vocabulary.identity(encoder)),
        "compared_documents": compared,
    }
    write_json(out.with_suffix(".json"), sidecar)
    return sidecar


class _Selection:
    """Drops documents by fingerprint, and counts and hashes the others.

    Args:
        dropped: Fingerprints of the documents to drop.
        record: Whether to record the fingerprints of the others.
    """

    def __init__(self, dropped: set[bytes], record: bool) -> None:
        self.dropped, self.record = dropped, record
        self.fingerprints: list[bytes] = []
        self.n = self.n_dropped = self.n_bytes = 0
        self.sha256 = hashlib.sha256()
        """Of the fingerprints of the remaining documents, in order."""

    def filter(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            key = sources.fingerprint(text)
            if key in self.dropped:
                self.n_dropped += 1
                continue
            self.n += 1
            self.n_bytes += sources.n_bytes(text)
            self.sha256.update(key)
            if self.record:
                self.fingerprints.append(key)
            yield text

    def summary(self) -> dict[str, Any]:
        """Fields of the sidecar."""
        return {
            "documents": self.n,
            "bytes": self.n_bytes,
            "documents_dropped": self.n_dropped,
            "documents_sha256": self.sha256.hexdigest(),
        }


def _describe_source(corpus: Corpus, split: Split, shard: int) -> dict[str, Any]:
    row = corpus.source
    common = {"kind": row.kind, "files": row.files(split)[shard], "shard": shard}
    return common | row.provenance(split, shard)


def _describe_tokenizer(corpus: Corpus, identity: dict[str, str]) -> dict[str, Any]:
    """Dataset, tokenizer and versions, as fields of the sidecar."""
    return {
        "dataset": corpus.dataset,
        "tokenizer": corpus.tokenizer,
        "encoding": corpus.encoding.name,
        "end_of_text": corpus.encoding.n_vocab - 1,
        **identity,
        "backend": corpus.encoding.reader,
        "versions": {
            "lmscaling": __version__,
            "python": platform.python_version(),
            **encoders.versions(corpus.encoding),
        },
    }


def _batches(texts: Iterator[str], n: int) -> Iterator[list[str]]:
    while batch := list(islice(texts, n)):
        yield batch


def _check_count(corpus: Corpus, split: Split, shard: int, n: int) -> None:
    """Detect a file that is truncated between two documents, where gzip and JSON are still valid.

    Raises:
        UserError: The row does not allow this number of documents.
    """
    row = corpus.source
    counts = row.document_counts(split)
    if counts and n not in counts:
        raise UserError(
            f"{row.files(split)[shard]} of {corpus.dataset} has {n:,} documents; allowed: "
            f"{' or '.join(f'{count:,}' for count in counts)}; fetch the file again, or correct "
            "documents: in the dataset's row"
        )


def _check_file(documents: Documents, source: Path | None) -> dict[str, Any]:
    """Size and SHA-256 of the file that was read, after a comparison with the fetched file.

    Raises:
        UserError: The file has changed since it was fetched.
    """
    read = documents.describe_file()
    path = source and described_at(source)
    if path is None or not path.is_file():
        return read
    fetched = read_json(path, "description of a fetched file")["sha256"]
    if read["sha256"] != fetched:
        raise UserError(
            f"{source} has SHA-256 {read['sha256']}, but {fetched} when it was fetched; delete it "
            "and run snakemake again to fetch it again"
        )
    return read | {"checked_against": "hub"}


def _validation_fingerprints(folder: Path) -> set[bytes]:
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("validation-*.fingerprints")))
    return {data[i : i + FINGERPRINT_BYTES] for i in range(0, len(data), FINGERPRINT_BYTES)}
