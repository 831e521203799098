"""The shard: one file of tokens, its sidecar, and the manifest that chains shards into a stream.

A shard is a 1,024-byte header (256 little-endian int32: 20240520, 1, number of tokens) and then
little-endian uint16, the layout of llm.c and modded-nanogpt. Each document is preceded by the
end-of-text token. Beside ``train-00000.bin`` stands ``train-00000.json`` (provenance, SHA-256 of
the tokens). The manifest lists the shards of both splits; its identity is a prefix chain,
``id_k = sha256(id_(k-1) + sha256_k)``, so that a longer stream leaves every earlier id as it was.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lmscaling.data import document_positions
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


class Writer:
    """Appends tokens to a shard and knows how many there are and what their SHA-256 is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.tokens = 0

    def write(self, tokens: np.ndarray) -> None:
        """Append tokens, any unsigned integers below 2^16."""
        payload = tokens.astype(TOKEN, casting="same_kind", copy=False).tobytes()
        self._digest.update(payload)
        self._file.write(payload)
        self.tokens += tokens.size

    @property
    def sha256(self) -> str:
        """Of the tokens so far."""
        return self._digest.hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[Writer]:
    """A shard that appears whole if the block ends well; its header goes in last."""
    with replacing(path) as file:
        file.write(bytes(HEADER_BYTES))
        writer = Writer(file)
        yield writer
        header = np.zeros(256, dtype="<i4")
        header[:3] = MAGIC, VERSION, writer.tokens
        file.seek(0)
        file.write(header.tobytes())


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


REMEDY = "delete it with its sidecar and run snakemake again to tokenize it anew"


ALIKE = ("dataset", "encoding", "end_of_text", "ranks_sha256", "pattern_sha256")
"""What all shards of a folder have in common."""


def write_manifest(path: Path, counts: dict[str, int]) -> dict[str, list[int]]:
    """Chain the shards of each split, as many as ``counts`` says, whose sidecars lie beside it.

    Returns:
        Of each split, how many tokens have how much of their own document before them: counts by
        the bins of ``documents``.

    Raises:
        UserError: A shard or its sidecar is missing or not whole, lies in another's place, or was
            made by another tokenizer than the rest.
    """
    splits: dict[str, list[dict[str, Any]]] = {}
    own_context: dict[str, list[int]] = {}
    first: tuple[Path, dict[str, Any]] | None = None
    for split, count in counts.items():
        chained = splits[split] = []
        own_context[split] = []
        for i in range(count):
            sidecar = path.with_name(f"{split}-{i:05d}.json")
            record = _read_sidecar(sidecar, split, i)
            first = first or (sidecar, record)
            _check_alike(*first, sidecar, record)
            previous = chained[-1]["id"] if chained else ""
            shard = Shard(
                file=sidecar.with_suffix(".bin").name,
                tokens=record["tokens"],
                sha256=record["sha256"],
                id=chained_id(previous, record["sha256"]),
            )
            chained.append(asdict(shard))
            own_context[split] = document_positions.total(
                [own_context[split], record["own_context"]]
            )
    write_json(path, splits)
    return own_context


def _read_sidecar(sidecar: Path, split: str, i: int) -> dict[str, Any]:
    """A sidecar that belongs where it lies and to the shard beside it."""
    record = read_json(sidecar, "sidecar")
    needed = {"split", "source", "tokens", "sha256", "own_context", *ALIKE}
    if not isinstance(record, dict) or not needed <= record.keys():
        raise UserError(f"sidecar {sidecar} is not whole; {REMEDY}")
    place = record["split"], record["source"]["shard"]
    if place != (split, i):
        raise UserError(
            f"sidecar {sidecar} is that of {place[0]} shard {place[1]}, so shards have changed "
            f"places; {REMEDY}"
        )
    shard = sidecar.with_suffix(".bin")
    found = check(shard)
    if found != record["tokens"]:
        raise UserError(
            f"shard {shard} has {found} tokens, its sidecar says {record['tokens']}; {REMEDY}"
        )
    return record


def _check_alike(
    first: Path, wanted: dict[str, Any], sidecar: Path, record: dict[str, Any]
) -> None:
    for key in ALIKE:
        if record[key] != wanted[key]:
            raise UserError(
                f"shard {sidecar.with_suffix('.bin')} was made with {key} {record[key]}, "
                f"{first.with_suffix('.bin').name} with {wanted[key]}; {REMEDY}"
            )


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
