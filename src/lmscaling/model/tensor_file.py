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

from lmscaling.files import TENSORS, THREADS, check_tensors, new_file, tensors_digest


class Content(NamedTuple):
    """What was read from a file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    digest: str
    """SHA-256 of everything in the file, in hexadecimal."""


def write(path: Path, tensors: dict[str, Tensor], **metadata: str) -> None:
    """Write tensors, which are in host memory and contiguous, atomically."""

    def digest_of(tensor: Tensor) -> str:
        return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).hexdigest()

    with ThreadPoolExecutor(THREADS) as pool:  # hashing does not hold the interpreter
        digests = dict(zip(tensors, pool.map(digest_of, tensors.values()), strict=True))
    kinds = {name: [str(t.dtype), list(t.shape), digests[name]] for name, t in tensors.items()}
    digest = tensors_digest(kinds, metadata)
    values = {"sha256": digests, "values": metadata, "digest": digest}
    with new_file(path) as temporary:
        save_file(tensors, temporary, {TENSORS: json.dumps(values)})


def read(path: Path) -> Content:
    """Read all tensors of a file and compare everything with its digests.

    Raises:
        SafetensorError, OSError: The file is no safetensors file, or missing.
        ValueError: It is cut, or something in it differs from its digest, or has none.
    """
    metadata, digest = check_tensors(path)
    with safe_open(path, framework="pt") as file:
        return Content({n: file.get_tensor(n) for n in list(file.keys())}, metadata, digest)
