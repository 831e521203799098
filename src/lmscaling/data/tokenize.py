"""From documents to one shard: end-of-text, the tokens of a document, and the next document.

Text is always encoded as ordinary text: a document that contains the words ``<|endoftext|>`` cannot
fake a boundary, so end-of-text tokens mark exactly the starts of documents. A shard is written
completely from one source shard, with any backend, or not at all.
"""

import platform
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lmscaling import __version__
from lmscaling.config.datasets import Corpus, Documents, Tokens
from lmscaling.config.types import Split
from lmscaling.data import document_positions, encoders, shards, sources, vocabulary
from lmscaling.data.selection import Selection
from lmscaling.errors import UserError
from lmscaling.files import described_at, read_json, replacing, write_json

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

    A validation shard also writes what identifies its documents (``.fingerprints`` and, if near-
    duplicates are left out, ``.ngrams``). A training shard leaves out the documents that are known
    in its folder.

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
    if tokens := corpus.source.tokens(split, shard, row.n_vocab - 1):
        counts = _copy(corpus, split, tokens, out)
    else:
        encode = encoders.encode_with(row, encoder, ranks, f"{corpus.dataset} {split} {shard}")
        counts = _encode(corpus, split, shard, encode, out, source)
    described = _describe_tokenizer(corpus, vocabulary.identity(encoder))
    sidecar = {"split": split, **counts, **described}
    sidecar["source"] = _describe_source(corpus, split, shard) | counts["source"]
    write_json(out.with_suffix(".json"), sidecar)
    return sidecar


def _encode(
    corpus: Corpus,
    split: Split,
    shard: int,
    encode: encoders.Encode | encoders.Compared,
    out: Path,
    source: Path | None,
) -> dict[str, Any]:
    """Write the tokens of the documents of a shard; returns fields of the sidecar."""
    documents = sources.read_shard(corpus, split, shard, source)
    selection = Selection(corpus.source, split, out.parent)
    lengths = [np.zeros(0, dtype=np.int64)]
    with shards.writing(out, np.dtype(f"<u{corpus.encoding.token_bytes}")) as writer:
        for texts in _batches(selection.filter(documents.texts), BATCH):
            ids = encode(texts)
            lengths.append(ids.lengths + 1)
            writer.write(encoders.joined(ids, corpus.encoding.n_vocab - 1))
        compared = encode.finish() if isinstance(encode, encoders.Compared) else None
        _check_count(corpus, split, shard, selection.n_all + sum(documents.bad.values()))
        if not selection.n:
            raise UserError(
                f"{corpus.dataset}: the {split} split has no document; add files, or hold out a "
                "larger share"
            )
        origin = _check_file(documents, source)
    selection.write(out)
    return {
        "tokens": writer.tokens,
        "sha256": writer.sha256,
        **selection.summary(),
        "bad_documents": documents.bad,
        "own_context": document_positions.own_context(np.concatenate(lengths)),
        "source": origin,
        "compared_documents": compared,
    }


def _copy(corpus: Corpus, split: Split, tokens: Tokens, out: Path) -> dict[str, Any]:
    """Write tokens that another program has made; returns fields of the sidecar.

    Raises:
        UserError: A token is not in the vocabulary.
    """
    end_of_text = corpus.encoding.n_vocab - 1
    token = np.dtype(f"<u{corpus.encoding.token_bytes}")
    n_documents, position, bins = 0, tokens.before, []
    with shards.writing(out, token) as writer:
        for block in tokens.blocks:
            if block.max() > end_of_text:
                raise UserError(
                    f"{corpus.dataset} has token {block.max()}; allowed: up to {end_of_text}, "
                    f"which is end-of-text of tokenizer {corpus.tokenizer}"
                )
            writer.write(block.astype(token))
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
        "before": tokens.before,
        "own_context": document_positions.total(bins),
        "source": {},
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
