"""From documents to one shard: end-of-text, the tokens of a document, and the next document.

Text is always encoded as ordinary text: a document that contains the words ``<|endoftext|>`` cannot
fake a boundary, so end-of-text tokens mark exactly the starts of documents. A shard is written
completely from one source shard, or not at all.
"""

import platform
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tiktoken import Encoding

from lmscaling import __version__
from lmscaling.config.datasets import Corpus
from lmscaling.config.types import Split
from lmscaling.data import document_positions, documents, encoders, shards, vocabulary
from lmscaling.data.selection import Selection
from lmscaling.data.tokenizer_file import Loaded
from lmscaling.errors import UserError
from lmscaling.files import replacing, write_json

BATCH = 250
"""Documents per batch, about half a megabyte of text; larger batches are not faster."""


def tokenize(
    corpus: Corpus, split: Split, shard: int, out: Path, ranks: Path | None = None
) -> dict[str, Any]:
    """Tokenize one source shard into ``out`` (``.bin``); the sidecar (``.json``) is written last.

    A validation shard also writes what identifies its documents (``.fingerprints``). A training
    shard leaves out the documents that are known in its folder.

    Args:
        corpus: Dataset and tokenizer.
        split: ``"train"`` or ``"validation"``.
        shard: Number of the source shard, from 0.
        out: Path of the shard.
        ranks: File of the vocabulary.

    Returns:
        The content of the sidecar.

    Raises:
        UserError: The source or the tokenizer cannot be read or is not the expected one, or no
            document remains.
    """
    encoder = vocabulary.load(corpus.encoding, ranks)
    if tokens := corpus.source.tokens(split, corpus.encoding.n_vocab - 1):
        counts = _copy(corpus, split, tokens, out)
    else:
        counts = _encode(corpus, split, shard, encoder, out)
    sidecar = {"split": split, **counts, **_describe_tokenizer(corpus, encoder)}
    sidecar["source"] = _describe_source(corpus, split, shard) | counts["source"]
    write_json(out.with_suffix(".json"), sidecar)
    return sidecar


def _encode(
    corpus: Corpus, split: Split, shard: int, encoder: Encoding | Loaded, out: Path
) -> dict[str, Any]:
    """Write the tokens of the documents of a shard; returns fields of the sidecar."""
    read = documents.read_shard(corpus, split, shard)
    selection = Selection(split, out.parent)
    lengths = [np.zeros(0, dtype=np.int64)]
    with shards.writing(out, np.dtype(f"<u{corpus.encoding.token_bytes}")) as writer:
        for texts in _batches(selection.filter(read.texts), BATCH):
            ids = encoders.encode(encoder, texts)
            lengths.append(ids.lengths + 1)
            writer.write(encoders.joined(ids, corpus.encoding.n_vocab - 1))
        _check_count(corpus, split, shard, selection.n_all + sum(read.bad.values()))
        if not selection.n:
            raise UserError(
                f"{corpus.dataset}: the {split} split has no document; add files, or hold out a "
                "larger share"
            )
        origin = read.describe_file()
    selection.write(out)
    return {
        "tokens": writer.tokens,
        "sha256": writer.sha256,
        **selection.summary(),
        "bad_documents": read.bad,
        "own_context": document_positions.own_context(np.concatenate(lengths)),
        "source": origin,
    }


def _copy(corpus: Corpus, split: Split, blocks: Iterator[Any], out: Path) -> dict[str, Any]:
    """Write the tokens of sequences; returns fields of the sidecar."""
    end_of_text = corpus.encoding.n_vocab - 1
    n_documents, position, bins = 0, 0, []
    with shards.writing(out, np.dtype(f"<u{corpus.encoding.token_bytes}")) as writer:
        for block in blocks:
            writer.write(block)
            positions = document_positions.positions(block, end_of_text, position)
            position = int(positions[-1]) + 1
            n_documents += int(np.count_nonzero(block == end_of_text))
            bins.append(np.bincount(document_positions.bins(positions)).tolist())
    if split == "validation":  # without text, no document is known
        with replacing(out.with_suffix(".fingerprints")):
            pass
    return {
        "tokens": writer.tokens,
        "sha256": writer.sha256,
        "documents": n_documents,
        "own_context": document_positions.total(bins),
        "source": {},
    }


def _describe_source(corpus: Corpus, split: Split, shard: int) -> dict[str, Any]:
    row = corpus.source
    common = {"kind": row.kind, "files": row.files(split)[shard], "shard": shard}
    return common | row.provenance(split, shard)


def _describe_tokenizer(corpus: Corpus, encoder: Encoding | Loaded) -> dict[str, Any]:
    """Dataset, tokenizer and versions, as fields of the sidecar."""
    return {
        "dataset": corpus.dataset,
        "tokenizer": corpus.tokenizer,
        "encoding": corpus.encoding.name,
        "end_of_text": corpus.encoding.n_vocab - 1,
        **vocabulary.identity(encoder),
        "versions": {
            "lmscaling": __version__,
            "python": platform.python_version(),
            **encoders.versions(encoder),
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
            f"{' or '.join(f'{count:,}' for count in counts)}; get the file again, or correct "
            "documents: in the dataset's row"
        )
