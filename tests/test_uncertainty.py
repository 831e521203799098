"""Intervals: their ends, and those of a ratio, which cover it as often as they say."""

from itertools import pairwise

import coverage_rates
import numpy as np
import pytest
from coverage import verdict
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from lmscaling.fits import fieller
from lmscaling.fits.fieller import Moments
from lmscaling.fits.noise import Spread
from lmscaling.fits.uncertainty import LEVEL, Interval, codes

T = float(t.isf((1 - LEVEL) / 2, 30))
NUMBERS = st.floats(-100, 100)


def contained(inner: Interval | None, outer: Interval | None) -> bool:
    """Whether an interval with two ends lies in another one."""
    assert inner is not None
    assert outer is not None
    assert inner.low is not None
    assert inner.high is not None
    return inner.low in outer and inner.high in outer


SCALES = st.floats(0.01, 10)


def moments(numerator, denominator, first, second, correlation):
    shared = correlation * first * second
    return Moments(numerator, denominator, first**2, second**2, shared)


MOMENTS = st.builds(moments, NUMBERS, NUMBERS, SCALES, SCALES, st.floats(-0.9, 0.9))


@given(NUMBERS, NUMBERS, SCALES)
def test_an_interval_has_its_ends_and_no_end_where_it_is_open(low, high, step):
    high = low + abs(high)
    for closed in (Interval(low, high), Interval(None, high), Interval(low, None)):
        assert (low - step in closed) == (closed.low is None)
        assert (high + step in closed) == (closed.high is None)
        assert low in closed
        assert high in closed
    assert Interval(low, high).width == high - low
    assert Interval(None, high).width == Interval(low, None).width == np.inf


@given(NUMBERS, SCALES, st.sampled_from([1.0, 2.0, 8.0, np.inf]), st.integers(1, 9))
def test_intervals_hold_their_estimate_and_grow_with_their_level(mean, sd, degrees, seeds):
    spread = Spread(sd, degrees, seeds, "measured", "")
    ends = [spread.interval(mean, level) for level in (0.5, 0.8, LEVEL, 0.99)]
    assert mean in ends[0]
    for inner, outer in pairwise(ends):
        assert contained(inner, outer)
    assert spread.interval(mean) == ends[2]


@given(st.lists(st.sampled_from("abcde")))
def test_labels_are_numbered_in_order_of_appearance(labels):
    order = list(dict.fromkeys(labels))
    assert codes(labels).tolist() == [order.index(one) for one in labels]


@given(MOMENTS)
def test_a_ratio_may_be_what_is_not_significantly_different(m):
    """The ends are where the difference is just significant, and the estimate is inside."""
    found = fieller.interval(m, T)
    bounded = abs(m.denominator) > T * m.denominator_variance**0.5
    assert ((found.low, found.high) == (None, None)) is not bounded
    if found.low is not None and found.high is not None:
        assert found.low <= m.numerator / m.denominator <= found.high
        for r in (found.low, found.high):
            variance = m.numerator_variance + r * r * m.denominator_variance - 2 * r * m.covariance
            away = (m.numerator - r * m.denominator) ** 2
            assert away == pytest.approx(T**2 * variance, rel=1e-3, abs=1e-6)
        assert contained(fieller.interval(m, T / 2), found)


@given(MOMENTS, st.sampled_from([0.25, 2.0, 8.0]))
def test_units_scale_an_interval_and_a_sign_mirrors_it(m, unit):
    def same(found, low, high):
        ends = [found.low, found.high]
        assert ends == ([None, None] if low is None else pytest.approx([low, high], rel=1e-6))

    plain = fieller.interval(m, T)
    low, high = plain.low, plain.high
    scaled = m._replace(
        numerator=unit * m.numerator,
        numerator_variance=unit**2 * m.numerator_variance,
        covariance=unit * m.covariance,
    )
    turned = m._replace(numerator=-m.numerator, covariance=-m.covariance)
    if low is None or high is None:
        same(fieller.interval(scaled, T), None, None)
        same(fieller.interval(turned, T), None, None)
    else:
        same(fieller.interval(scaled, T), unit * low, unit * high)
        same(fieller.interval(turned, T), -high, -low)


@pytest.mark.parametrize("denominator", [0.0, 0.5, -0.5])
def test_a_denominator_that_may_be_zero_leaves_both_ends_open(denominator):
    found = fieller.interval(Moments(6.0, denominator, 0.2, 0.1, 0.0), T)
    assert (found.low, found.high) == (None, None)


def test_a_positive_ratio_keeps_its_lower_end_while_the_numerator_is_not_zero():
    found = fieller.of_positive(Moments(6.0, 0.5, 0.2, 0.1, 0.0), T)
    assert found.high is None
    assert found.low is not None
    assert 0 < found.low < 12
    nothing = fieller.of_positive(Moments(0.1, 0.5, 0.2, 0.1, 0.0), T)
    assert (nothing.low, nothing.high) == (None, None)


@pytest.mark.parametrize(("scale", "samples"), [(10, 8), (100, 40), (1000, 8)])
def test_intervals_of_noise_scales_cover_the_truth(scale, samples):
    row = coverage_rates.scale(scale, samples, 500)
    assert verdict(row) == ("conservative" if scale == 1000 else "ok"), row
