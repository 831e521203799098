"""Reads documents from JSON lines, plain or gzip, and hashes the file on the way.

isal decompresses gzip about three times as fast as zlib, and orjson parses a line about twice as
fast as ``json``; tests compare both with what they replace. The hash identifies the file in the
sidecar of its shard.
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

REMEDY = "get the file again from its source"


class Lines:
    """The documents of one file, in order; can be iterated once.

    Args:
        path: JSON lines; gzip if the name ends in ``.gz``.
        key: Key of the text in every line.

    Raises:
        UserError: During iteration: the file is missing or truncated, or a line has no text.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.sha256 = ""
        """SHA-256 of the file (compressed, if it is gzip); set after the last document."""
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        compressed = self.path.suffix == ".gz"
        try:
            with self.path.open("rb", buffering=0) as file:
                raw = _Hashed(file)
                plain: Any = igzip.IGzipFile(fileobj=raw) if compressed else raw
                lines = io.BufferedReader(plain, BUFFER_BYTES)
                for number, line in enumerate(lines, start=1):
                    if not line.isspace():
                        yield self._text(line, number)
        except (OSError, EOFError, zlib.error) as error:
            what = "is not valid gzip" if compressed else "cannot be read"
            raise UserError(f"{self.path} {what}: {error}; {REMEDY}") from error
        self.sha256, self.bytes = raw.digest.hexdigest(), raw.n

    def _text(self, line: bytes, number: int) -> str:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            record = self._parse_surrogates(line, number)
        try:
            text = record[self.key]
        except (TypeError, KeyError, IndexError):
            text = None
        if not isinstance(text, str):
            keys = record if isinstance(record, dict) else []
            raise UserError(
                f"{self.path}, line {number}: no text under {self.key!r}; "
                f"{choose(self.key, keys)}; {REMEDY}, or set text: in the dataset's row"
            )
        return text

    def _parse_surrogates(self, line: bytes, number: int) -> Any:
        """Parse a line that orjson refuses because of a lone surrogate; tiktoken replaces it too.

        Raises:
            UserError: The line is not JSON.
        """
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(
                f"{self.path}, line {number}: not valid JSON: {error}; {REMEDY}"
            ) from None
        if isinstance(record, dict) and isinstance(record.get(self.key), str):
            utf16 = record[self.key].encode("utf-16", "surrogatepass")
            record[self.key] = utf16.decode("utf-16", "replace")
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
