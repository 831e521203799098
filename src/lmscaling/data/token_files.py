"""Reads files of tokens that other programs have made, as shards of ours.

llm.c (``dev/data/data_common.py``): the header of our shards, which are named after it, and
end-of-text before each document. Its shards have a fixed length, so a document can continue in the
next one. nanoGPT (``data/openwebtext/prepare.py``): uint16 tokens without a header, and end-of-text
after each document. The last end-of-text of such a file is moved to its front; then one stands
before each document, and no token is lost or added.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from lmscaling.config.datasets import Tokens
from lmscaling.data import shards
from lmscaling.errors import UserError

BLOCK = 1 << 22
"""Tokens that are read at once."""

REMEDY = "correct layout: or tokenizer: of the study, or get the file again from its source"


@dataclass(frozen=True)
class _File:
    """A file of tokens."""

    path: Path
    n: int
    """Number of tokens."""
    header_bytes: int
    token: np.dtype

    def blocks(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Tokens ``start`` to ``stop``.

        Raises:
            UserError: The file has become shorter.
        """
        for at in range(start, stop, BLOCK):
            wanted = min(BLOCK, stop - at)
            offset = self.header_bytes + at * self.token.itemsize
            block = np.fromfile(self.path, self.token, wanted, offset=offset)
            if len(block) < wanted:
                raise UserError(f"{self.path} was truncated while it was read; {REMEDY}")
            yield block

    def backwards(self, stop: int) -> Iterator[np.ndarray]:
        """The tokens before ``stop``, the last block first."""
        for end in range(stop, 0, -BLOCK):
            yield from self.blocks(max(0, end - BLOCK), end)


def of_llm_c(paths: list[Path], end_of_text: int) -> Tokens:
    """The tokens of the last of some consecutive files of llm.c.

    Raises:
        UserError: A file is missing or truncated or has another layout, or the first one does not
            begin with end-of-text.
    """
    *earlier, file = [_of_llm_c(path) for path in paths]
    [first] = next(file.blocks(0, 1))
    if first == end_of_text:
        return Tokens(file.blocks(0, file.n), 0)
    before = _since_last(chain(*(each.backwards(each.n) for each in earlier[::-1])), end_of_text)
    if before is None:
        raise UserError(
            f"{paths[0]} begins inside a document; allowed: a file that begins with end-of-text, "
            f"token {end_of_text}; name the first file of the stream first, or {REMEDY}"
        )
    return Tokens(file.blocks(0, file.n), before)


def of_nanogpt(path: Path, start: int, n: int, end_of_text: int) -> Tokens:
    """Up to n tokens from ``start`` of a file of nanoGPT, after its last token was put first.

    Raises:
        UserError: The file is missing or ends inside a document.
    """
    size = _size(path)
    file = _File(path, size // shards.TOKEN.itemsize, 0, shards.TOKEN)
    if size % shards.TOKEN.itemsize or not size:
        raise UserError(f"{path} has {size} bytes; allowed: two for each token; {REMEDY}")
    last = next(file.blocks(file.n - 1, file.n))
    if last[0] != end_of_text:
        raise UserError(
            f"{path} ends with token {last[0]}; allowed: end-of-text, token {end_of_text}, after "
            f"each document; {REMEDY}"
        )
    stop = min(start + n, file.n) - 1  # in the file, where a token is one place earlier
    if not start:
        return Tokens(chain([last], file.blocks(0, stop)), 0)
    return Tokens(
        file.blocks(start - 1, stop),
        _since_last(chain(file.backwards(start - 1), [last]), end_of_text) or 0,
    )


def _since_last(blocks: Iterable[np.ndarray], end_of_text: int) -> int | None:
    """Number of tokens from the last end-of-text on, of blocks in reverse order; None if none."""
    n = 0
    for block in blocks:
        starts = np.flatnonzero(block == end_of_text)
        if len(starts):
            return n + len(block) - int(starts[-1])
        n += len(block)
    return None


def _of_llm_c(path: Path) -> _File:
    size = _size(path)
    header = np.fromfile(path, dtype="<i4", count=3).tolist()
    token = shards.LAYOUTS.get(tuple(header[:2]))
    if len(header) < 3 or token is None:
        allowed = " or ".join(f"{magic}, {version}" for magic, version in shards.LAYOUTS)
        raise UserError(
            f"{path} begins with {', '.join(map(str, header[:2]))}; allowed: {allowed}, the "
            f"headers of llm.c; {REMEDY}"
        )
    n = header[2]
    expected = shards.HEADER_BYTES + n * token.itemsize
    if n <= 0 or size != expected:
        raise UserError(
            f"{path} has {size} bytes, but its header states {n} tokens, which are {expected} "
            "bytes; get the file again from its source"
        )
    return _File(path, n, shards.HEADER_BYTES, token)


def _size(path: Path) -> int:
    if not path.is_file():
        raise UserError(f"dataset file {path} does not exist; correct the dataset's row")
    return path.stat().st_size
