"""Documents from JSON lines, plain or gzip, a buffer at a time.

isal unpacks gzip some three times as fast as zlib and orjson reads a line some twice as fast as
``json``; both are checked against what they replace by the tests. Every byte of the file is hashed
as it passes, so that a shard's sidecar can say what exactly it was made from.
"""

import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from isal import igzip

from lmscaling.errors import UserError, choose

BUFFER_BYTES = 1 << 18
SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")

CURE = "get the file again where it came from"


class Lines:
    """The documents of one file, in order; iterate once.

    Args:
        path: JSON lines, gzip if its name ends in ``.gz``.
        key: Key of the text in each line.

    Raises:
        UserError: While iterating: the file is missing or cut short, or a line is no document.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.sha256 = ""
        """Of the file as it lies on the disk; there after the last document."""
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        packed = self.path.suffix == ".gz"
        try:
            with self.path.open("rb", buffering=0) as file:
                raw = _Hashed(file)
                plain: Any = igzip.IGzipFile(fileobj=raw) if packed else raw
                lines = io.BufferedReader(plain, BUFFER_BYTES)
                for number, line in enumerate(lines, start=1):
                    if not line.isspace():
                        yield self._text(line, number)
        except (OSError, EOFError, zlib.error) as error:
            what = "is not valid gzip" if packed else "cannot be read"
            raise UserError(f"{self.path} {what}: {error}; {CURE}") from error
        self.sha256, self.bytes = raw.digest.hexdigest(), raw.n

    def _text(self, line: bytes, number: int) -> str:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            record = self._slowly(line, number)
        try:
            text = record[self.key]
        except (TypeError, KeyError, IndexError):
            text = None
        if not isinstance(text, str):
            known = record if isinstance(record, dict) else []
            raise UserError(
                f"{self.path}, line {number}: no text under {self.key!r}; "
                f"{choose(self.key, known)}; {CURE}, or set text: in the dataset's row"
            )
        return text

    def _slowly(self, line: bytes, number: int) -> Any:
        """What orjson refuses and Python reads: half a surrogate pair, replaced as tiktoken does.

        Raises:
            UserError: It is not JSON.
        """
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(
                f"{self.path}, line {number}: not valid JSON: {error}; {CURE}"
            ) from None
        if isinstance(record, dict) and isinstance(record.get(self.key), str):
            half = record[self.key].encode("utf-16", "surrogatepass")
            record[self.key] = half.decode("utf-16", "replace")
        return record


class _Hashed(io.RawIOBase):
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.n = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = self._file.readinto(buffer) or 0
        self.digest.update(memoryview(buffer)[:n])
        self.n += n
        return n
