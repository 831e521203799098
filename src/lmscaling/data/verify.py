"""Reads every shard of a text once, before a run needs it.

A run checks a shard just before it reads it, which may be hours after its start. Here all shards of
a manifest are read: header and size, SHA-256, tokens within the vocabulary, end-of-text before each
document, and whether sidecar and manifest say the same. A mark says what was found right, so that
a text that grows costs only its new shards.
"""

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmscaling.config.types import Split
from lmscaling.data import shards
from lmscaling.data.shards import Shard
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_record

SPLITS: tuple[Split, ...] = ("train", "validation")

BLOCK_BYTES = 1 << 22

MOST_NAMES = 20
"""Shards whose names are in one message."""


def verify(manifest: Path, mark: Path | None = None, threads: int = 1) -> str:
    """Read the shards of a manifest that are not marked yet.

    Args:
        manifest: ``manifest.json``; the shards are in the same folder.
        mark: File that says which shards were right; it is read and written. None reads all.
        threads: Number of shards that are read at the same time.

    Returns:
        What was read, in words.

    Raises:
        UserError: Some shards are wrong; each is named on standard error, with what is wrong.
    """
    found: dict[Split, list[Shard]] = {s: shards.read_manifest(manifest, s) for s in SPLITS}
    todo: list[tuple[Split, int]] = [
        (split, i)
        for split in SPLITS
        for i in range(_marked(mark, split, found[split]), len(found[split]))
    ]
    with ThreadPoolExecutor(max_workers=threads) as pool:
        check = partial(_problem, manifest.parent, found)
        said = zip(todo, pool.map(check, todo), strict=True)
        problems = {place: text for place, text in said if text}
    for text in problems.values():
        print(f"verify: {text}", file=sys.stderr)
    if problems:
        names = [f"{split}-{i:05d}" for split, i in problems]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        raise UserError(
            f"{len(problems)} of {len(todo)} shards in {manifest.parent} are wrong, as said above: "
            f"{', '.join(names[:MOST_NAMES])}{more}; type: cd {manifest.parent} && rm -f "
            f"{' '.join(f'{name}.*' for name in names[:MOST_NAMES])}; then run snakemake again, "
            "which makes them again"
        )
    if mark:
        write_record(mark, {split: _as_mark(entries) for split, entries in found.items()})
    tokens = sum(found[split][i].tokens for split, i in todo)
    rest = sum(map(len, found.values())) - len(todo)
    known = f"; {rest} others were right before" if rest else ""
    return f"{manifest.parent}: {len(todo)} shards of {tokens:,} tokens are right{known}"


def _as_mark(entries: list[Shard]) -> dict[str, Any]:
    """The last of these shards: its id is one of all before it."""
    return {"shards": len(entries), "id": entries[-1].id if entries else ""}


def _marked(mark: Path | None, split: str, entries: list[Shard]) -> int:
    """Number of shards that are marked as right; none if the marks are of other shards."""
    if mark is None or not mark.is_file():
        return 0
    try:
        values = read_json(mark, "mark")[split]
        n = values["shards"]
        return n if _as_mark(entries[:n]) == values else 0
    except (UserError, KeyError, TypeError):
        return 0


class _Read(NamedTuple):
    """What is in a shard."""

    sha256: str
    largest: int
    first: int | None
    separators: int


def _read(path: Path, end_of_text: int) -> _Read:
    digest, largest, first, separators = hashlib.sha256(), 0, None, 0
    token = shards.token_type(path)
    with path.open("rb") as file:
        file.seek(shards.HEADER_BYTES)
        while data := file.read(BLOCK_BYTES):
            digest.update(data)
            tokens = np.frombuffer(data, dtype=token)
            largest = max(largest, int(tokens.max()))
            first = int(tokens[0]) if first is None else first
            separators += int(np.count_nonzero(tokens == end_of_text))
    return _Read(digest.hexdigest(), largest, first, separators)


def _problem(folder: Path, found: dict[Split, list[Shard]], place: tuple[Split, int]) -> str:
    """What is wrong with a shard; empty if nothing is."""
    split, i = place
    shard = found[split][i]
    path = folder / shard.file
    try:
        record = shards.read_sidecar(path.with_suffix(".json"), split, i)
        read = _read(path, record["end_of_text"])
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"shard {path} cannot be read: {error.strerror}"
    for what, value, expected, source in (
        ("SHA-256", read.sha256, shard.sha256, "manifest"),
        ("SHA-256", read.sha256, record["sha256"], "sidecar"),
        ("number of tokens", record["tokens"], shard.tokens, "manifest"),
        ("number of documents", read.separators, record["documents"], "sidecar"),
        ("number of positions", sum(record["own_context"]), record["tokens"], "sidecar"),
    ):
        if value != expected:
            return f"shard {path} has {what} {value}, but its {source} states {expected}"
    if read.largest > record["end_of_text"]:
        return (
            f"shard {path} has token {read.largest}; allowed: up to {record['end_of_text']}, the "
            "end-of-text token"
        )
    if read.first != record["end_of_text"]:
        return f"shard {path} begins with token {read.first}; allowed: end-of-text"
    return ""
