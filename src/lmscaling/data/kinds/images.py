"""Images as sequences of pixels: MNIST or CIFAR-10 where their files are, or scikit-learn's digits.

A model of the bytes of pixels draws images; its loss in bits is the usual bits per dimension.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), section 4.2.1; the files are those of LeCun,
Cortes and Burges, in the idx format that their page describes, and the binary version of CIFAR-10
on Krizhevsky's page.
"""

import gzip
import math
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from lmscaling.data.sequences import AT_ONCE, Sequences
from lmscaling.errors import UserError
from lmscaling.types import STRICT, HeldOut, Split

DIGITS = "digits"
SIDE = 8
"""Pixels of a side of a digit of scikit-learn; values are 0 to 16."""
MAGIC = bytes([0, 0, 8])
"""First bytes of an idx file of bytes; the next one is the number of dimensions."""
CIFAR = (3, 32, 32)
"""Colours, rows and columns of an image of CIFAR-10, after a byte with its label."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Images(Sequences):
    """Images of one size, row by row, a token for each pixel, or for each of its three colours."""

    kind: Literal["images"]
    train: str
    """An idx file of images, plain or ``.gz``, as ``train-images-idx3-ubyte.gz``; a binary file of
    CIFAR-10, or its five joined; or ``digits``, the 1,797 images of 8 x 8 pixels of the package
    scikit-learn."""
    validation: str = ""
    """A file of validation images; if empty, ``holdout`` of ``train`` is held out."""
    holdout: HeldOut = 0.2
    """Share of images held out, chosen by content hash, if ``validation`` is empty."""

    def local(self) -> list[tuple[str, str]]:
        named = [("train", self.train), ("validation", self.validation)]
        return [(key, path) for key, path in named if path and path != DIGITS]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of an image, and its colours if it has several."""
        return (SIDE, SIDE) if self.train == DIGITS else _shape(Path(self.train))[1:]

    @property
    def length(self) -> int:
        return 1 + math.prod(self.shape)

    def files(self, split: Split) -> list[str]:
        return [self.validation if split == "validation" and self.validation else self.train]

    def number(self, split: Split) -> int | None:
        if split == "validation" and self.validation:
            return _shape(Path(self.validation))[0]
        can_read = self.train != DIGITS or find_spec("sklearn")
        return sum(map(len, self.made(split))) if can_read else None

    def made(self, split: Split) -> Iterator[np.ndarray]:
        name = self.files(split)[0]
        rows = _digits() if name == DIGITS else _pixels(Path(name))
        if not self.validation:
            codes = [blake2b(row.astype("u1").tobytes(), digest_size=8).digest() for row in rows]
            held = np.array([int.from_bytes(c, "big") < self.holdout * 2**64 for c in codes])
            rows = rows[held == (split == "validation")]
        if rows.shape[1] != self.length - 1:
            sizes = f"{rows.shape[1]} pixels, and {self.train} of {self.length - 1}"
            raise UserError(f"{name} has images of {sizes}; name files of one size")
        for start in range(0, len(rows), AT_ONCE):
            yield rows[start : start + AT_ONCE].astype(np.uint16)

    def marks(self, x_BT: np.ndarray) -> np.ndarray:
        marks_BT = np.ones(x_BT.shape, dtype=np.uint8)
        marks_BT[:, -1] = 0
        return marks_BT

    def provenance(self, split: Split, shard: int) -> dict[str, Any]:
        return {"shape": list(self.shape)}


def _digits() -> np.ndarray:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError(
            "dataset train: digits needs the package scikit-learn; pip install scikit-learn"
        ) from None
    return load_digits().data.astype("u1")  # pyright: ignore[reportAttributeAccessIssue]


def _data(path: Path, n: int = -1) -> bytes:
    """The first n bytes of a file, or all."""
    if not path.is_file():
        raise UserError(f"dataset file {path} does not exist; correct the dataset's row")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(n)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"dataset file {path} cannot be read: {error}; download it again") from None


def _shape(path: Path) -> tuple[int, ...]:
    """Images, rows, columns and perhaps colours of a file; UserError if it has no images."""
    head = _data(path, 20)
    is_idx = head[:3] == MAGIC
    if is_idx and head[3] in (3, 4):
        shape = tuple(int.from_bytes(head[i : i + 4], "big") for i in range(4, 4 + 4 * head[3], 4))
    else:
        n, rest = divmod(0 if is_idx else len(_data(path)), 1 + math.prod(CIFAR))
        shape = () if rest or not n else (n, *CIFAR[1:], CIFAR[0])
    if not math.prod(shape) or not shape:
        raise UserError(
            f"{path} begins with {head[:4].hex(' ') or 'nothing'} and has no images of a size; "
            "allowed: 00 00 08 03 or 00 00 08 04, an idx file of images, as "
            "train-images-idx3-ubyte.gz, or the binary version of CIFAR-10, as data_batch_1.bin"
        )
    return shape


def _pixels(path: Path) -> np.ndarray:
    """Pixels of a file, uint8 ``[N, rows * columns * colours]``."""
    n, *shape = _shape(path)
    data = np.frombuffer(_data(path), dtype="u1")
    if len(data) == n * (1 + math.prod(CIFAR)) and bytes(data[:3]) != MAGIC:
        return data.reshape(n, -1)[:, 1:].reshape(n, *CIFAR).transpose(0, 2, 3, 1).reshape(n, -1)
    pixels = data[8 + 4 * len(shape) :]
    if len(pixels) != n * math.prod(shape):
        raise UserError(
            f"{path} has {len(pixels):,} pixels, but its header states {n:,} images of "
            f"{' x '.join(map(str, shape))}; download it again"
        )
    return pixels.reshape(n, -1)
