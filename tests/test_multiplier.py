"""Multipliers, their split into updates and speed, and where curves cross."""

import numpy as np
import pytest

from lmscaling.fits import crossing, multiplier
from lmscaling.fits.multiplier import AXES, Curve
from lmscaling.fits.uncertainty import Noise

UPDATES = np.arange(100.0, 40_001, 100)


def curve(seconds=0.3, flops=1e15, shift=1.0, E=2.5, gamma=0.3, updates=UPDATES) -> Curve:
    loss = E + 10 * (updates * shift) ** -gamma
    return Curve(updates, updates * flops, updates * seconds / 3600, loss)


def test_a_curve_against_itself_has_multiplier_one():
    found = multiplier.fit(curve(), curve())
    assert found.status == "compared"
    for level in found.levels:
        for axis in AXES:
            assert getattr(level, axis) == 1
            assert 1 in level.intervals[axis]
        assert level.speed == 1
    assert {one.status for one in found.crossings.values()} == {"within_noise"}


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_curve_that_learns_twice_as_fast_has_multiplier_two(factor):
    found = multiplier.fit(curve(), curve(shift=factor))
    for level in found.levels[1:]:
        assert level.updates == pytest.approx(factor, rel=0.02)
        assert level.hours == pytest.approx(factor, rel=0.02)
        assert level.speed == pytest.approx(1)
    last = found.levels[10].intervals["updates"]
    assert factor in last
    assert 1 not in last


def test_time_is_updates_times_speed_exactly():
    rng = np.random.default_rng(0)
    uneven = curve(shift=0.6)
    hours = np.cumsum(rng.uniform(0.1, 0.3, len(UPDATES))) / 36
    other = Curve(uneven.updates, uneven.flops, hours, uneven.loss)
    for level in multiplier.fit(curve(seconds=0.7), other).levels:
        assert level.hours == pytest.approx(level.updates * level.speed, rel=1e-12)
    for level in multiplier.fit(curve(seconds=0.6), curve(seconds=0.2, flops=4e15)).levels:
        assert level.speed == pytest.approx(3)
        assert level.flops == pytest.approx(0.25)


def test_the_multiplier_is_given_as_a_function_of_the_loss():
    found = multiplier.fit(curve(), curve(gamma=0.32))
    last, first = found.levels[-1], found.levels[0]
    assert first.loss > last.loss
    assert last.updates > 1.2 * first.updates
    chosen = multiplier.fit(curve(), curve(gamma=0.32), losses=[3.2, 3.1]).levels
    assert [level.loss for level in chosen] == [3.2, 3.1]


def test_spikes_move_nothing():
    rng = np.random.default_rng(0)
    loss = np.array(curve(shift=2.0).loss)
    loss[rng.random(len(loss)) < 0.05] += 2
    loss[17] = np.nan
    spiked = Curve(UPDATES, UPDATES, UPDATES, loss)
    last = multiplier.fit(curve(), spiked).levels[-1]
    assert last.updates == pytest.approx(2, rel=0.1)


def test_an_end_is_open_where_a_curve_may_never_come_so_low():
    other = curve(E=2.6)
    (low,) = multiplier.fit(curve(), other, losses=[np.min(other.loss), 1.0]).levels
    assert low.updates < 1
    assert low.intervals["updates"].low is None  # with another seed the other stays above
    assert low.intervals["updates"].high is not None
    assert multiplier.fit(curve(), other).levels[-1].intervals["updates"].low is not None


def test_curves_at_different_heights_are_not_compared():
    found = multiplier.fit(curve(), curve(E=20.0))
    assert (found.status, found.levels) == ("apart", ())
    assert found.crossings["hours"].ahead == "reference"
    short = Curve([1], [1], [1], [3.0])
    assert multiplier.fit(curve(), short).status == "too_few"
    assert multiplier.fit(Curve([], [], [], []), short).status == "too_few"


def test_the_crossing_is_found_between_points_that_are_sure():
    other = curve(seconds=0.1, E=2.8)  # learns less, three times as fast
    found = multiplier.fit(curve(), other).crossings
    assert (found["updates"].status, found["updates"].ahead) == ("none", "reference")
    assert found["hours"].status == "crossed"
    (one,) = found["hours"].points
    hours = np.geomspace(0.01, 1, 100_000)
    gap = 0.3 + 10 * (36000 * hours) ** -0.3 - 10 * (12000 * hours) ** -0.3
    truth = hours[np.abs(gap).argmin()]
    assert one.at == pytest.approx(truth, rel=0.02)
    assert truth in one.interval
    assert one.ahead_after == "reference"


def test_no_crossing_gives_the_bounds_within_which_none_was_seen():
    found = crossing.fit([1, 2, 4, 8], [0.1, 0.09, 0.08, 0.07])
    assert (found.status, found.points) == ("none", ())
    assert (found.observed, found.ahead) == ((1, 8), "reference")


