"""GPT-2's vocabulary as one checked file: one rank per line, as tiktoken publishes it.

It is fetched once, where there is a network, and every job reads the file. tiktoken's own cache is
in a temporary folder of each node by default, and tiktoken downloads a damaged file again, which
fails in a job without a network.
"""

import base64
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from lmscaling.config.datasets import Tokenizer
from lmscaling.errors import UserError
from lmscaling.files import replacing

SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
"""SHA-256 of GPT-2's ranks, with which tiktoken checks ``r50k_base.tiktoken``."""

END_OF_TEXT = "<|endoftext|>"

PATTERN = r50k_pat_str
"""Pattern that splits text into pieces before GPT-2 merges bytes."""


def fetch(out: Path) -> None:
    """Write the ranks to ``out``, from tiktoken's cache or from the network.

    Raises:
        UserError: Neither has the ranks, or they are not GPT-2's.
    """
    data = b"".join(_lines(_published()._mergeable_ranks))
    _check(data, "tiktoken's gpt2")
    with replacing(out) as file:
        file.write(data)


def encoding(row: Tokenizer, path: Path | None = None) -> tiktoken.Encoding:
    """The encoding of a tokenizer row.

    Args:
        row: The tokenizer.
        path: File of ranks written by ``fetch``; if None, tiktoken uses its cache or the network.
            The encoding ``bytes`` needs no file.

    Raises:
        UserError: The row states another vocabulary size, or the vocabulary is not available.
    """
    if row.encoding == "bytes":
        encoder = tiktoken.Encoding(
            name="bytes",
            pat_str=r"(?s:.{1,64})",  # short pieces are faster; bytes never merge
            mergeable_ranks={bytes([i]): i for i in range(256)},
            special_tokens={END_OF_TEXT: 256},
        )
    elif path:
        ranks = _read(path)
        encoder = tiktoken.Encoding(
            name="gpt2",
            pat_str=PATTERN,
            mergeable_ranks=ranks,
            special_tokens={END_OF_TEXT: len(ranks)},
        )
    else:
        encoder = _published()
    if encoder.n_vocab != row.vocab_size:
        raise UserError(
            f"tokenizer {row.encoding} has {encoder.n_vocab} tokens, but its row states vocab_size "
            f"{row.vocab_size}; write vocab_size: {encoder.n_vocab}"
        )
    return encoder


def identity(encoder: tiktoken.Encoding) -> dict[str, str]:
    """SHA-256 of the ranks and of the pattern that splits text; they determine the ids."""
    ranks = hashlib.sha256()
    for line in _lines(encoder._mergeable_ranks):
        ranks.update(line)
    return {
        "ranks_sha256": ranks.hexdigest(),
        "pattern_sha256": hashlib.sha256(encoder._pat_str.encode()).hexdigest(),
    }


def _published() -> tiktoken.Encoding:
    """GPT-2's encoding from tiktoken, which has two sources; the smaller one is tried first."""
    problem: Exception | None = None
    for name in ("r50k_base", "gpt2"):  # the same ranks
        try:
            return tiktoken.get_encoding(name)
        except (OSError, ValueError) as error:
            problem = error
    raise UserError(
        f"the vocabulary of gpt2 is not available ({type(problem).__name__}); run `python -m "
        "lmscaling vocabulary FILE` where there is a network and copy FILE to "
        "results/<study>/vocabulary/gpt2.tiktoken, or set TIKTOKEN_CACHE_DIR to a folder that "
        f"contains it (now {os.environ.get('TIKTOKEN_CACHE_DIR') or 'not set'})"
    ) from problem


def _lines(ranks: dict[bytes, int]) -> Iterator[bytes]:
    """The lines of tiktoken's file, in the order of the ranks."""
    for token in sorted(ranks, key=ranks.__getitem__):
        yield base64.b64encode(token) + b" %d\n" % ranks[token]


def _read(path: Path) -> dict[bytes, int]:
    if not path.is_file():
        raise UserError(
            f"vocabulary {path} does not exist; create it where there is a network: "
            f"python -m lmscaling vocabulary {path}"
        )
    data = path.read_bytes()
    _check(data, f"vocabulary {path}")
    pairs = (line.split() for line in data.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _check(data: bytes, what: str) -> None:
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != SHA256:
        raise UserError(
            f"{what} has SHA-256 {sha256}, but GPT-2's has {SHA256}; delete it and fetch it again"
        )
