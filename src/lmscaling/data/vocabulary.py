"""GPT-2's vocabulary as one checked file: a rank a line, as tiktoken publishes it.

It is fetched once, where there is a network, and handed to every job as a file: tiktoken's own
cache lies in a temporary folder of each node by default, and a wrong file in it is deleted and
downloaded anew, which a job without network cannot do.
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
"""Of the ranks: tiktoken's own check of ``r50k_base.tiktoken``, which has the ranks of GPT-2."""

END_OF_TEXT = "<|endoftext|>"

PATTERN = r50k_pat_str
"""How GPT-2 cuts text into pieces before it merges bytes."""


def fetch(out: Path) -> None:
    """Write the ranks to ``out``, from tiktoken's cache or from the network.

    Raises:
        UserError: Neither has them, or they are not GPT-2's.
    """
    data = b"".join(_lines(_published()._mergeable_ranks))
    _check(data, "tiktoken's gpt2")
    with replacing(out) as file:
        file.write(data)


def encoding(row: Tokenizer, path: Path | None = None) -> tiktoken.Encoding:
    """The encoding of a tokenizer row.

    Args:
        row: The tokenizer.
        path: Ranks as ``fetch`` wrote them; without it tiktoken looks in its cache and then in
            the network. The encoding ``bytes`` needs none.

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
    elif path:
        ranks = _read(path)
        found = tiktoken.Encoding(
            name="gpt2",
            pat_str=PATTERN,
            mergeable_ranks=ranks,
            special_tokens={END_OF_TEXT: len(ranks)},
        )
    else:
        found = _published()
    if found.n_vocab != row.vocab_size:
        raise UserError(
            f"tokenizer {row.encoding} has {found.n_vocab} tokens, "
            f"its row says vocab_size {row.vocab_size}; write {found.n_vocab}"
        )
    return found


def identity(encoder: tiktoken.Encoding) -> dict[str, str]:
    """What the ids depend on: SHA-256 of the ranks and of the pattern that cuts text."""
    ranks = hashlib.sha256()
    for line in _lines(encoder._mergeable_ranks):
        ranks.update(line)
    return {
        "ranks_sha256": ranks.hexdigest(),
        "pattern_sha256": hashlib.sha256(encoder._pat_str.encode()).hexdigest(),
    }


def _published() -> tiktoken.Encoding:
    """GPT-2's encoding through tiktoken; the smaller of its two sources first."""
    problem: Exception | None = None
    for name in ("r50k_base", "gpt2"):  # the same ranks
        try:
            return tiktoken.get_encoding(name)
        except (OSError, ValueError) as error:
            problem = error
    raise UserError(
        f"the vocabulary of gpt2 cannot be reached ({type(problem).__name__}); run `python -m "
        "lmscaling vocabulary FILE` where there is a network and copy FILE to "
        "results/<study>/vocabulary/gpt2.tiktoken, or set TIKTOKEN_CACHE_DIR to a folder that has "
        f"it (now {os.environ.get('TIKTOKEN_CACHE_DIR') or 'not set'})"
    ) from problem


def _lines(ranks: dict[bytes, int]) -> Iterator[bytes]:
    """The lines of tiktoken's file, in order of ranks."""
    for token in sorted(ranks, key=ranks.__getitem__):
        yield base64.b64encode(token) + b" %d\n" % ranks[token]


def _read(path: Path) -> dict[bytes, int]:
    if not path.is_file():
        raise UserError(
            f"vocabulary {path} does not exist; make it where there is a network: "
            f"python -m lmscaling vocabulary {path}"
        )
    data = path.read_bytes()
    _check(data, f"vocabulary {path}")
    pairs = (line.split() for line in data.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _check(data: bytes, what: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise UserError(
            f"{what} has SHA-256 {found}, GPT-2's has {SHA256}; delete it and fetch it again"
        )
