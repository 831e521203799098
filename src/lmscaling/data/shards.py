"""Shards of tokens, their sidecars, and the manifest that joins shards to a stream.

A shard has a header of 1,024 bytes (256 little-endian int32: magic number, version, number of
tokens) and then tokens, little-endian. A vocabulary of up to 65,536 tokens has llm.c's layout for
GPT-2, which modded-nanogpt reads, too: 20240520, 1, then uint16. A larger one has its layout for
Llama 3: 20240801, 7, then uint32. Each document is preceded by the end-of-text token. The sidecar
of ``train-00000.bin`` is ``train-00000.json`` (provenance, SHA-256 of the tokens). The manifest
lists the shards of both splits. Their ids form a chain, ``id_k = sha256(id_(k-1) + sha256_k)``, so
a longer stream does not change earlier ids.

Source: ``dev/data/data_common.py`` of llm.c.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from lmscaling.data import document_positions
from lmscaling.errors import UserError
from lmscaling.files import read_json, replacing, write_json

TOKEN, WIDE = np.dtype("<u2"), np.dtype("<u4")

LAYOUTS = {(20240520, 1): TOKEN, (20240801, 7): WIDE}
"""Type of the tokens by magic number and version."""

HEADER_BYTES = 1024

MOST_TOKENS = 2**31 - 1
"""Tokens that a header can count."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One entry of the manifest."""

    file: str
    """File name in the manifest's folder."""
    tokens: int
    sha256: str
    """SHA-256 of the tokens, without the header."""
    id: str
    """Id in the chain, up to and including this shard."""


COUNTS = ("tokens", "documents", "end_of_text")
EQUAL = ("dataset", "encoding", "end_of_text", "ranks_sha256", "pattern_sha256")
"""Fields of sidecars: numbers, and what is equal in all of a folder."""

REMEDY = "delete it with its sidecar, and run snakemake again to tokenize it again"


class Writer:
    """Appends tokens to a shard; counts and hashes them."""

    def __init__(self, file: BinaryIO, token: np.dtype) -> None:
        self._file, self._token = file, token
        self._digest = hashlib.sha256()
        self.tokens = 0

    def write(self, tokens: np.ndarray) -> None:
        """Append tokens of the type of the shard, or of a smaller unsigned one; UserError if they
        are more than the header can count."""
        if self.tokens + tokens.size > MOST_TOKENS:
            raise UserError(
                f"the shard has more than {MOST_TOKENS:,} tokens, which its header cannot count; "
                "divide its source into several files"
            )
        payload = tokens.astype(self._token, casting="safe", copy=False).tobytes()
        self._digest.update(payload)
        self._file.write(payload)
        self.tokens += tokens.size

    @property
    def sha256(self) -> str:
        """SHA-256 of the tokens so far."""
        return self._digest.hexdigest()


@contextmanager
def writing(path: Path, token: np.dtype = TOKEN) -> Iterator[Writer]:
    """A shard with tokens of a type of ``LAYOUTS``, which appears when the block ends without an
    error; the header is written last."""
    (magic,) = (numbers for numbers, type_ in LAYOUTS.items() if type_ == token)
    with replacing(path) as file:
        file.write(bytes(HEADER_BYTES))
        writer = Writer(file, token)
        yield writer
        header = np.zeros(256, dtype="<i4")
        header[:3] = *magic, writer.tokens
        file.seek(0)
        file.write(header.tobytes())


def check(path: Path) -> int:
    """Number of tokens of a shard; UserError if it is none, or has not the size in its header."""
    n, token = _header(path)
    expected, found = HEADER_BYTES + n * token.itemsize, path.stat().st_size
    if found != expected:
        sizes = f"{found} bytes, but its header states {expected}"
        raise UserError(f"shard {path} has {sizes}; {REMEDY}")
    return n


def token_type(path: Path) -> np.dtype:
    """Type of the tokens of a shard, from its header: uint16 or uint32; UserError if it is none."""
    return _header(path)[1]


def _header(path: Path) -> tuple[int, np.dtype]:
    """Number of tokens and their type."""
    if not path.is_file():
        raise UserError(f"shard {path} does not exist; {REMEDY}")
    with path.open("rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"), dtype="<i4")
    magic, version, n = header[:3].tolist()
    if (magic, version) not in LAYOUTS:
        allowed = " or ".join(f"{magic}, {version}" for magic, version in LAYOUTS)
        raise UserError(
            f"shard {path} begins with {magic}, {version}; allowed: {allowed}; {REMEDY}"
        )
    return n, LAYOUTS[magic, version]


