"""Atomic writing of files, JSON files and hashes of files.

Every output is written under a unique name in its folder, flushed to the disk and then renamed, so
that no reader and no later attempt sees an incomplete file.
"""

import glob
import hashlib
import json
import os
import platform
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from lmscaling.errors import UserError

HOST = platform.node().replace(".", "_")
DAY_SECONDS = 86_400

DIGEST = "record_sha256"
"""Key of the digest in a JSON file that says what was measured."""


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary path that is renamed to ``path`` if the block succeeds, and deleted otherwise.

    Temporary files of earlier processes that were killed are deleted as well.
    """
    temporary = _temporary(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path``, from which a file can be renamed to it; then deleted."""
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """A new name for something temporary beside ``path``; what is stale there is deleted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _delete_stale(path)
    unique = f"{HOST}.{os.getpid()}.{uuid.uuid4().hex}"
    return path.with_name(f".{path.name}.{unique}.tmp")


def _delete_stale(path: Path) -> None:
    """Delete temporary files and folders for ``path`` whose process has ended.

    The processes of another machine are unknown, so its files are deleted after a day.
    """
    for file in path.parent.glob(f".{glob.escape(path.name)}.*.*.*.tmp"):
        _, host, pid, _, _ = file.name.rsplit(".", 4)
        with suppress(FileNotFoundError):  # another process deletes it too
            old = time.time() - file.stat().st_mtime > DAY_SECONDS
            if old or (host == HOST and not psutil.pid_exists(int(pid))):
                shutil.rmtree(file) if file.is_dir() else file.unlink()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that replaces ``path`` if the block succeeds, and is deleted otherwise."""
    with new_file(path) as temporary, temporary.open("wb") as file:
        yield file


def _sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, so that a rename survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def update_text(path: Path, text: str) -> None:
    """Write a file unless it has this text: its time stays, so no rule runs because of it."""
    if not path.is_file() or path.read_text() != text:
        write_text(path, text)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_record(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON object with the SHA-256 of its values, which ``read_json`` checks."""
    write_json(path, {**values, DIGEST: digest(values)})


def digest(values: dict[str, Any]) -> str:
    """SHA-256 of the values as JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_json(path: Path, what: str) -> Any:
    """The content of a JSON file; a digest in it is checked and left out.

    Raises:
        UserError: The file is missing, is not valid JSON or differs from its digest; the message
            starts with ``what``.
    """
    if not path.is_file():
        raise UserError(f"{what} {path} does not exist; correct its path, or make it first")
    values = parse_json(path.read_bytes(), f"{what} {path}")
    if isinstance(values, dict) and DIGEST in values:
        expected = values.pop(DIGEST)
        if expected != digest(values):
            raise UserError(
                f"{what} {path} is damaged: its values differ from its {DIGEST}; "
                f"if you have changed it on purpose, remove the line with {DIGEST}"
            )
    return values


def parse_json(text: str | bytes, what: str) -> Any:
    """The value of a JSON text.

    Raises:
        UserError: The text is not valid JSON.
    """
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{what} is not valid JSON: {error}; correct it there") from error


def sha256_of(path: Path, offset: int = 0) -> str:
    """SHA-256 of a file from ``offset`` to its end, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(offset)
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
