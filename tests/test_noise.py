"""Noise of runs: its covariance, what seeds say of it, replicates, intervals and misfits."""

import numpy as np
import pytest

from lmscaling.fits import uncertainty
from lmscaling.fits.uncertainty import Interval, Noise, Runs

PAIRED = Runs(np.array([0, 0, 1, 2]), np.array([0, 0, 1]))
"""Four points of three runs, of which the first two differ in seed alone."""


def test_a_run_shares_one_draw_and_each_point_has_its_own():
    noise = Noise(seed_sd=0.3, point_sd=0.4)
    assert noise.sd == pytest.approx(0.5)
    white = PAIRED.whitener(noise)
    covariance = np.linalg.inv(white.T @ white)
    expected = np.diag([0.25] * 4)
    expected[0, 1] = expected[1, 0] = 0.09
    np.testing.assert_allclose(covariance, expected, atol=1e-12)


def test_the_stated_noise_is_that_of_the_sources():
    assert Noise(seed_sd=0.002, point_sd=0.0005, degrees=None) == uncertainty.STATED


def test_deviations_are_those_from_the_mean_of_the_seeds_widened_for_their_number():
    """Means of the runs are 2, 4 and 9; two seeds lie 1 from their mean, times sqrt(2)."""
    found = PAIRED.deviations(np.array([1.0, 3.0, 4.0, 9.0]))
    assert found == pytest.approx([-np.sqrt(2), np.sqrt(2), 0])
    three = Runs(np.arange(3), np.zeros(3, dtype=int))
    expected = np.array([-1, 0, 1]) * np.sqrt(3 / 2)
    assert three.deviations(np.array([1.0, 2.0, 3.0])) == pytest.approx(expected)


def test_seeds_give_the_noise_from_three_degrees_of_freedom_on():
    residual = np.array([1.0, 3.0, 2.0, 6.0, 5.0, 5.0, 0.0, 8.0])
    runs = Runs(np.arange(8), np.repeat(np.arange(4), 2))
    found = runs.noise(residual)
    variances = [np.var(pair, ddof=1) for pair in residual.reshape(4, 2)]
    assert found.seed_sd == pytest.approx(np.sqrt(np.mean(variances)))
    assert (found.degrees, found.point_sd) == (4, 0.0005)
    assert Runs(np.arange(6), np.repeat(np.arange(3), 2)).noise(residual[:6]).degrees == 3
    few = Runs(np.arange(4), np.repeat(np.arange(2), 2))
    assert few.noise(residual[:4]) is uncertainty.STATED


def test_replicates_have_the_stated_spread_and_runs_move_together():
    noise = Noise(seed_sd=0.3, point_sd=0.4)
    alone = Runs(np.array([0, 0, 1]), np.array([0, 1]))
    drawn = uncertainty.replicates([1.0, 2.0, 3.0], np.zeros(3), alone, noise, count=20_000)
    assert drawn.shape == (20_000, 3)
    assert drawn.mean(axis=0) == pytest.approx([1, 2, 3], abs=0.02)
    covariance = np.cov(drawn.T)
    assert np.diag(covariance) == pytest.approx([0.25] * 3, rel=0.05)
    assert covariance[0, 1] == pytest.approx(0.09, abs=0.01)
    assert covariance[0, 2] == pytest.approx(0, abs=0.01)


def test_replicates_of_a_cell_with_seeds_are_drawn_from_their_deviations():
    noise = Noise(seed_sd=1e9, point_sd=0)  # must not be used for the cell with two seeds
    runs = Runs(np.array([0, 1]), np.array([0, 0]))
    drawn = uncertainty.replicates([5.0, 5.0], [-1.0, 1.0], runs, noise, count=400)
    values = np.unique(drawn.round(6))
    assert values == pytest.approx([5 - np.sqrt(2), 5 + np.sqrt(2)])
    assert drawn.mean() == pytest.approx(5, abs=0.2)


def test_few_seeds_make_replicates_wider():
    runs = Runs(np.arange(2), np.arange(2))
    known, few = (
        uncertainty.replicates(
            np.zeros(2), np.zeros(2), runs, Noise(seed_sd=1, point_sd=0, degrees=degrees), 40_000
        )
        for degrees in (None, 5)
    )
    assert known.var() == pytest.approx(1, rel=0.03)
    assert few.var() == pytest.approx(5 / 3, rel=0.1)  # Student's t of five degrees


@pytest.mark.parametrize(("low", "high", "inside"), [
    (1.0, 2.0, {1.0, 1.5, 2.0}), (None, 2.0, {0.5, 1.0, 1.5, 2.0}), (1.0, None, {1.0, 1.5, 2.0, 9}),
])  # fmt: skip
def test_an_interval_includes_its_ends(low, high, inside):
    interval = Interval(low, high)
    assert {value for value in inside if value in interval} == inside
    assert 0.99 not in Interval(1.0, high)
    assert 2.01 not in Interval(low, 2.0)
    assert interval.width == (1.0 if None not in (low, high) else np.inf)


def test_the_interval_of_replicates_leaves_out_a_fortieth_on_each_side():
    found = uncertainty.interval(np.arange(1001.0))
    assert (found.low, found.high) == (25, 975)
    half = uncertainty.interval(np.arange(1001.0), level=0.5)
    assert (half.low, half.high) == (250, 750)


def test_infinite_and_unknown_replicates_open_the_ends():
    drawn = np.arange(1001.0)
    drawn[-40:] = np.inf
    assert uncertainty.interval(drawn).high is None
    assert uncertainty.interval(drawn).low == 25
    drawn[-40:] = np.nan  # they count on both sides
    found = uncertainty.interval(drawn)
    assert (found.low, found.high) == (None, None)
    drawn[-40:-10] = 2000
    assert uncertainty.interval(drawn).low == 25 - 10
    assert uncertainty.interval(drawn).high == 2000


def test_a_misfit_is_a_chi_squared_beyond_the_99th_percentile():
    """Tables at 1 %: 23.21 for chi-squared of 10 degrees, 5.26 for F of 10 and 9."""
    stated, seeds = Noise(), Noise(degrees=9)
    assert uncertainty.misfit(23.3, stated, 10)
    assert not uncertainty.misfit(23.1, stated, 10)
    assert uncertainty.misfit(10 * 5.3, seeds, 10)
    assert not uncertainty.misfit(10 * 5.2, seeds, 10)


@pytest.mark.parametrize("misfit", [1.0, 3.0, 100.0])
def test_noise_is_widened_until_chi_squared_is_its_degrees_of_freedom(misfit):
    """A chi-squared that falls with the variance of a point: the answer is known."""
    noise = Noise(seed_sd=0.002, point_sd=0.0005)
    found = uncertainty.widen(lambda n: 10 * (misfit * 0.0005 / n.point_sd) ** 2, noise, 10)
    assert found.point_sd == pytest.approx(misfit * 0.0005, rel=2e-3)
    assert found.seed_sd == noise.seed_sd
