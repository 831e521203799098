"""Crossings of two curves: which points count, between which a crossing lies, and where."""

import numpy as np
import pytest

from lmscaling.fits import crossing
from lmscaling.fits.uncertainty import Interval, Noise

NOISE = Noise(seed_sd=0.003, point_sd=0.004)
CHANCE = 1.959964 * np.sqrt(2) * 0.005
"""The largest gap that chance makes in 95 of 100 pairs."""


@pytest.mark.parametrize(("gap", "status"), [
    ([0.99, -0.99], "within_noise"), ([1.01, 0.5], "none"), ([1.01, -1.01], "crossed"),
    ([1.01, -0.99], "none"), ([], "apart"),
])  # fmt: skip
def test_only_gaps_beyond_chance_count(gap, status):
    found = crossing.fit([10, 20][: len(gap)], CHANCE * np.array(gap), NOISE)
    assert found.status == status


@pytest.mark.parametrize(
    ("gap", "ahead"), [([-2, -3], "other"), ([2, 3], "reference"), ([2, -3, 0.1], "other")]
)
def test_who_is_ahead_has_the_lower_loss_at_the_last_point_that_counts(gap, ahead):
    assert crossing.fit(range(1, len(gap) + 1), CHANCE * np.array(gap), NOISE).ahead == ahead


def test_a_crossing_lies_where_the_gap_is_zero_in_the_logarithm():
    found = crossing.fit([1, 100], [0.3, -0.1], NOISE)
    (only,) = found.points
    assert only.at == pytest.approx(100**0.75)
    assert (only.interval, only.ahead_after) == (Interval(1, 100), "other")
    assert found.observed == (1, 100)


def test_points_that_chance_may_have_made_do_not_bound_a_crossing():
    x, gap = [1, 2, 4, 8, 16], [-0.1, -0.002, 0.001, 0.003, 0.1]
    (only,) = crossing.fit(x, gap, NOISE).points
    assert only.interval == Interval(1, 16)
    assert only.at == pytest.approx(2 * 2 ** (2 / 3))
    assert only.ahead_after == "reference"


def test_of_several_zeros_between_two_sure_points_the_middle_one_counts():
    x = 2.0 ** np.arange(6)
    (only,) = crossing.fit(x, [0.1, -0.001, 0.001, -0.001, -0.002, -0.1], NOISE).points
    assert only.at == pytest.approx(2**1.5)


def test_a_gap_of_zero_belongs_to_the_side_before_it():
    (only,) = crossing.fit([1, 2, 4], [0.1, 0.0, -0.1], NOISE).points
    assert only.at == pytest.approx(2)


def test_curves_may_cross_twice():
    found = crossing.fit([1, 2, 4, 8], [0.1, -0.1, -0.2, 0.2], NOISE)
    assert [c.ahead_after for c in found.points] == ["other", "reference"]
    assert [c.at for c in found.points] == pytest.approx([2**0.5, 4 * 2**0.5])
