"""From documents to one shard: end-of-text, then the document's tokens, then the next document.

Text is always encoded as ordinary text: a document that contains the words ``<|endoftext|>`` does
not forge a boundary, so the end-of-text token marks exactly the starts of documents. A shard comes
whole from one source file, whatever the backend, or not at all.
"""

import hashlib
import platform
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken

from lmscaling import __version__
from lmscaling.config.datasets import Corpus, Hub
from lmscaling.config.types import Split
from lmscaling.data import document_positions, encoders, shards, vocabulary
from lmscaling.data import sources as corpora
from lmscaling.errors import UserError
from lmscaling.files import described_at, read_json, replacing, write_json

FINGERPRINT_BYTES = 16

BATCH = 250
"""Documents at once: some half a megabyte of text; more are no faster."""


def tokenize(
    corpus: Corpus,
    split: Split,
    shard: int,
    out: Path,
    source: Path | None = None,
    ranks: Path | None = None,
) -> dict[str, Any]:
    """Tokenize one source shard into ``out`` (``.bin``); the sidecar (``.json``) comes last.

    A validation shard also leaves the fingerprints of its documents (``.fingerprints``); a training
    shard drops every document that is among those in its folder.

    Args:
        corpus: Dataset and tokenizer.
        split: ``"train"`` or ``"validation"``.
        shard: Number of the source shard, from 0.
        out: The shard.
        source: File of a hub row as it was fetched, its description beside it; without it the
            file is looked for in the row's own folder.
        ranks: The vocabulary as a file.

    Returns:
        The sidecar's content.

    Raises:
        UserError: The source or the tokenizer cannot be read or is not what it should be, or no
            document is left.
    """
    encoder = vocabulary.encoding(corpus.encoding, ranks)
    encode = encoders.encode_with(
        corpus.encoding, encoder, ranks, f"{corpus.dataset} {split} {shard}"
    )
    opened = corpora.opened(corpus, split, shard, source)
    known = _known(out.parent) if split == "train" else set()
    kept = _Kept(known, keep=split == "validation")
    lengths = [np.zeros(0, dtype=np.int64)]
    with shards.writing(out) as writer:
        for texts in _batches(kept.of(opened.texts), BATCH):
            ids = encode(texts)
            lengths.append(ids.lengths + 1)
            writer.write(encoders.joined(ids, encoder.eot_token))
        compared = encode.finish() if isinstance(encode, encoders.Compared) else None
        _check_count(corpus, split, shard, kept.n + kept.dropped)
        if not kept.n:
            raise UserError(
                f"{corpus.dataset}: the {split} split has no document; give it more files, "
                "or hold out a larger share"
            )
        origin = corpora.provenance(corpus, split, shard) | _checked_file(opened, source)
    if split == "validation":
        with replacing(out.with_suffix(".fingerprints")) as file:
            file.write(b"".join(kept.fingerprints))
    sidecar = {
        "split": split,
        "tokens": writer.tokens,
        "sha256": writer.sha256,
        **kept.described(),
        "own_context": document_positions.own_context(np.concatenate(lengths)),
        "source": origin,
        **_described(corpus, encoder),
        "compared_documents": compared,
    }
    write_json(out.with_suffix(".json"), sidecar)
    return sidecar


class _Kept:
    """The documents that stay, with what is known of all of them.

    Args:
        known: Fingerprints of documents that do not stay.
        keep: Whether the fingerprints of those that stay are kept.
    """

    def __init__(self, known: set[bytes], keep: bool) -> None:
        self.known, self.keep = known, keep
        self.fingerprints: list[bytes] = []
        self.n = self.dropped = 0
        self.sha256 = hashlib.sha256()
        """Of their fingerprints in order."""

    def of(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            key = corpora.fingerprint(text)
            if key in self.known:
                self.dropped += 1
                continue
            self.n += 1
            self.sha256.update(key)
            if self.keep:
                self.fingerprints.append(key)
            yield text

    def described(self) -> dict[str, Any]:
        """What a sidecar says of them."""
        return {
            "documents": self.n,
            "documents_dropped": self.dropped,
            "documents_sha256": self.sha256.hexdigest(),
        }


def _described(corpus: Corpus, encoder: tiktoken.Encoding) -> dict[str, Any]:
    """What a sidecar says of its dataset and tokenizer."""
    return {
        "dataset": corpus.dataset,
        "tokenizer": corpus.tokenizer,
        "encoding": corpus.encoding.encoding,
        "end_of_text": encoder.eot_token,
        **vocabulary.identity(encoder),
        "backend": corpus.encoding.backend,
        "versions": {
            "lmscaling": __version__,
            "python": platform.python_version(),
            **encoders.versions(corpus.encoding),
        },
    }


def _batches(texts: Iterator[str], n: int) -> Iterator[list[str]]:
    while batch := list(islice(texts, n)):
        yield batch


def _check_count(corpus: Corpus, split: Split, shard: int, found: int) -> None:
    """A file that ends too early between two documents is still whole gzip and whole JSON.

    Raises:
        UserError: It has another number of documents than its row allows.
    """
    row = corpus.source
    counts = row.counts(split) if isinstance(row, Hub) else []
    if counts and found not in counts:
        raise UserError(
            f"{row.files(split)[shard]} of {corpus.dataset} has {found:,} documents; allowed: "
            f"{' or '.join(f'{n:,}' for n in counts)}; fetch it again, or mend documents: in the "
            "dataset's row"
        )


def _checked_file(opened: corpora.Source, source: Path | None) -> dict[str, Any]:
    """Size and SHA-256 of the file that was read, compared with what was fetched.

    Raises:
        UserError: The file was changed since it was fetched.
    """
    found = opened.described()
    fetched = source and described_at(source)
    if fetched is None or not fetched.is_file():
        return found
    expected = read_json(fetched, "description of a fetched file")["sha256"]
    if found["sha256"] != expected:
        raise UserError(
            f"{source} has SHA-256 {found['sha256']}, it was fetched with {expected}; delete it "
            "and run snakemake again to fetch it anew"
        )
    return found | {"checked_against": "hub"}


def _known(folder: Path) -> set[bytes]:
    """Fingerprints of all validation documents tokenized into a folder."""
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("validation-*.fingerprints")))
    return {data[i : i + FINGERPRINT_BYTES] for i in range(0, len(data), FINGERPRINT_BYTES)}
