"""Leaves out of training the documents that are equal to validation documents or like them."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lmscaling.config.datasets import Dataset
from lmscaling.config.types import Split
from lmscaling.data import sources
from lmscaling.data.ngrams import HASH, Index, hashes
from lmscaling.files import replacing

FINGERPRINT_BYTES = 16


class Selection:
    """Leaves out documents of a training shard, and records those of a validation shard.

    Args:
        row: The dataset.
        split: ``"train"`` or ``"validation"``.
        folder: Folder of the shards. Training reads there what validation has recorded.
    """

    def __init__(self, row: Dataset, split: Split, folder: Path) -> None:
        self._words = row.decontaminate
        self._records = split == "validation"
        self._equal = set() if self._records else _fingerprints(folder)
        runs = sorted(folder.glob("validation-*.ngrams"))
        self._index = (
            Index(runs, self._words) if runs and self._words and not self._records else None
        )
        self._seen: list[bytes] = []
        self._runs: list[np.ndarray] = [np.zeros(0, dtype=HASH)]
        self.n = self.n_bytes = self.n_equal = self.n_near = 0
        self.sha256 = hashlib.sha256()
        """Of the fingerprints of the remaining documents, in order."""

    @property
    def n_all(self) -> int:
        """Number of documents, those that were left out included."""
        return self.n + self.n_equal + self.n_near

    def filter(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            key = sources.fingerprint(text)
            if key in self._equal:
                self.n_equal += 1
                continue
            if self._index and self._index.has(text):
                self.n_near += 1
                continue
            self.n += 1
            self.n_bytes += sources.n_bytes(text)
            self.sha256.update(key)
            if self._records:
                self._seen.append(key)
                if self._words:
                    self._runs.append(np.unique(hashes(text, self._words)))
            yield text

    def summary(self) -> dict[str, Any]:
        """Fields of the sidecar."""
        return {
            "documents": self.n,
            "bytes": self.n_bytes,
            "documents_dropped": self.n_equal,
            "near_duplicates": self.n_near,
            "documents_sha256": self.sha256.hexdigest(),
        }

    def write(self, shard: Path) -> None:
        """Write what a validation shard records, beside the shard."""
        if self._records:
            if self._words:
                with replacing(shard.with_suffix(".ngrams")) as file:
                    file.write(np.unique(np.concatenate(self._runs)).tobytes())
            with replacing(shard.with_suffix(".fingerprints")) as file:
                file.write(b"".join(self._seen))


def _fingerprints(folder: Path) -> set[bytes]:
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("validation-*.fingerprints")))
    return {data[i : i + FINGERPRINT_BYTES] for i in range(0, len(data), FINGERPRINT_BYTES)}
