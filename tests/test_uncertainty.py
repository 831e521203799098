"""Replicates vary as runs do, and intervals say what they do not know."""

import numpy as np
import pytest

from lmscaling.fits import newton, uncertainty
from lmscaling.fits.uncertainty import Interval, Noise, Runs, replicates


def test_a_trunk_and_its_branches_share_one_draw():
    runs = Runs.from_labels(4, trunk=["a", "a", "b", "b"])
    drawn = replicates(np.zeros(4), np.zeros(4), runs, Noise(seed_sd=1.0, point_sd=0.1), 4000)
    known = np.corrcoef(drawn.T)
    assert known[0, 1] == pytest.approx(1 / 1.01, abs=0.005)
    assert known[0, 2] == pytest.approx(0, abs=0.05)
    assert drawn.std(axis=0) == pytest.approx(1.01**0.5, rel=0.05)


def test_the_whitener_undoes_the_noise():
    runs = Runs.from_labels(6, trunk=[0, 0, 0, 1, 1, 2])
    noise = Noise(seed_sd=0.5, point_sd=0.2)
    drawn = replicates(np.zeros(6), np.zeros(6), runs, noise, 20000)
    white = drawn @ runs.whitener(noise).T
    assert np.cov(white.T) == pytest.approx(np.eye(6), abs=0.05)


def test_seeds_are_drawn_again_within_their_cell_and_runs_stay_whole():
    trunk, cell = [0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]
    residual = np.array([0.3, 0.3, -0.1, -0.1, 9.0, 9.0])
    runs = Runs.from_labels(6, trunk, cell)
    drawn = replicates(np.zeros(6), residual, runs, Noise(seed_sd=1e-9, point_sd=0.0), 200)
    far = 0.2 * 2**0.5  # from the mean of two, widened by sqrt(2 / 1)
    assert sorted(set(drawn[:, :4].round(9).ravel())) == pytest.approx([-far, far])
    assert (drawn[:, ::2] == drawn[:, 1::2]).all()
    assert np.abs(drawn[:, 4:]).max() < 1e-6  # one seed: what is left of it is no noise


def test_seeds_tell_the_noise_only_if_there_are_enough():
    residual = np.array([0.1, -0.1, 0.1, -0.1, 0.1, -0.1])
    two, three = (
        Runs.from_labels(4, range(4), [0, 0, 1, 1]),
        Runs.from_labels(6, range(6), [0, 0, 1, 1, 2, 2]),
    )
    assert two.noise(residual[:4]) == uncertainty.STATED
    assert three.noise(residual).degrees == 3
    assert three.noise(residual).seed_sd == pytest.approx(0.1 * 2**0.5)


def test_replicates_are_the_same_every_time():
    runs = Runs.from_labels(3)
    first, second = (replicates([1, 2, 3], [0, 0, 0], runs, Noise(), 5) for _ in range(2))
    assert (first == second).all()
    assert (first != replicates([1, 2, 3], [0, 0, 0], runs, Noise(), 5, seed=1)).all()


def test_an_end_is_open_where_too_many_replicates_lie_beyond():
    drawn = np.linspace(0, 1, 1000)
    assert interval_ends(drawn) == pytest.approx((0.024, 0.976), abs=0.001)
    drawn[-30:] = np.inf
    assert interval_ends(drawn)[1] is None
    drawn[-30:] = np.nan
    assert interval_ends(drawn) == (None, None)
    drawn[-20:] = 1  # ten of no number widen both ends by ten
    assert interval_ends(drawn) == pytest.approx((0.014, 1.0), abs=0.001)


def interval_ends(drawn: np.ndarray) -> tuple[float | None, float | None]:
    found = uncertainty.interval(drawn)
    return found.low, found.high


def test_an_open_interval_holds_everything_on_its_side():
    assert 1e9 in Interval(1.0, None)
    assert 0.5 not in Interval(1.0, None)
    assert Interval(None, 1.0).width == np.inf


def test_labels_that_do_not_match_the_points_are_refused():
    with pytest.raises(ValueError, match="3 points, 2 trunks"):
        Runs.from_labels(3, trunk=[0, 1])


def test_many_minima_are_found_at_once_and_bounds_hold():
    at = np.array([[0.5, 2.0], [3.0, -1.0]])

    def bowl(x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        away = x - at[rows]
        hessian = np.broadcast_to(np.eye(2) * 2.0, (len(x), 2, 2)).copy()
        return (away**2).sum(axis=1), 2 * away, hessian

    found = newton.minimize(bowl, np.zeros((2, 2)), low=0.0, high=[1.0, 5.0])
    assert found.x_RK == pytest.approx(np.array([[0.5, 2.0], [1.0, 0.0]]), abs=1e-4)
    assert found.converged_R.all()


@pytest.mark.parametrize("degrees", [None, 5])
def test_right_forms_are_misfits_in_one_study_of_100(degrees):
    rng = np.random.default_rng(0)
    cost = rng.chisquare(15, 4000)
    if degrees is not None:  # the noise by which losses are divided is itself measured
        cost /= rng.chisquare(degrees, 4000) / degrees
    found = [uncertainty.misfit(value, Noise(degrees=degrees), 15) for value in cost]
    assert np.mean(found) == pytest.approx(0.01, abs=0.005)
