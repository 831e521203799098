"""From documents to one shard: end-of-text, the tokens of a document, and the next document.

Text is always encoded as ordinary text: a document that contains the words ``<|endoftext|>`` cannot
fake a boundary, so end-of-text tokens mark exactly the starts of documents. A shard is written
completely from one source shard, or not at all.
"""

import errno
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tiktoken import Encoding

from lmscaling import __version__
from lmscaling.data import document_positions, documents, shards, vocabulary
from lmscaling.data.documents import Selection
from lmscaling.data.rows import Corpus
from lmscaling.data.shards import Writer
from lmscaling.data.tokenizer_file import Loaded
from lmscaling.errors import UserError
from lmscaling.files import write_json
from lmscaling.types import Split

FULL = {errno.ENOSPC, errno.EDQUOT}

LONG_RUN = re.compile(rf"(\s{{{100_000}}})")

BATCH = 250
"""Documents per batch, about half a megabyte of text; larger batches are not faster."""


def tokenize(
    corpus: Corpus, split: Split, shard: int, out: Path, ranks: Path | None = None
) -> dict[str, Any]:
    """Tokenize a source shard, from 0, into ``out`` (``.bin``); the sidecar is written last.

    A validation shard also writes what identifies its documents (``.fingerprints``). A training
    shard leaves out the documents that are known in its folder. Returns the sidecar (``.json``).

    Raises:
        UserError: The source or the tokenizer, whose file is ``ranks``, cannot be read or is not
            the expected one, or no document remains.
    """
    encoder = vocabulary.load(corpus.encoding, ranks)
    row, encoding = corpus.source, corpus.encoding
    selection = Selection(split, out.parent)
    with shards.writing(out, np.dtype(f"<u{encoding.token_bytes}")) as writer:
        if tokens := row.tokens(split, encoding.n_vocab - 1):
            counts = _copy(corpus, tokens, writer)
        else:
            counts = _encode(corpus, split, shard, encoder, selection, writer)
    selection.write(out)
    package = import_module("tiktoken" if encoding.encoding else "tokenizers")
    sidecar = {
        "split": split,
        "tokens": writer.tokens,
        "sha256": writer.sha256,
        **counts,
        "dataset": corpus.dataset,
        "tokenizer": corpus.tokenizer,
        "encoding": encoding.name,
        "end_of_text": encoding.n_vocab - 1,
        **vocabulary.identity(encoder),
        "versions": {
            "lmscaling": __version__,
            "python": platform.python_version(),
            package.__name__: package.__version__,
        },
        "source": {
            "kind": row.kind,
            "files": row.files(split)[shard],
            "shard": shard,
            **row.provenance(split, shard),
            **counts["source"],
        },
    }
    write_json(out.with_suffix(".json"), sidecar)
    return sidecar


def _encode(
    corpus: Corpus, split: Split, shard: int, encoder: Encoding | Loaded, selection: Selection,
    writer: Writer,
) -> dict[str, Any]:  # fmt: skip
    """Write the tokens of the documents of a shard; returns fields of the sidecar."""
    read = documents.read_shard(corpus, split, shard)
    remaining, lengths = selection.filter(read.texts), list[int]()
    while texts := list(islice(remaining, BATCH)):
        ids = encode(encoder, texts)
        lengths += [len(one) + 1 for one in ids]
        writer.write(joined(ids, corpus.encoding.n_vocab - 1))
    counts, n = corpus.source.document_counts(split), selection.n + selection.n_equal
    if counts and n not in counts:  # the file is truncated between two documents
        raise UserError(
            f"{corpus.source.files(split)[shard]} of {corpus.dataset} has {n:,} documents, and not "
            f"{' or '.join(f'{count:,}' for count in counts)}; get the file again, or correct "
            "documents: in the dataset's row"
        )
    if not selection.n:
        raise UserError(
            f"{corpus.dataset}: the {split} split has no document; name other files under {split}:"
            + ", or hold out a larger share of more documents" * (split == "validation")
        )
    own_context = document_positions.own_context(lengths)
    return {**selection.summary(), "own_context": own_context, "source": read.describe_file()}


