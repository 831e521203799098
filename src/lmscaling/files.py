"""Atomic writing of files, JSON files and hashes of files.

Every output is written under a unique name in its folder, flushed to the disk and then renamed, so
that no reader and no later attempt sees an incomplete file.
"""

import glob
import hashlib
import json
import mmap
import os
import platform
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from lmscaling.errors import UserError

HOST = platform.node().replace(".", "_")
DAY_SECONDS = 86_400

DIGEST = "record_sha256"
"""Key of the digest in a JSON file that says what was measured."""

TENSORS = "lmscaling"
"""Key of the digests in a file of tensors, see ``model/tensor_file.py``."""

DTYPES = {
    "F64": "torch.float64", "F32": "torch.float32", "F16": "torch.float16",
    "BF16": "torch.bfloat16", "I64": "torch.int64", "I32": "torch.int32", "I16": "torch.int16",
    "I8": "torch.int8", "U8": "torch.uint8", "BOOL": "torch.bool",
}  # fmt: skip
"""Names that PyTorch gives to the types of safetensors."""

THREADS = 4
"""Threads that hash tensors; one hashes 0.5 to 2 GB/s."""


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary path that is renamed to ``path`` if the block succeeds, and deleted otherwise.

    Temporary files of earlier processes that were killed are deleted as well.
    """
    temporary = temporary_path(path)
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
    temporary = temporary_path(path)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def temporary_path(path: Path) -> Path:
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
    try:
        if not path.is_file():
            raise UserError(f"{what} {path} does not exist; correct its path, or make it first")
        values = parse_json(path.read_bytes(), f"{what} {path}")
    except PermissionError as error:  # another user's umask
        raise UserError(
            f"{what} {path} belongs to another user, and you may not read it; let its owner type "
            f"chmod -R g+rwX {path.parent}"
        ) from error
    if isinstance(values, dict) and DIGEST in values:
        expected = values.pop(DIGEST)
        if expected != digest(values):
            raise UserError(
                f"{what} {path} is damaged: its values differ from its {DIGEST}; "
                f"if you have changed it on purpose, remove the line with {DIGEST}"
            )
    return values


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write lines of JSON, and below them one with their SHA-256, which ``read_lines`` checks."""
    data = b"".join(lines)
    with replacing(path) as file:
        file.write(data)
        if data:
            file.write(json.dumps({DIGEST: hashlib.sha256(data).hexdigest()}).encode() + b"\n")


def read_lines(path: Path, what: str) -> list[bytes]:
    """The lines of a file without its digest, if it has one.

    Raises:
        UserError: The lines differ from their digest; the message starts with ``what``.
    """
    data = path.read_bytes()
    above, start, stated = data.rpartition(f'{{"{DIGEST}": "'.encode())
    if start and hashlib.sha256(above).hexdigest() != stated[:-3].decode(errors="replace"):
        raise UserError(
            f"{what} {path} is damaged: its lines differ from its {DIGEST}; delete it and run "
            "snakemake again"
        )
    return (above if start else data).splitlines()


def parse_json(text: str | bytes, what: str) -> Any:
    """The value of a JSON text.

    Raises:
        UserError: The text is not valid JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise UserError(f"{what} is not valid JSON: {error}; correct it there") from error


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_tensors(path: Path) -> tuple[dict[str, str], str]:
    """Compare a file of tensors with its digests: its metadata, and the digest of everything.

    Raises:
        OSError: It is missing.
        ValueError: It is cut, or differs from its digests, or has none.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            start = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:start])
            stated = json.loads(header.pop("__metadata__")[TENSORS])
            ends = sorted(entry["data_offsets"] for entry in header.values())
            if [0, *(end for _, end in ends)] != [*(begin for begin, _ in ends), len(data) - start]:
                raise ValueError("it is damaged: its tensors do not fill it")

            def digest_of(name: str) -> str:
                begin, end = header[name]["data_offsets"]
                with memoryview(data) as view, view[start + begin : start + end] as part:
                    return hashlib.sha256(part).hexdigest()

            with ThreadPoolExecutor(THREADS) as pool:  # hashing does not hold the interpreter
                digests = dict(zip(header, pool.map(digest_of, header), strict=True))
            kinds = {
                name: [DTYPES[entry["dtype"]], entry["shape"], digests[name]]
                for name, entry in header.items()
            }
            expected, values, digest = stated["sha256"], stated["values"], stated["digest"]
            names = [name for name in digests if digests[name] != expected.get(name)]
    except (AttributeError, KeyError, TypeError, RecursionError):
        raise ValueError("it is damaged: its metadata have no SHA-256") from None
    if names:
        raise ValueError(f"it is damaged: the SHA-256 of tensor {names[0]} differs")
    if tensors_digest(kinds, values) != digest or expected.keys() != digests.keys():
        raise ValueError("it is damaged: the SHA-256 of its metadata differs")
    return values, digest


def tensors_digest(kinds: dict[str, list[Any]], values: dict[str, str]) -> str:
    """SHA-256 of the metadata and of type, shape and digest of each tensor by its name."""
    return hashlib.sha256(json.dumps([kinds, values], sort_keys=True).encode()).hexdigest()
