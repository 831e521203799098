"""How many documents of a text are kept, and how many are left out, for what reason."""

from collections import Counter
from pathlib import Path
from typing import Any

from lmscaling.files import read_json, write_json

FILE = "documents.json"
"""In the folder of a text: for each split, its documents and those left out by reason."""


def count(folder: Path, counts: dict[str, int]) -> dict[str, Any]:
    """Add up the sidecars of the first shards of each split, and write the sums to ``FILE``."""
    kept: dict[str, Any] = {}
    for split, n in counts.items():
        out: Counter[str] = Counter()
        documents = 0
        for i in range(n):
            record = read_json(folder / f"{split}-{i:05d}.json", "sidecar")
            documents += record.get("documents", 0)
            out["copies of a validation document"] += record.get("documents_dropped", 0)
        left_out = {reason: m for reason, m in out.items() if m}
        kept[split] = {"documents": documents, "left_out": left_out}
    write_json(folder / FILE, kept)
    return kept


def read(folder: Path) -> dict[str, Any]:
    """The sums of a text; none if they were not written."""
    path = folder / FILE
    return read_json(path, "counts of documents") if path.is_file() else {}


def sentences(kept: dict[str, Any]) -> list[str]:
    """A sentence for each split of which documents were left out."""
    return [
        f"{split}: {part['documents']:,} documents; left out: "
        + ", ".join(f"{n:,} {reason}" for reason, n in part["left_out"].items())
        for split, part in kept.items()
        if part["left_out"]
    ]
