"""Reads every shard of a text once, before a run needs it.

A run checks a shard just before it reads it, which may be hours after its start. A mark says what
was found right, so that a text that grows costs only its new shards.
"""

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lmscaling.data import shards
from lmscaling.data.shards import Shard
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_record

SPLITS = ("train", "validation")

BLOCK_BYTES, MOST_NAMES = 1 << 22, 20
"""Read at once, and shards that one message names."""


def verify(manifest: Path, mark: Path | None = None, threads: int = 1) -> str:
    """Read the shards of a manifest that are not in ``mark`` yet, so many threads at a time.

    ``mark`` says which shards were right; it is read and written. None reads all. Returns what was
    read, in words. UserError if shards are wrong; standard error says of each what is wrong.
    """
    found: dict[str, list[Shard]] = {s: shards.read_manifest(manifest, s) for s in SPLITS}
    todo = [(s, i) for s in SPLITS for i in range(_marked(mark, s, found[s]), len(found[s]))]
    with ThreadPoolExecutor(max_workers=threads) as pool:
        said = [*pool.map(partial(_problem, manifest.parent, found), todo)]
    wrong = [f"{split}-{i:05d}" for (split, i), text in zip(todo, said, strict=True) if text]
    for text in filter(None, said):
        print(f"verify: {text}", file=sys.stderr)
    if wrong:
        named, more = wrong[:MOST_NAMES], len(wrong) - MOST_NAMES
        raise UserError(
            f"{len(wrong)} of {len(todo)} shards in {manifest.parent} are wrong, as said above: "
            f"{', '.join(named)}{f' and {more} more' if more > 0 else ''}; type: cd "
            f"{manifest.parent} && rm -f {' '.join(f'{name}.*' for name in named)}; then run "
            "snakemake again, which makes them again"
        )
    if mark:
        write_record(mark, {split: _as_mark(entries) for split, entries in found.items()})
    tokens = sum(found[split][i].tokens for split, i in todo)
    rest = sum(map(len, found.values())) - len(todo)
    known = f"; {rest} others were right before" if rest else ""
    return f"{manifest.parent}: {len(todo)} shards of {tokens:,} tokens are right{known}"


def _as_mark(entries: list[Shard]) -> dict[str, Any]:  # the last id is one of all before it
    return {"shards": len(entries), "id": entries[-1].id if entries else ""}


def _marked(mark: Path | None, split: str, entries: list[Shard]) -> int:
    """Number of shards that are marked as right; none if the marks are of other shards."""
    try:
        values = read_json(mark, "mark")[split] if mark else {}
        n = values["shards"]
        return n if _as_mark(entries[:n]) == values else 0
    except (UserError, KeyError, TypeError):
        return 0


def _read(path: Path, end_of_text: int) -> tuple[str, int, int, int]:
    """SHA-256 of the tokens of a shard, the first and the largest one, and its documents."""
    digest, largest, documents, token = hashlib.sha256(), 0, 0, shards.token_type(path)
    with path.open("rb") as file:
        file.seek(shards.HEADER_BYTES)
        first = int.from_bytes(file.read(token.itemsize), "little")
        file.seek(shards.HEADER_BYTES)
        while data := file.read(BLOCK_BYTES):
            digest.update(data)
            tokens = np.frombuffer(data, dtype=token)
            largest = max(largest, int(tokens.max()))
            documents += int(np.count_nonzero(tokens == end_of_text))
    return digest.hexdigest(), first, largest, documents


def _problem(folder: Path, found: dict[str, list[Shard]], place: tuple[str, int]) -> str:
    """What is wrong with a shard; empty if nothing is."""
    split, i = place
    path = folder / (shard := found[split][i]).file
    try:
        record = shards.read_sidecar(path.with_suffix(".json"), split, i)
        sha256, first, largest, documents = _read(path, record["end_of_text"])
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"shard {path} cannot be read: {error.strerror}"
    for what, value, expected, source in (
        ("SHA-256", sha256, shard.sha256, "manifest"),
        ("SHA-256", sha256, record["sha256"], "sidecar"),
        ("number of tokens", record["tokens"], shard.tokens, "manifest"),
        ("number of documents", documents, record["documents"], "sidecar"),
        ("number of positions", sum(record["own_context"]), record["tokens"], "sidecar"),
        ("first token", first, record["end_of_text"], "tokenizer"),
        ("largest token", max(largest, record["end_of_text"]), record["end_of_text"], "tokenizer"),
    ):
        if value != expected:
            return f"shard {path} has {what} {value}, but its {source} states {expected}"
    return ""
