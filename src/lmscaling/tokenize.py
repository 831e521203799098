"""From documents to one shard: end-of-text, then the document's tokens, then the next document.

Text is always encoded as ordinary text: a document that contains the words ``<|endoftext|>`` does
not forge a boundary, so the end-of-text token marks exactly the starts of documents.
"""

import hashlib
import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken

from lmscaling import __version__, shards
from lmscaling import corpus as corpora
from lmscaling.errors import UserError
from lmscaling.fields import Split
from lmscaling.files import replacing, write_json
from lmscaling.rows import Corpus, Tokenizer

END_OF_TEXT = "<|endoftext|>"
DIGEST_BYTES = 16


def encoding(row: Tokenizer) -> tiktoken.Encoding:
    """The encoding of a tokenizer row.

    Raises:
        UserError: Its size is not the row's, or its vocabulary cannot be had.
    """
    if row.encoding == "bytes":
        found = tiktoken.Encoding(
            name="bytes",
            pat_str=r"(?s:.{1,64})",  # pieces are cut short only for speed: nothing ever merges
            mergeable_ranks={bytes([i]): i for i in range(256)},
            special_tokens={END_OF_TEXT: 256},
        )
    else:
        try:
            found = tiktoken.get_encoding(row.encoding)
        except OSError as error:
            raise UserError(
                f"the vocabulary of {row.encoding} cannot be downloaded; connect once, or set "
                f"TIKTOKEN_CACHE_DIR to a folder that has it (now {_cache()})"
            ) from error
    if found.n_vocab != row.vocab_size:
        raise UserError(
            f"tokenizer {row.encoding} has {found.n_vocab} tokens, "
            f"its row says vocab_size {row.vocab_size}; write {found.n_vocab}"
        )
    return found


def _cache() -> str:
    return os.environ.get("TIKTOKEN_CACHE_DIR") or "not set"


def tokenize(corpus: Corpus, split: Split, shard: int, out: Path) -> dict[str, Any]:
    """Tokenize one source shard into ``out`` (``.bin``); the sidecar (``.json``) comes last.

    A validation shard also leaves the digests of its documents (``.digests``); a training shard
    drops every document that is among those in its folder.

    Returns:
        The sidecar's content.

    Raises:
        UserError: The source or the tokenizer cannot be read, or no document is left.
    """
    encoder = encoding(corpus.encoding)
    known = _known_digests(out.parent) if split == "train" else set()
    seen: list[bytes] = []
    dropped = 0
    text_hash = hashlib.sha256()

    def pieces() -> Iterator[np.ndarray]:
        nonlocal dropped
        separator = np.array([encoder.eot_token], dtype=np.uint16)
        for text in corpora.documents(corpus, split, shard):
            key = corpora.digest(text)
            if key in known:
                dropped += 1
                continue
            seen.append(key)
            text_hash.update(key)
            yield separator
            yield encoder.encode_to_numpy(text, disallowed_special=()).astype(np.uint16)

    n_tokens, sha256 = shards.write(out, pieces())
    if not seen:
        out.unlink()
        raise UserError(
            f"{corpus.dataset}: the {split} split has no document; give it more files, "
            "or hold out a larger share"
        )
    if split == "validation":
        with replacing(out.with_suffix(".digests")) as file:
            file.write(b"".join(seen))
    sidecar = {
        "split": split,
        "tokens": n_tokens,
        "documents": len(seen),
        "documents_dropped": dropped,
        "sha256": sha256,
        "documents_sha256": text_hash.hexdigest(),
        "dataset": corpus.dataset,
        "source": corpora.provenance(corpus, split, shard),
        "tokenizer": corpus.tokenizer,
        "encoding": corpus.encoding.encoding,
        "end_of_text": encoder.eot_token,
        "versions": {
            "lmscaling": __version__,
            "python": platform.python_version(),
            "tiktoken": version("tiktoken"),
        },
    }
    write_json(out.with_suffix(".json"), sidecar)
    return sidecar


def _known_digests(folder: Path) -> set[bytes]:
    """Digests of all validation documents tokenized into a folder."""
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("validation-*.digests")))
    return {data[i : i + DIGEST_BYTES] for i in range(0, len(data), DIGEST_BYTES)}
