"""The interval of a ratio covers it as often as it says, and is open where nothing is known."""

import numpy as np
import pytest
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


def studies(count, samples, scale, rng, dimensions=30, small=16, big=64):
    """Moments of the noise and signal of ``count`` studies, from norms of simulated gradients of
    two batch sizes; the true gradient has norm 1."""
    shape = (count, samples, big // small, dimensions)
    true = np.full(dimensions, dimensions**-0.5)
    parts = true + rng.normal(0, np.sqrt(scale / dimensions / small), shape)
    whole_2 = (parts.mean(axis=2) ** 2).sum(axis=-1)
    first_2 = (parts[:, :, 0] ** 2).sum(axis=-1)
    signal = (big * whole_2 - small * first_2) / (big - small)
    noise = (first_2 - whole_2) / (1 / small - 1 / big)
    for s, n in zip(signal, noise, strict=True):
        c = np.cov(n, s) / samples
        yield Moments(n.mean(), s.mean(), c[0, 0], c[1, 1], c[0, 1])


@pytest.mark.ci
@pytest.mark.parametrize("samples", [8, 40])
@pytest.mark.parametrize("scale", [10, 100, 1000])
def test_intervals_of_noise_scales_cover_the_truth_in_95_of_100_studies(samples, scale):
    rng, quantile = np.random.default_rng(0), float(t.isf((1 - LEVEL) / 2, samples - 1))
    found = [fieller.of_positive(m, quantile) for m in studies(500, samples, scale, rng)]
    assert 0.92 <= np.mean([scale in one for one in found]) <= 0.975
