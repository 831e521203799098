"""Records of images that a trained model has drawn."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Sample:
    """``samples/<run>.json``: images drawn pixel by pixel from the state of a model."""

    record: ClassVar[str] = "sample"
    run: str
    """Cell name and hash."""
    shape: list[int]
    """Rows and columns of an image."""
    levels: int
    """Largest value of a pixel in the data."""
    images: list[list[int]]
    """Pixels of each image drawn, row by row; empty of a run whose weights cannot draw."""
    data: list[list[int]]
    """The first validation images, for comparison."""
    temperature: float = 1.0
    """Logits were divided by it."""
    batch: int
    """Images drawn at the same time."""
    tokens_per_second: float | None
    """Pixels of all images per second of the decode steps, in the fastest of several passes: of
    wall clock on a GPU, of process time on a CPU; null without images."""
    device: str
    """Name of the GPU or the CPU; empty without images."""
