"""Files of named tensors, each with its SHA-256: safetensors, whose loading executes nothing."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from lmscaling.files import new_file

THREADS = 4
"""Threads that hash tensors; one hashes 0.5 to 2 GB/s."""


class Content(NamedTuple):
    """What was read from a file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    digest: str
    """SHA-256 of the names and digests of all tensors, in hexadecimal."""


def write(path: Path, tensors: dict[str, Tensor], **metadata: str) -> None:
    """Write tensors, which are in host memory and contiguous, atomically."""
    digests = json.dumps(_digests(tensors))
    with new_file(path) as temporary:
        save_file(tensors, temporary, {**metadata, "sha256": digests})


def read(path: Path) -> Content:
    """Read all tensors of a file and compare them with their digests.

    Raises:
        SafetensorError, OSError: The file is cut, no safetensors file, or missing.
        ValueError: A tensor differs from its digest, or has none.
    """
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    digests = _digests(tensors)
    expected = json.loads(metadata.pop("sha256", "{}"))
    for name in sorted({*expected, *digests}):
        if digests.get(name) != expected.get(name):
            raise ValueError(f"it is damaged: the SHA-256 of tensor {name} differs")
    names = json.dumps(sorted(digests.items()))
    return Content(tensors, metadata, hashlib.sha256(names.encode()).hexdigest())


def _digests(tensors: dict[str, Tensor]) -> dict[str, str]:
    def digest(tensor: Tensor) -> str:
        return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).hexdigest()

    with ThreadPoolExecutor(THREADS) as pool:  # hashing does not hold the interpreter
        return dict(zip(tensors, pool.map(digest, tensors.values()), strict=True))
