"""Confidence intervals, and numbers for labels of runs and cells."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A confidence interval, 95 % unless stated otherwise; an open end is None."""

    low: float | None
    high: float | None
    assumed: float | None = None
    """Standard deviation between seeds, nats, that the range assumes because none was measured.
    Such a range is no confidence interval."""

    def __contains__(self, value: float) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    @property
    def width(self) -> float:
        """Infinite if an end is open."""
        return np.inf if self.low is None or self.high is None else self.high - self.low


def codes(labels: Iterable) -> NDArray[np.intp]:
    """Number the labels from 0 in order of appearance."""
    known: dict = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.intp)
