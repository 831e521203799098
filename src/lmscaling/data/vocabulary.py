"""The vocabulary of a tokenizer as one checked file that every job reads.

That of an encoding of OpenAI is a file of ranks, one per line, as tiktoken publishes it, fetched
once, where there is a network. The other kind is a ``tokenizer.json``, see ``tokenizer_file.py``.
"""

import base64
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import tiktoken

from lmscaling.data import tokenizer_file
from lmscaling.data.rows import SIZES, Tokenizer
from lmscaling.data.tokenizer_file import Loaded
from lmscaling.errors import UserError, choose
from lmscaling.files import replacing

END_OF_TEXT, SUFFIX = "<|endoftext|>", ".tiktoken"


class Known(NamedTuple):
    """SHA-256 of the ranks of an encoding, and what splits text before bytes are merged."""

    sha256: str
    pattern: str


ENCODINGS = {
    "bytes": Known(
        "e66088df4cdb28fbad3c55ac5a7ae741bc402e732ed948eb096a8ed6f852768f",
        r"(?s:.{1,64})",  # short pieces are faster; bytes never merge
    ),
    "gpt2": Known(
        "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    ),
}
"""As tiktoken 0.12 states them in ``tiktoken_ext/openai_public.py``."""


def fetch(out: Path) -> None:
    """Write the ranks of the encoding that ``out`` is named after, such as ``gpt2.tiktoken``, from
    tiktoken's cache or the network; UserError if they are not to be had, or not the right ones."""
    known = {f"{name}{SUFFIX}": name for name in SIZES if name != "bytes"}
    if out.name not in known:
        raise UserError(f"{out.name!r} names no vocabulary; {choose(out.name, known)}")
    ranks = _published(known[out.name])
    ordered = sorted(ranks, key=ranks.__getitem__)
    data = b"".join(base64.b64encode(token) + b" %d\n" % ranks[token] for token in ordered)
    _check(data, known[out.name], f"tiktoken's {known[out.name]}")
    with replacing(out) as file:
        file.write(data)


def load(row: Tokenizer, path: Path | None = None) -> tiktoken.Encoding | Loaded:
    """The tokenizer of a row, of any kind; see ``encoding`` and ``tokenizer_file.load``."""
    return encoding(row, path) if row.encoding else tokenizer_file.load(path or Path(row.file), row)


def encoding(row: Tokenizer, path: Path | None = None) -> tiktoken.Encoding:
    """The encoding of a row that names one: of a file of ``fetch``, else of tiktoken's cache or the
    network. UserError if the ranks are not available, or not those of the encoding."""
    if row.name == "bytes":
        ranks = {bytes([i]): i for i in range(256)}
    else:
        ranks = _read(path, row.name) if path else _published(row.name)
    return tiktoken.Encoding(
        name=row.name, pat_str=ENCODINGS[row.name].pattern, mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: SIZES[row.name] - 1},
    )  # fmt: skip


def identity(encoder: tiktoken.Encoding | Loaded) -> dict[str, str]:
    """What determines the ids: SHA-256 of the ranks, or of a ``tokenizer.json``, and of the pattern
    that splits text."""
    if isinstance(encoder, Loaded):
        return {"ranks_sha256": encoder.sha256, "pattern_sha256": ""}
    known = ENCODINGS[encoder.name]
    pattern = hashlib.sha256(known.pattern.encode()).hexdigest()
    return {"ranks_sha256": known.sha256, "pattern_sha256": pattern}


def _published(name: str) -> dict[bytes, int]:
    """Ranks of an encoding from tiktoken, which has those of GPT-2 in two places."""
    problem: Exception | None = None
    for source in ("r50k_base", "gpt2") if name == "gpt2" else (name,):
        try:
            found = tiktoken.get_encoding(source)
        except (OSError, ValueError) as error:
            problem = error
        else:
            return {token: found.encode_single_token(token) for token in found.token_byte_values()}
    raise UserError(
        f"the vocabulary of {name} is not available ({type(problem).__name__}); run "
        f"`lmscaling vocabulary {name}{SUFFIX}` where there is a network and copy this file to "
        "results/<study>/vocabulary/, or set TIKTOKEN_CACHE_DIR to a folder that "
        f"contains it (now {os.environ.get('TIKTOKEN_CACHE_DIR') or 'not set'})"
    ) from problem


def _read(path: Path, name: str) -> dict[bytes, int]:
    if not path.is_file():
        remedy = f"create it where there is a network: lmscaling vocabulary {name}{SUFFIX}"
        raise UserError(f"vocabulary {path} does not exist; {remedy}")
    data = path.read_bytes()
    _check(data, name, f"vocabulary {path}")
    pairs = (line.split() for line in data.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _check(data: bytes, name: str, what: str) -> None:
    sha256, stated = hashlib.sha256(data).hexdigest(), ENCODINGS[name].sha256
    if sha256 != stated:
        found = f"{what} has SHA-256 {sha256}, but {name}'s has {stated}"
        raise UserError(f"{found}; delete it and fetch it again")
