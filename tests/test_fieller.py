"""The interval of a ratio covers it as often as it says, and is open where nothing is known."""

import coverage_rates
import pytest
from coverage import verdict
from scipy.stats import t

from lmscaling.fits import fieller
from lmscaling.fits.fieller import Moments
from lmscaling.fits.uncertainty import LEVEL

T = float(t.isf((1 - LEVEL) / 2, 30))


def test_the_ends_are_where_the_difference_is_just_significant():
    m = Moments(6.0, 3.0, 0.2, 0.1, 0.05)
    found = fieller.interval(m, T)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 2 < found.high
    for r in (found.low, found.high):
        variance = m.numerator_variance + r * r * m.denominator_variance - 2 * r * m.covariance
        assert (m.numerator - r * m.denominator) ** 2 == pytest.approx(T**2 * variance)


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


@pytest.mark.parametrize("samples", [8, 40])
@pytest.mark.parametrize("scale", [10, 100, 1000])
def test_intervals_of_noise_scales_cover_the_truth(samples, scale):
    row = coverage_rates.scale(scale, samples, 500)
    assert verdict(row) == ("conservative" if scale == 1000 else "ok"), row
