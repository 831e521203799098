"""The shard: one file of tokens, its sidecar, and the manifest that chains shards into a stream.

A shard is a 1,024-byte header (256 little-endian int32: 20240520, 1, number of tokens) and then
little-endian uint16, the layout of llm.c and modded-nanogpt. Each document is preceded by the
end-of-text token. Beside ``train-00000.bin`` stands ``train-00000.json`` (provenance, SHA-256 of
the tokens). The manifest lists the shards of both splits; its identity is a prefix chain,
``id_k = sha256(id_(k-1) + sha256_k)``, so that a longer stream leaves every earlier id as it was.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmscaling.errors import UserError
from lmscaling.files import read_json, replacing, write_json

MAGIC, VERSION = 20240520, 1
HEADER_BYTES = 1024
TOKEN = np.dtype("<u2")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One entry of the manifest."""

    file: str
    """File name beside the manifest."""
    tokens: int
    sha256: str
    """Of the tokens, without the header."""
    id: str
    """Prefix chain up to and including this shard."""


def write(path: Path, pieces: Iterable[np.ndarray]) -> tuple[int, str]:
    """Write tokens as a shard; the header goes in last, so a torn file has no magic number.

    Returns:
        The number of tokens and the SHA-256 of the tokens.
    """
    digest, n_tokens = hashlib.sha256(), 0
    with replacing(path) as file:
        file.write(bytes(HEADER_BYTES))
        for piece in pieces:
            payload = piece.astype(TOKEN, casting="same_kind").tobytes()
            digest.update(payload)
            file.write(payload)
            n_tokens += piece.size
        header = np.zeros(256, dtype="<i4")
        header[:3] = MAGIC, VERSION, n_tokens
        file.seek(0)
        file.write(header.tobytes())
    return n_tokens, digest.hexdigest()


def check(path: Path) -> int:
    """Number of tokens of a shard.

    Raises:
        UserError: The file is missing, is no shard, or is shorter or longer than its header says.
    """
    if not path.is_file():
        raise UserError(f"shard {path} does not exist; {REMEDY}")
    with path.open("rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"), dtype="<i4")
    if tuple(header[:2]) != (MAGIC, VERSION):
        raise UserError(
            f"shard {path} begins with {header[0]}, {header[1]}; "
            f"allowed: {MAGIC}, {VERSION}; {REMEDY}"
        )
    expected = HEADER_BYTES + int(header[2]) * TOKEN.itemsize
    if path.stat().st_size != expected:
        raise UserError(
            f"shard {path} has {path.stat().st_size} bytes, its header says {expected}; {REMEDY}"
        )
    return int(header[2])


REMEDY = "delete the folder it lies in and run snakemake again to tokenize anew"


def write_manifest(path: Path, counts: dict[str, int]) -> None:
    """Chain the shards of each split, as many as ``counts`` says, whose sidecars lie beside it.

    Raises:
        UserError: A sidecar is missing or not whole.
    """
    splits: dict[str, list[dict[str, Any]]] = {}
    for split, count in counts.items():
        chained = splits[split] = []
        for i in range(count):
            sidecar = path.with_name(f"{split}-{i:05d}.json")
            record = read_json(sidecar, "sidecar")
            previous = chained[-1]["id"] if chained else ""
            shard = Shard(
                file=sidecar.with_suffix(".bin").name,
                tokens=record["tokens"],
                sha256=record["sha256"],
                id=chained_id(previous, record["sha256"]),
            )
            chained.append(asdict(shard))
    write_json(path, splits)


def chained_id(previous: str, sha256: str) -> str:
    """Id of a shard with these tokens behind the shard with the id ``previous``."""
    return hashlib.sha256((previous + sha256).encode()).hexdigest()


def read_manifest(path: Path, split: str) -> list[Shard]:
    """Shards of a split, in the order of the stream.

    Raises:
        UserError: The manifest is not whole, or its shards are not in the order of its chain.
    """
    manifest = read_json(path, "manifest")
    try:
        listed = [Shard(**entry) for entry in manifest[split]]
    except (KeyError, TypeError):
        raise UserError(f"manifest {path} has no whole list of {split} shards; {REMEDY}") from None
    previous = ""
    for shard in listed:
        if shard.id != chained_id(previous, shard.sha256):
            raise UserError(
                f"manifest {path} has {split} shard {shard.file} where its id says that it does "
                f"not stand; {REMEDY}"
            )
        previous = shard.id
    return listed
