"""Intervals of predicted losses are those of their distribution."""

from typing import Any

import numpy as np
import pytest

from lmscaling.fits import unfinished
from lmscaling.records.forecast import Predicted

interval: Any = unfinished.interval


def test_a_prediction_without_degrees_is_normal_and_its_intervals_are_nested():
    found = Predicted(median=2.0, sd=0.1)
    ends = [interval(found, level) for level in (0.5, 0.8, 0.95)]
    assert ends[2] == pytest.approx((2 * np.exp(-0.196), 2 * np.exp(0.196)), rel=1e-3)
    lows, highs = zip(*ends, strict=True)
    assert lows[2] < lows[1] < lows[0] < 2.0 < highs[0] < highs[1] < highs[2]
