"""Reads documents from JSON lines, plain, gzip or zstd, and hashes the file on the way.

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

from lmscaling.data.bad_documents import REMEDY, BadDocuments
from lmscaling.errors import UserError, choose

BUFFER_BYTES = 1 << 18
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
SUFFIXES = tuple(
    plain + packed for plain in (".json", ".jsonl", ".ndjson") for packed in ("", *COMPRESSED)
)


class Lines:
    """The documents of one file, in order; can be iterated once.

    Args:
        path: JSON lines; the end of the name says how they are compressed.
        key: Key of the text in every line.
        bad: What happens to a line that is no document; by default it is an error.

    Raises:
        UserError: During iteration: the file is missing or truncated, or a line has no text.
    """

    def __init__(self, path: Path, key: str, bad: BadDocuments | None = None) -> None:
        self.path, self.key, self.bad = path, key, bad or BadDocuments(0)
        self.sha256 = ""
        """SHA-256 of the file as it is (compressed or not); set after the last document."""
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        compression = COMPRESSED.get(self.path.suffix)
        n = 0
        try:
            with self.path.open("rb", buffering=0) as file:
                raw = _Hashed(file)
                lines = io.BufferedReader(_plain(raw, compression), BUFFER_BYTES)
                for number, line in enumerate(lines, start=1):
                    if not line.isspace():
                        n += 1
                        if (text := self._text(line, number)) is not None:
                            yield text
        except (OSError, EOFError, zlib.error) as error:
            what = f"is not valid {compression}" if compression else "cannot be read"
            raise UserError(
                f"{self.path} {what}: {error}; get the file again from its source"
            ) from error
        self.bad.check(str(self.path), n)
        self.sha256, self.bytes = raw.digest.hexdigest(), raw.n

    def _text(self, line: bytes, number: int) -> str | None:
        """The document of a line; None if it is left out."""
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            try:
                record = self._parse_surrogates(line)
            except (ValueError, RecursionError) as error:
                return self._leave_out(line, number, error)
        text = record.get(self.key) if isinstance(record, dict) else None
        if isinstance(text, str):
            return text
        if isinstance(record, dict) and self.key in record:
            problem = f"{'null' if text is None else type(text).__name__} in place of text"
            place = f"{self.path}, line {number}"
            self.bad.add(problem, f"{place}: {problem} under {self.key!r}; {REMEDY}")
        else:
            self.bad.add(
                "without text",
                f"{self.path}, line {number}: no text under {self.key!r}; "
                f"{choose(self.key, record if isinstance(record, dict) else [])}; {REMEDY}, or set "
                "text: in the dataset's row",
            )
        return None

    def _leave_out(self, line: bytes, number: int, error: Exception) -> None:
        """Leave out a line that is no JSON.

        Raises:
            UserError: It is the last line and was cut off, so the file is truncated; or bad
                documents are errors.
        """
        problem = "nested too deeply" if isinstance(error, RecursionError) else "not valid JSON"
        detail = "" if isinstance(error, RecursionError) else f": {error}"
        sentence = f"{self.path}, line {number}: {problem}{detail}; {REMEDY}"
        if not line.endswith(b"\n"):
            raise UserError(sentence)
        self.bad.add(problem, sentence)

    def _parse_surrogates(self, line: bytes) -> Any:
        """Parse a line that orjson refuses because of a lone surrogate; tiktoken replaces it too.

        Raises:
            ValueError: The line is not JSON.
            RecursionError: It has too many brackets in brackets.
        """
        record = json.loads(line)
        if isinstance(record, dict) and isinstance(record.get(self.key), str):
            utf16 = record[self.key].encode("utf-16", "surrogatepass")
            record[self.key] = utf16.decode("utf-16", "replace")
        return record


def _plain(raw: "_Hashed", compression: str | None) -> Any:
    """The decompressed file; a truncated one raises an error at its end."""
    if compression == "gzip":
        return igzip.IGzipFile(fileobj=raw)
    if compression == "zstd":
        import pyarrow as pa

        return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    return raw


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