def _copy(corpus: Corpus, blocks: Iterator[Any], writer: Writer) -> dict[str, Any]:
    """Write the tokens of sequences; returns fields of the sidecar."""
    n = 0
    for block in blocks:
        writer.write(block)
        n += int(np.count_nonzero(block == corpus.encoding.n_vocab - 1))
    own_context = document_positions.own_context([corpus.source.length or 0] * (n - 1) + [1])
    # The last document is end-of-text alone.
    return {"documents": n, "own_context": own_context, "source": {}}


def tokenize_all(
    corpus: Corpus,
    split: Split,
    shards: Iterable[int],
    folder: Path,
    is_missing: Callable[[int], bool],
    ranks: Path | None = None,
) -> int:
    """Tokenize the missing ones of some shards of a split, with the vocabulary in file ``ranks``;
    ``is_missing`` is asked before each, for another job may make the same ones.

    Returns the number of shards that were missing. UserError if some could not be made; the others
    were.
    """
    n, problems = 0, []
    for shard in filter(is_missing, shards):
        n += 1
        out = folder / f"{split}-{shard:05d}.bin"
        try:
            made = tokenize(corpus, split, shard, out, ranks)
        except UserError as error:
            if is_missing(shard):
                problems.append(f"{corpus.dataset} {split} shard {shard}: {error}")
        except OSError as error:
            if error.errno not in FULL:
                raise
            problems.append(
                f"{corpus.dataset} {split} shard {shard}: {folder}: {error.strerror}; make "
                "room, and run snakemake again, which keeps the shards that are complete"
            )
            break
        else:
            counts = f"{made['tokens']:,} tokens in {made['documents']:,} documents"
            print(f"tokenize: {out}: {counts}", file=sys.stderr, flush=True)
    if len(problems) > 1:
        problems.insert(0, f"{len(problems)} of {n} shards were not made")
    if problems:
        raise UserError("; ".join(problems))
    return n


def borrowed(
    split: Split, numbers: Iterable[int], out: Path, is_missing: Callable[[Path, int], bool]
) -> int:
    """Link those of some shards that another study has of the same text; returns how many. Where a
    file system has no hard links, none is.

    The name of ``out``, ``results/<study>/tokens/<text>``, has a hash of all that shards depend on.
    ``is_missing`` says whether a folder lacks a shard.
    """
    n = 0
    for other in sorted(out.absolute().parents[2].glob(f"*/tokens/{out.name}")):
        for i in numbers:
            if not is_missing(out, i) or is_missing(other, i):
                continue
            files = sorted(
                other.glob(f"{split}-{i:05d}.*"), key=lambda path: path.suffix == ".json"
            )
            try:
                for file in files:  # the sidecar last, as it says that a shard is complete
                    out.mkdir(parents=True, exist_ok=True)
                    (out / file.name).unlink(missing_ok=True)
                    (out / file.name).hardlink_to(file)
            except OSError:
                return n
            n += 1
    return n


def encode(encoder: Encoding | Loaded, texts: list[str]) -> list[np.ndarray]:
    """Ids of some documents, uint32 ``[n]`` of each."""
    if isinstance(encoder, Loaded):  # without the tokens that a post-processor adds
        made = encoder.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(one.ids, dtype=np.uint32) for one in made]
    return [_encoded(encoder, text) for text in texts]


def _encoded(encoder: Encoding, text: str) -> np.ndarray:
    """Ids of one document. A run of white space that tiktoken cannot match is cut into parts."""
    try:
        return encoder.encode_to_numpy(text, disallowed_special=())
    except ValueError:
        parts = [part for part in LONG_RUN.split(text) if part]
        if len(parts) < 2:
            raise
        return np.concatenate([_encoded(encoder, part) for part in parts])


def joined(ids: list[np.ndarray], end_of_text: int) -> np.ndarray:
    """The documents, at least one, as one stream with end-of-text before each: uint16 if that holds
    it, else uint32. UserError if an id is not below that of end-of-text: it would fake a boundary.
    """
    if (largest := max(one.max(initial=0) for one in ids)) >= end_of_text:
        raise UserError(
            f"the tokenizer returned id {largest} for ordinary text; allowed: below {end_of_text}, "
            "the end-of-text token"
        )
    token, start = np.uint16 if end_of_text < 2**16 else np.uint32, [end_of_text]
    return np.concatenate([part for one in ids for part in (start, one)]).astype(token)