def write_manifest(path: Path, counts: dict[str, int]) -> dict[str, list[int]]:
    """Write the manifest of the first ``counts[split]`` shards of each split in its folder.

    Returns, for each split, numbers of tokens by the bins of ``document_positions``. UserError if a
    shard or its sidecar is missing, incomplete, in the place of another one, or from a different
    tokenizer than the others.
    """
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in counts}
    own_context: dict[str, list[int]] = {split: [] for split in counts}
    first: dict[str, Any] = {}
    for split, i in ((split, i) for split, n in counts.items() for i in range(n)):
        sidecar = path.with_name(f"{split}-{i:05d}.json")
        record = read_sidecar(sidecar, split, i)
        first = first or record
        for key in EQUAL:
            if record[key] != first[key]:
                made = f"made with {key} {record[key]}, but others with {first[key]}"
                raise UserError(f"shard {sidecar.with_suffix('.bin')} was {made}; {REMEDY}")
        chain = splits[split]
        id_ = chained_id(chain[-1]["id"] if chain else "", record["sha256"])
        values = {"tokens": record["tokens"], "sha256": record["sha256"], "id": id_}
        chain.append(asdict(Shard(file=sidecar.with_suffix(".bin").name, **values)))
        parts = own_context[split], record["own_context"]
        own_context[split] = document_positions.total(parts)
    write_json(path, splits)
    return own_context


def read_sidecar(sidecar: Path, split: str, i: int) -> dict[str, Any]:
    """A sidecar; UserError if it, or its shard, is missing, incomplete or of another place."""
    record = read_json(sidecar, "sidecar")
    try:
        place = record["split"], record["source"]["shard"]
        numbers = [*(record[key] for key in COUNTS), *record["own_context"]]
        is_whole = all(isinstance(record[key], str) for key in {*EQUAL, "sha256"} - {*COUNTS})
        is_whole &= all(type(n) is int and n >= 0 for n in numbers)
    except (KeyError, TypeError):
        is_whole, place = False, ("", -1)
    if not is_whole:
        raise UserError(f"sidecar {sidecar} is incomplete or damaged; {REMEDY}")
    if place != (split, i):
        owner = f"{place[0]} shard {place[1]}, so shards were swapped"
        raise UserError(f"sidecar {sidecar} belongs to {owner}; {REMEDY}")
    shard = sidecar.with_suffix(".bin")
    if (n := check(shard)) != record["tokens"]:
        counts = f"{n} tokens, but its sidecar states {record['tokens']}"
        raise UserError(f"shard {shard} has {counts}; {REMEDY}")
    return record


def chained_id(previous: str, sha256: str) -> str:
    """Id of a shard with these tokens after the shard with the id ``previous``."""
    return hashlib.sha256((previous + sha256).encode()).hexdigest()


def read_manifest(path: Path, split: str) -> list[Shard]:
    """Shards of a split, in the order of the stream; UserError if the manifest is incomplete, or
    they are not in the order of their ids."""
    manifest = read_json(path, "manifest")
    try:
        entries = [Shard(**entry) for entry in manifest[split]]
    except (KeyError, TypeError):
        problem = f"manifest {path} has no complete list of {split} shards; {REMEDY}"
        raise UserError(problem) from None
    for previous, shard in zip(["", *(one.id for one in entries)], entries, strict=False):
        if shard.id != chained_id(previous, shard.sha256):
            place = f"{split} shard {shard.file} in a place that does not match its id"
            raise UserError(f"manifest {path} lists {place}; {REMEDY}")
    return entries


class Origin(NamedTuple):
    """SHA-256 of the tokenizer of some shards, and UTF-8 bytes of their documents per token, where
    end-of-text is a token and no byte; None where sidecars are missing or of other tokens."""

    ranks_sha256: str | None
    bytes_per_token: float | None


def origin(folder: Path, shards: list[Shard]) -> Origin:
    """Tokenizer and bytes of shards, from their sidecars in a folder."""
    paths = [(folder / shard.file).with_suffix(".json") for shard in shards]
    records = [read_json(path, "sidecar") if path.is_file() else {} for path in paths]
    pairs = [*zip(records, shards, strict=True)]
    is_known = all("bytes" in one and one.get("sha256") == shard.sha256 for one, shard in pairs)
    n_bytes, n = sum(one.get("bytes", 0) for one in records), sum(one.tokens for one in shards)
    ranks = records[0].get("ranks_sha256") if records else None
    return Origin(ranks, n_bytes / n if n and is_known else None)
