"""Crossings of two curves: which points count, between which a crossing lies, and where."""

import numpy as np
import pytest

from lmscaling.fits import crossing

ERROR = 0.005
CHANCE = 1.959964 * ERROR
"""The largest gap that chance makes in 95 of 100 pairs."""


@pytest.mark.parametrize(("gap", "status"), [
    ([0.99, -0.99], "within_noise"), ([1.01, 0.5], "none"), ([1.01, -1.01], "crossed"),
    ([1.01, -0.99], "open"), ([], "apart"),
])  # fmt: skip
def test_only_gaps_beyond_chance_count(gap, status):
    found = crossing.fit([10, 20][: len(gap)], CHANCE * np.array(gap), ERROR)
    assert found.status == status


@pytest.mark.parametrize(
    ("gap", "ahead"), [([-2, -3], "other"), ([2, 3], "reference"), ([2, -3, 0.1], "other")]
)
def test_who_is_ahead_has_the_lower_loss_at_the_last_point_that_counts(gap, ahead):
    assert crossing.fit(range(1, len(gap) + 1), CHANCE * np.array(gap), ERROR).ahead == ahead


def test_a_crossing_lies_where_the_gap_is_zero_in_the_logarithm():
    found = crossing.fit([1, 100], [0.3, -0.1], ERROR)
    (only,) = found.points
    assert only.at == pytest.approx(100**0.75)
    assert only.ahead_after == "other"
    low, high = ((0.3 - side * CHANCE) / 0.4 for side in (1, -1))
    assert only.interval.low == pytest.approx(100**low)
    assert only.interval.high == pytest.approx(100**high)
    assert found.observed == (1, 100)


def test_points_that_chance_may_have_made_do_not_bound_a_crossing():
    x, gap = [1, 2, 4, 8, 16], [-0.1, -0.002, 0.001, 0.003, 0.1]
    (only,) = crossing.fit(x, gap, ERROR).points
    assert only.interval.low == pytest.approx(2 ** ((0.1 - CHANCE) / (0.1 - 0.002)))
    assert only.interval.high == pytest.approx(8 * 2 ** ((CHANCE - 0.003) / (0.1 - 0.003)))
    assert only.at == pytest.approx(2 * 2 ** (2 / 3))
    assert only.ahead_after == "reference"


def test_of_several_zeros_between_two_sure_points_the_middle_one_counts():
    x = 2.0 ** np.arange(6)
    (only,) = crossing.fit(x, [0.1, -0.001, 0.001, -0.001, -0.002, -0.1], ERROR).points
    assert only.at == pytest.approx(2**1.5)


def test_curves_may_cross_twice():
    (zero,) = crossing.fit([1, 2, 4], [0.1, 0.0, -0.1], ERROR).points
    assert zero.at == pytest.approx(2)  # a gap of zero belongs to the side before it
    found = crossing.fit([1, 2, 4, 8], [0.1, -0.1, -0.2, 0.2], ERROR)
    assert [c.ahead_after for c in found.points] == ["other", "reference"]
    assert [c.at for c in found.points] == pytest.approx([2**0.5, 4 * 2**0.5])


def test_the_fewer_the_degrees_of_freedom_the_larger_a_gap_must_be():
    """Tables of t: 4.303 with two degrees of freedom."""
    for gap, status in ((4.30, "within_noise"), (4.31, "none")):
        assert crossing.fit([1, 2], ERROR * np.full(2, gap), ERROR, degrees=2).status == status


def test_a_crossing_is_open_where_no_later_gap_exceeds_the_noise():
    found = crossing.fit([1, 2, 4, 8], [0.1, 0.02, -0.001, -0.002], ERROR)
    assert (found.status, found.ahead) == ("open", "reference")
    (only,) = found.points
    assert only.interval.low == pytest.approx(2 * 2 ** ((0.02 - CHANCE) / 0.021))
    assert only.interval.high is None
    assert 2 < only.at < 4
    assert only.ahead_after == "other"


def test_the_error_may_differ_from_place_to_place():
    gap = [0.1, 0.03, -0.03, -0.1]
    (only,) = crossing.fit([1, 2, 4, 8], gap, [0.01, 0.1, 0.01, 0.01]).points
    assert only.interval.low is not None
    assert only.interval.high is not None
    assert 1 < only.interval.low < 2 < only.interval.high < 4


def test_p_is_that_of_the_more_doubtful_side():
    """Two-sided, of a normal distribution: 3.29 gives 0.001, 1.96 gives 0.05."""
    gap = ERROR * np.array([3.2905, 0, -1.96, 1])
    assert crossing.fit([1, 2, 3, 4], gap, ERROR).p == pytest.approx(0.05, abs=1e-4)
    assert crossing.fit([1, 2], [0.1, 0.2], ERROR).p == 1  # one sign
    assumed = crossing.fit([1, 2], [0.1, -0.1], ERROR, assumed=0.002)
    assert (assumed.p, assumed.points[0].interval.assumed) == (None, 0.002)
