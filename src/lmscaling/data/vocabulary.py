"""The vocabulary of a tokenizer as one checked file that every job reads.

That of an encoding of OpenAI is a file of ranks, one per line, as tiktoken publishes it. It is
fetched once, where there is a network. tiktoken's own cache is in a temporary folder of each node
by default, and tiktoken downloads a damaged file again, which fails in a job without a network. The
other kind is a ``tokenizer.json``, see ``tokenizer_file.py``.
"""

import base64
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import tiktoken
from tiktoken_ext import openai_public

from lmscaling.config.datasets import SIZES, Tokenizer
from lmscaling.data import tokenizer_file
from lmscaling.data.tokenizer_file import Loaded
from lmscaling.errors import UserError, choose
from lmscaling.files import replacing

END_OF_TEXT = "<|endoftext|>"

SOURCES = {"gpt2": ("r50k_base", "gpt2")}
"""Names under which tiktoken has the ranks of an encoding, the smallest file first."""

SUFFIX = ".tiktoken"


def fetch(out: Path) -> None:
    """Write the ranks of the encoding that ``out`` is named after, such as ``gpt2.tiktoken``, from
    tiktoken's cache or from the network.

    Raises:
        UserError: Neither has the ranks, they are not those of the encoding, or there is none of
            that name.
    """
    known = {f"{name}{SUFFIX}": name for name in SIZES if name != "bytes"}
    if out.name not in known:
        raise UserError(f"{out.name!r} names no vocabulary; {choose(out.name, known)}")
    name = known[out.name]
    data = b"".join(_lines(_published(name)._mergeable_ranks))
    _check(data, name, f"tiktoken's {name}")
    with replacing(out) as file:
        file.write(data)


def load(row: Tokenizer, path: Path | None = None) -> tiktoken.Encoding | Loaded:
    """The tokenizer of a row, of any kind; see ``encoding`` and ``tokenizer_file.load``."""
    return encoding(row, path) if row.encoding else tokenizer_file.load(row, path)


def encoding(row: Tokenizer, path: Path | None = None) -> tiktoken.Encoding:
    """The encoding of a row that names one.

    Args:
        row: The tokenizer.
        path: File of ranks written by ``fetch``; if None, tiktoken uses its cache or the network.
            The encoding ``bytes`` needs no file.

    Raises:
        UserError: The vocabulary is not available, or not that of the encoding.
    """
    if row.name == "bytes":
        # Short pieces are faster; bytes never merge.
        return _built("bytes", {bytes([i]): i for i in range(256)}, r"(?s:.{1,64})")
    if path:
        return _built(row.name, _read(path, row.name), _stated(row.name)["pat_str"])
    published = _published(row.name)
    return _built(row.name, published._mergeable_ranks, published._pat_str)


def _built(name: str, ranks: dict[bytes, int], pattern: str) -> tiktoken.Encoding:
    end_of_text = {END_OF_TEXT: SIZES[name] - 1}
    return tiktoken.Encoding(
        name=name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=end_of_text
    )


def identity(encoder: tiktoken.Encoding | Loaded) -> dict[str, str]:
    """What determines the ids: SHA-256 of the ranks and of the pattern that splits text, or that of
    a ``tokenizer.json``, which contains its pattern."""
    if isinstance(encoder, Loaded):
        return {"ranks_sha256": encoder.sha256, "pattern_sha256": ""}
    ranks = hashlib.sha256()
    for line in _lines(encoder._mergeable_ranks):
        ranks.update(line)
    return {
        "ranks_sha256": ranks.hexdigest(),
        "pattern_sha256": hashlib.sha256(encoder._pat_str.encode()).hexdigest(),
    }


def _stated(name: str) -> dict[str, Any]:
    """What tiktoken says of an encoding: the pattern that splits text into pieces before bytes are
    merged (``pat_str``), and the SHA-256 of the file of ranks (``sha256``).

    tiktoken has both only inside the function that also loads the ranks, so this calls that
    function with a loader that loads nothing.
    """
    stated = {}

    def load_nothing(url: str, expected_hash: str) -> dict[bytes, int]:
        stated["sha256"] = expected_hash
        return {}

    make: Any = getattr(openai_public, SOURCES.get(name, (name,))[0])
    around = vars(openai_public) | {"load_tiktoken_bpe": load_nothing}
    return FunctionType(make.__code__, around)() | stated


def _published(name: str) -> tiktoken.Encoding:
    """An encoding from tiktoken, with its sources tried in turn."""
    problem: Exception | None = None
    for source in SOURCES.get(name, (name,)):
        try:
            return tiktoken.get_encoding(source)
        except (OSError, ValueError) as error:
            problem = error
    raise UserError(
        f"the vocabulary of {name} is not available ({type(problem).__name__}); run "
        f"`lmscaling vocabulary {name}{SUFFIX}` where there is a network and copy this file to "
        "results/<study>/vocabulary/, or set TIKTOKEN_CACHE_DIR to a folder that "
        f"contains it (now {os.environ.get('TIKTOKEN_CACHE_DIR') or 'not set'})"
    ) from problem


def _lines(ranks: dict[bytes, int]) -> Iterator[bytes]:
    """The lines of tiktoken's file, in the order of the ranks."""
    for token in sorted(ranks, key=ranks.__getitem__):
        yield base64.b64encode(token) + b" %d\n" % ranks[token]


def _read(path: Path, name: str) -> dict[bytes, int]:
    if not path.is_file():
        raise UserError(
            f"vocabulary {path} does not exist; create it where there is a network: "
            f"lmscaling vocabulary {name}{SUFFIX}"
        )
    data = path.read_bytes()
    _check(data, name, f"vocabulary {path}")
    pairs = (line.split() for line in data.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _check(data: bytes, name: str, what: str) -> None:
    sha256, stated = hashlib.sha256(data).hexdigest(), _stated(name)["sha256"]
    if sha256 != stated:
        raise UserError(
            f"{what} has SHA-256 {sha256}, but {name}'s has {stated}; delete it and fetch it again"
        )
