"""Intervals contain their ends and all beyond an open one; labels become numbers."""

import numpy as np
import pytest

from lmscaling.fits.uncertainty import Interval, codes


@pytest.mark.parametrize(("low", "high", "inside"), [
    (1.0, 2.0, {1.0, 1.5, 2.0}), (None, 2.0, {0.5, 1.0, 1.5, 2.0}), (1.0, None, {1.0, 1.5, 2.0, 9}),
])  # fmt: skip
def test_an_interval_includes_its_ends(low, high, inside):
    interval = Interval(low, high)
    assert {value for value in inside if value in interval} == inside
    assert 0.99 not in Interval(1.0, high)
    assert 2.01 not in Interval(low, 2.0)


def test_an_open_interval_has_no_finite_width():
    assert Interval(None, 1.0).width == np.inf
    assert Interval(1.0, None).width == np.inf
    assert Interval(1.0, 3.0).width == 2


def test_labels_are_numbered_in_order_of_appearance():
    assert codes(["b", 7, "b", None, 7]).tolist() == [0, 1, 0, 2, 1]