def test_curves_that_share_no_x_have_no_crossing():
    early, late = curve(updates=UPDATES[:40]), curve(updates=UPDATES[50:])
    assert multiplier.fit(early, late).crossings["updates"].status == "apart"


def test_touching_within_noise_is_no_crossing():
    gap = [0.1, 0.001, -0.001, 0.002, 0.1]
    assert crossing.fit([1, 2, 3, 4, 5], gap).status == "none"
    assert crossing.fit([1, 2, 3], [0.001, -0.001, 0.002]).status == "within_noise"
    back = crossing.fit([1, 2, 4, 8, 16], [0.1, 0.001, -0.1, -0.001, 0.1])
    assert [one.ahead_after for one in back.points] == ["other", "reference"]
    assert back.points[0].interval.low == 1
    assert back.points[0].interval.high == 4


def power(updates, E=2.5, gamma=0.3):
    return E + 10 * updates**-gamma


def test_levels_run_from_the_higher_start_to_where_nearly_all_seeds_arrive():
    """20 losses, evenly spaced in the logarithm of the other's updates; the lowest is 2.5
    deviations of seeds above the end of the higher curve."""
    noise = Noise(seed_sd=0.004)
    found = multiplier.fit(curve(), curve(shift=0.5), noise=noise).levels
    losses = np.array([level.loss for level in found])
    assert len(losses) == 20
    assert (np.diff(losses) < 0).all()
    assert losses[0] == pytest.approx(power(100.0))
    assert losses[-1] == pytest.approx(power(20_000.0) + 2.5 * 0.004, rel=1e-4)
    steps = np.diff(np.log(((losses - 2.5) / 10) ** (-1 / 0.3)))
    assert steps == pytest.approx(np.full(19, steps.mean()), rel=0.15)


def test_intervals_are_those_of_two_curves_that_seeds_shift():
    """d ln x / d L at the loss, times 1.96 sqrt(2) deviations of seeds."""
    noise = Noise(seed_sd=0.004)
    (level,) = multiplier.fit(curve(), curve(shift=2.0), [3.2], noise, count=4000).levels
    slope = 1 / (0.3 * (3.2 - 2.5))
    for axis in AXES:
        ends = level.intervals[axis]
        assert ends.low is not None
        assert ends.high is not None
        half = 1.96 * np.sqrt(2) * 0.004 * slope
        assert np.log(ends.high / ends.low) == pytest.approx(2 * half, rel=0.06)
        assert np.log(ends.high * ends.low) == pytest.approx(2 * np.log(2), abs=0.004)


@pytest.mark.parametrize(("outliers", "moved"), [(10, False), (11, True)])
def test_a_median_of_21_points_hides_ten_and_no_more(outliers, moved):
    loss = np.array(curve().loss)
    loss[200 : 200 + outliers] = 2.6  # lower than all that follows
    dented = Curve(UPDATES, UPDATES, UPDATES, loss)
    levels = multiplier.fit(curve(), dented, losses=[power(25_000.0)]).levels
    (m,) = [level.updates for level in levels]
    assert (m > 1.1) is moved
    assert moved or m == pytest.approx(1, abs=1e-3)


def test_near_its_end_a_curve_is_smoothed_by_smaller_windows():
    """The last point but one by the median of three, so that an outlier there moves nothing."""
    loss = np.array(curve().loss)
    loss[-2] = 2.0
    dented = Curve(UPDATES, UPDATES, UPDATES, loss)
    for level in multiplier.fit(curve(), dented).levels:
        assert level.updates == pytest.approx(1, rel=0.01)
    assert multiplier.fit(curve(), dented).levels[-1].loss > 2.5


def test_crossings_cover_the_range_of_both_curves_to_the_end_of_the_shorter():
    late = curve(updates=UPDATES[20:300])
    found = multiplier.fit(curve(), late).crossings["updates"]
    assert found.observed == pytest.approx((UPDATES[20], UPDATES[299]))


def test_a_plateau_has_reached_its_loss_where_it_begins():
    plain = curve()
    loss = np.array(plain.loss)
    loss[100:200] = loss[100]  # updates 10,100 to 20,000
    loss[200:] = np.minimum(loss[200:], loss[100] - 0.001)
    held = Curve(plain.updates, plain.flops, plain.hours, loss)
    (level,) = multiplier.fit(plain, held, losses=[loss[100]]).levels
    assert level.updates == pytest.approx(1)


def test_a_single_low_loss_near_the_start_moves_no_multiplier_by_a_quarter():
    loss = np.array(curve().loss)
    loss[3] -= 1  # the loss of update 8,700
    spoiled = Curve(UPDATES, curve().flops, curve().hours, loss)
    for level in multiplier.fit(curve(), spoiled).levels:
        assert 1 <= level.updates < 1.25
