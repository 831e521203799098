"""Names of many files in few words: numbers in braces, and patterns of local files.

``a-{000..013}.parquet`` is 14 names, from ``a-000.parquet`` to ``a-013.parquet``: numbers have as
many digits as the first. The same words always mean the same names, so a plan needs no network.
A pattern as ``texts/*.jsonl.gz`` is looked up once in a process, so that all jobs of one command
mean the same files; they are sorted by name.
"""

import glob
import os
import re
from collections.abc import Iterable
from functools import cache
from itertools import product
from math import prod

from lmscaling.errors import UserError

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")

MOST_FILES = 1_000_000

PACKED = {
    "gz": rb"\x1f\x8b",
    "bz2": rb"BZh[1-9]1AY&SY",
    "xz": rb"\xfd7zXZ\0",
    "zst": rb"\(\xb5/\xfd|[\x50-\x5f]\*M\x18",  # a frame, or one to skip
    "parquet": rb"PAR1",
}
"""First bytes of files whose text is longer than they are."""


def numbered(name: str) -> list[str]:
    """The names that ranges in a name stand for, the last range fastest; itself if it has none.

    Raises:
        ValueError: A range is empty or too long.
    """
    count(name)
    texts = RANGE.split(name)[::3]
    columns = [
        [f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1)]
        for first, last in RANGE.findall(name)
    ]
    return [
        texts[0] + "".join(part for pair in zip(numbers, texts[1:], strict=True) for part in pair)
        for numbers in product(*columns)
    ]


def count(name: str) -> int:
    """Number of names that ranges in a name stand for.

    Raises:
        ValueError: A range is empty, or they are too many.
    """
    lengths = [int(last) - int(first) + 1 for first, last in RANGE.findall(name)]
    if min(lengths, default=1) < 1 or prod(lengths) > MOST_FILES:
        raise ValueError(
            f"{name!r} has an empty range, or more than {MOST_FILES:,} files; allowed: "
            "{first..last}"
        )
    return prod(lengths)


def local(names: Iterable[str]) -> list[str]:
    """Paths of local files, from names, ranges and patterns.

    Raises:
        UserError: No file matches a pattern, or a range is empty.
    """
    try:
        return [path for name in names for each in numbered(name) for path in _matching(each)]
    except ValueError as error:
        raise UserError(str(error)) from None


def keyed(**names: Iterable[str]) -> list[tuple[str, str]]:
    """Paths of local files, each with the key of its name in a dataset's row.

    Raises:
        UserError: See ``local``.
    """
    return [(key, path) for key, given in names.items() for path in local(given)]


def packing(path: str) -> str:
    """How a local file is packed, a key of ``PACKED``, whatever its name is; empty if it is not.

    Raises:
        UserError: It cannot be read.
    """
    try:
        with open(path, "rb") as file:
            first = file.read(16)
    except OSError as error:
        said = f"{path} cannot be read: {error.strerror}"
        raise UserError(f"{said}; make it readable, or name another file") from None
    return next((name for name, bytes_ in PACKED.items() if re.match(bytes_, first)), "")


def most_tokens(names: Iterable[str]) -> float | None:
    """Size of local files in bytes, which their tokens cannot exceed; None if some are packed or
    not there. Each file may begin with an end-of-text that it does not have."""
    paths = local(names)
    if not all(os.path.isfile(path) and not packing(path) for path in paths):
        return None
    return float(sum(os.path.getsize(path) + 1 for path in paths))


@cache
def _matching(name: str) -> tuple[str, ...]:
    if not glob.has_magic(name) or os.path.exists(name):
        return (name,)
    paths = sorted(path for path in glob.glob(name, recursive=True) if os.path.isfile(path))
    if not paths:
        raise UserError(
            f"no file matches {name!r}; correct the dataset's row, or put the files there"
        )
    return tuple(paths)
