"""Leaves out of training the documents that are equal to validation documents."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lmscaling.config.types import Split
from lmscaling.data.documents import fingerprint
from lmscaling.files import replacing

FINGERPRINT_BYTES = 16


class Selection:
    """Leaves out documents of a training shard, and records those of a validation shard in
    ``folder``, the folder of the shards."""

    def __init__(self, split: Split, folder: Path) -> None:
        self._equal: set[bytes] = set() if split == "validation" else _fingerprints(folder)
        self._seen: list[bytes] | None = [] if split == "validation" else None
        self.n = self.n_bytes = self.n_equal = 0
        self.sha256 = hashlib.sha256()
        """Of the fingerprints of the remaining documents, in order."""

    def filter(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            key = fingerprint(text)
            if key in self._equal:
                self.n_equal += 1
                continue
            self.n += 1
            self.n_bytes += len(text.encode("utf-8", "surrogatepass"))
            self.sha256.update(key)
            if self._seen is not None:
                self._seen.append(key)
            yield text

    def summary(self) -> dict[str, Any]:
        """Fields of the sidecar."""
        return {
            "documents": self.n,
            "bytes": self.n_bytes,
            "documents_dropped": self.n_equal,
            "documents_sha256": self.sha256.hexdigest(),
        }

    def write(self, shard: Path) -> None:
        """Write the fingerprints of a validation shard, beside the shard."""
        if self._seen is not None:
            with replacing(shard.with_suffix(".fingerprints")) as file:
                file.write(b"".join(self._seen))


def _fingerprints(folder: Path) -> set[bytes]:
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("validation-*.fingerprints")))
    return {data[i : i + FINGERPRINT_BYTES] for i in range(0, len(data), FINGERPRINT_BYTES)}
