"""Files of named tensors under one digest: safetensors, whose loading executes nothing.

The metadata have one key, ``lmscaling``, whose JSON holds the SHA-256 of each tensor, other values,
and the SHA-256 of both, of the names, types and shapes. A bit that flips anywhere in the file is
therefore noticed. safetensors writes several keys in any order, and equal files must be equal.
"""

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

KEY = "lmscaling"

THREADS = 4
"""Threads that hash tensors; one hashes 0.5 to 2 GB/s."""


class Content(NamedTuple):
    """What was read from a file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    digest: str
    """SHA-256 of everything in the file, in hexadecimal."""


def write(path: Path, tensors: dict[str, Tensor], **metadata: str) -> None:
    """Write tensors, which are in host memory and contiguous, atomically."""
    digests = _digests(tensors)
    digest = _digest(tensors, digests, metadata)
    values = {"sha256": digests, "values": metadata, "digest": digest}
    with new_file(path) as temporary:
        save_file(tensors, temporary, {KEY: json.dumps(values)})


def read(path: Path) -> Content:
    """Read all tensors of a file and compare everything with its digests.

    Raises:
        SafetensorError, OSError: The file is cut, no safetensors file, or missing.
        ValueError: A tensor, a name or the metadata differ from their digest, or have none.
    """
    with safe_open(path, framework="pt") as file:
        header = json.loads((file.metadata() or {}).get(KEY, "{}"))
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    digests = _digests(tensors)
    try:
        expected, metadata, stated = header["sha256"], header["values"], header["digest"]
        names = [name for name in digests if digests[name] != expected.get(name)]
        digest = _digest(tensors, digests, metadata)
    except (AttributeError, KeyError, TypeError):
        raise ValueError("it is damaged: its metadata have no SHA-256") from None
    if names:
        raise ValueError(f"it is damaged: the SHA-256 of tensor {names[0]} differs")
    if digest != stated or expected.keys() != digests.keys():
        raise ValueError("it is damaged: the SHA-256 of its metadata differs")
    return Content(tensors, metadata, digest)


def _digests(tensors: dict[str, Tensor]) -> dict[str, str]:
    def digest(tensor: Tensor) -> str:
        return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).hexdigest()

    with ThreadPoolExecutor(THREADS) as pool:  # hashing does not hold the interpreter
        return dict(zip(tensors, pool.map(digest, tensors.values()), strict=True))


def _digest(tensors: dict[str, Tensor], digests: dict[str, str], metadata: dict[str, str]) -> str:
    """SHA-256 of the metadata and of name, type, shape and digest of each tensor."""
    kinds = {name: [str(t.dtype), list(t.shape), digests[name]] for name, t in tensors.items()}
    return hashlib.sha256(json.dumps([kinds, metadata], sort_keys=True).encode()).hexdigest()
