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
from typing import Annotated, Any, BinaryIO, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from lmscaling.config.validation import checked
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


Count = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, Field(strict=True)]
OTHERS_ALLOWED = ConfigDict(extra="ignore")


@pydantic_dataclass(frozen=True, kw_only=True, config=OTHERS_ALLOWED)
class Place:
    """Which shard of its source a shard is."""

    shard: Count


@pydantic_dataclass(frozen=True, kw_only=True, config=OTHERS_ALLOWED)
class Sidecar:
    """What others read in a sidecar; it has more fields."""

    split: Text
    source: Place
    tokens: Count
    sha256: Text
    own_context: list[Count]
    """Tokens by the bins of ``document_positions``."""
    documents: Count
    dataset: Text
    encoding: Text
    end_of_text: Count
    ranks_sha256: Text
    pattern_sha256: Text


class Writer:
    """Appends tokens to a shard; counts and hashes them."""

    def __init__(self, file: BinaryIO, token: np.dtype) -> None:
        self._file, self._token = file, token
        self._digest = hashlib.sha256()
        self.tokens = 0

    def write(self, tokens: np.ndarray) -> None:
        """Append tokens of the type of the shard, or of a smaller unsigned one.

        Raises:
            UserError: The shard has more tokens than its header can count.
        """
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
    """A shard that appears when the block ends without an error; the header is written last.

    Args:
        path: Path of the shard.
        token: Type of its tokens, one of ``LAYOUTS``.
    """
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
    """Number of tokens of a shard.

    Raises:
        UserError: The file is missing, is not a shard, or does not have the size in its header.
    """
    n, token = _header(path)
    expected = HEADER_BYTES + n * token.itemsize
    if path.stat().st_size != expected:
        raise UserError(
            f"shard {path} has {path.stat().st_size} bytes, but its header states {expected}; "
            f"{REMEDY}"
        )
    return n


def token_type(path: Path) -> np.dtype:
    """Type of the tokens of a shard, from its header: uint16 or uint32.

    Raises:
        UserError: The file is missing or is not a shard.
    """
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


REMEDY = "delete it with its sidecar, and run snakemake again to tokenize it again"

EQUAL = ("dataset", "encoding", "end_of_text", "ranks_sha256", "pattern_sha256")
"""Fields that are equal in all sidecars of a folder."""


def write_manifest(path: Path, counts: dict[str, int]) -> dict[str, list[int]]:
    """Write the manifest of the first ``counts[split]`` shards of each split in its folder.

    Returns:
        For each split, numbers of tokens by the bins of ``document_positions``.

    Raises:
        UserError: A shard or its sidecar is missing, incomplete, in the place of another one, or
            from a different tokenizer than the others.
    """
    splits: dict[str, list[dict[str, Any]]] = {}
    own_context: dict[str, list[int]] = {}
    first: tuple[Path, dict[str, Any]] | None = None
    for split, count in counts.items():
        chained = splits[split] = []
        own_context[split] = []
        for i in range(count):
            sidecar = path.with_name(f"{split}-{i:05d}.json")
            record = read_sidecar(sidecar, split, i)
            first = first or (sidecar, record)
            _check_equal(*first, sidecar, record)
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


def read_sidecar(sidecar: Path, split: str, i: int) -> dict[str, Any]:
    """A sidecar, after a check that it belongs to its place and to its shard.

    Raises:
        UserError: The sidecar is missing, incomplete or of another shard, or the shard is.
    """
    record = read_json(sidecar, "sidecar")
    try:
        checked(Sidecar, record, f"sidecar {sidecar}")
    except UserError as error:
        raise UserError(f"{error}; {REMEDY}") from None
    place = record["split"], record["source"]["shard"]
    if place != (split, i):
        raise UserError(
            f"sidecar {sidecar} belongs to {place[0]} shard {place[1]}, so shards were swapped; "
            f"{REMEDY}"
        )
    shard = sidecar.with_suffix(".bin")
    n = check(shard)
    if n != record["tokens"]:
        raise UserError(
            f"shard {shard} has {n} tokens, but its sidecar states {record['tokens']}; {REMEDY}"
        )
    return record


def _check_equal(
    first: Path, expected: dict[str, Any], sidecar: Path, record: dict[str, Any]
) -> None:
    for key in EQUAL:
        if record[key] != expected[key]:
            raise UserError(
                f"shard {sidecar.with_suffix('.bin')} was made with {key} {record[key]}, "
                f"but {first.with_suffix('.bin').name} with {expected[key]}; {REMEDY}"
            )


def chained_id(previous: str, sha256: str) -> str:
    """Id of a shard with these tokens after the shard with the id ``previous``."""
    return hashlib.sha256((previous + sha256).encode()).hexdigest()


def read_manifest(path: Path, split: str) -> list[Shard]:
    """Shards of a split, in the order of the stream.

    Raises:
        UserError: The manifest is incomplete, or its shards are not in the order of their ids.
    """
    manifest = read_json(path, "manifest")
    try:
        entries = [Shard(**entry) for entry in manifest[split]]
    except (KeyError, TypeError):
        raise UserError(
            f"manifest {path} has no complete list of {split} shards; {REMEDY}"
        ) from None
    previous = ""
    for shard in entries:
        if shard.id != chained_id(previous, shard.sha256):
            raise UserError(
                f"manifest {path} lists {split} shard {shard.file} in a place that does not match "
                f"its id; {REMEDY}"
            )
        previous = shard.id
    return entries


class Origin(NamedTuple):
    """What the sidecars of some shards say of their text."""

    ranks_sha256: str | None
    """SHA-256 of the tokenizer; None if there is no sidecar."""
    bytes_per_token: float | None
    """UTF-8 bytes of the documents per token; end-of-text is a token and no byte. None if a sidecar
    is missing or belongs to other tokens."""


def origin(folder: Path, shards: list[Shard]) -> Origin:
    """Tokenizer and bytes of shards, from their sidecars in a folder."""
    paths = [(folder / shard.file).with_suffix(".json") for shard in shards]
    records = [read_json(path, "sidecar") if path.is_file() else {} for path in paths]
    n_bytes = [
        record["bytes"]
        for record, shard in zip(records, shards, strict=True)
        if "bytes" in record and record.get("sha256") == shard.sha256
    ]
    n_tokens = sum(shard.tokens for shard in shards)
    is_known = n_tokens and len(n_bytes) == len(shards)
    return Origin(
        records[0].get("ranks_sha256") if records else None,
        sum(n_bytes) / n_tokens if is_known else None,
    )
