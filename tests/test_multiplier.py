"""Multipliers, their split into updates and speed, and where curves cross."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy.stats import t

from lmscaling.fits import crossing, multiplier
from lmscaling.fits.noise import Place
from lmscaling.fits.smooth_curves import AXES, Curve

PLACE = Place(1e8, 1024, "linear")
UPDATES = np.arange(100.0, 40_001, 100)


def power(updates, E=2.5, gamma=0.3):
    return E + 10 * updates**-gamma


def curve(
    seconds=0.3, flops=1e15, shift=1.0, E=2.5, gamma=0.3, updates=UPDATES, seeds: ArrayLike = 0.0
) -> Curve:
    """One run, or one for each of the deviations ``seeds`` of its loss."""
    loss = power(updates * shift, E, gamma) + np.reshape(seeds, (-1, 1))
    return Curve(updates, updates * flops, updates * seconds / 3600, loss)


def fit(reference: Curve, other: Curve) -> Any:
    return multiplier.fit_all({0: (reference, other)}, {0: PLACE})[0]


@settings(max_examples=15)
@given(st.floats(0.4, 2.5), st.floats(0.2, 5), st.floats(-0.5, 1))
def test_a_curve_that_learns_so_much_faster_has_that_multiplier(factor, slow, shift):
    """Hours are counted in another unit, and a constant is added to all losses: no matter."""
    reference, other = (curve(0.3 * slow, 1e15, by, 2.5 + shift) for by in (1.0, factor))
    found = fit(reference, other)
    for level in found.levels[1:]:
        assert (level.updates, level.hours) == pytest.approx((factor, factor), rel=0.02)
        assert level.speed == pytest.approx(1)
    ends = found.levels[10].intervals["updates"]
    assert factor in ends
    assert (1 in ends) == (abs(np.log(factor)) < 0.05) or 0.9 < factor < 1.1


def test_a_curve_against_itself_has_multiplier_one():
    found = fit(curve(), curve())
    assert found.status == "compared"
    for level in found.levels:
        for axis in AXES:
            assert getattr(level, axis) == pytest.approx(1, abs=1e-12)
            assert 1 in level.intervals[axis]
    assert {one.status for one in found.crossings.values()} == {"within_noise"}
    steeper = fit(curve(), curve(gamma=0.32)).levels
    assert steeper[0].loss > steeper[-1].loss
    assert steeper[-1].updates > 1.2 * steeper[0].updates


def test_time_is_updates_times_speed_exactly():
    hours = np.cumsum(np.random.default_rng(0).uniform(0.1, 0.3, len(UPDATES))) / 36
    for level in fit(curve(seconds=0.7), replace(curve(shift=0.6), hours=hours)).levels:
        assert level.hours == pytest.approx(level.updates * level.speed, rel=1e-12)
    for level in fit(curve(seconds=0.6), curve(seconds=0.2, flops=4e15)).levels:
        assert (level.speed, level.flops) == pytest.approx((3, 0.25))


@pytest.mark.parametrize(("sd", "is_open"), [(0.001, False), (0.01, True)])
def test_an_end_is_open_where_the_reference_may_never_come_so_low(sd, is_open):
    """The other curve ends 0.01 above the reference."""
    seeds = sd * np.array([-1.0, 0, 1])
    low = fit(curve(seeds=0 * seeds), curve(E=2.51, seeds=seeds)).levels[-1]
    ends = low.intervals["updates"]
    assert low.updates < 1
    assert (ends.low is None, ends.high is None) == (False, is_open)


def test_curves_at_different_heights_are_not_compared_and_crossings_cover_what_they_share():
    found = fit(curve(), curve(E=20.0))
    assert (found.status, found.levels) == ("apart", ())
    assert found.crossings["hours"].ahead == "reference"
    late = fit(curve(), curve(updates=UPDATES[20:300])).crossings["updates"]
    assert late.observed == pytest.approx((UPDATES[20], UPDATES[299]))
    apart = fit(curve(updates=UPDATES[:40]), curve(updates=UPDATES[50:]))
    assert apart.crossings["updates"].status == "apart"
    short = Curve([1], [1], [1], [3.0])
    assert fit(curve(), short).status == "too_few"
    assert fit(Curve([], [], [], []), short).status == "too_few"


def test_the_crossing_is_found_between_points_that_are_sure():
    other = curve(seconds=0.1, E=2.8)  # learns less, three times as fast
    found = fit(curve(), other).crossings
    assert (found["updates"].status, found["updates"].ahead) == ("none", "reference")
    assert found["hours"].status == "crossed"
    (one,) = found["hours"].points
    hours = np.geomspace(0.01, 1, 100_000)
    truth = hours[np.abs(power(36000 * hours, 2.8) - power(12000 * hours)).argmin()]
    assert one.at == pytest.approx(truth, rel=0.02)
    assert truth in one.interval
    assert one.ahead_after == "reference"


def test_levels_are_the_losses_of_the_other_at_quarters_of_a_doubling():
    """The last five doublings of its updates, so that noise is measured at the same places."""
    found = fit(curve(), curve(shift=0.5)).levels
    losses = np.array([level.loss for level in found])
    x = 40_000 * 2.0 ** (-np.arange(21) / 4)
    assert losses == pytest.approx(power(0.5 * x)[::-1], rel=1e-3)


THREE = np.array([-0.006, 0.002, 0.004])


def test_an_interval_inverts_the_t_test_of_the_paired_gap():
    """d ln x / d L at the loss, times the quantile of t with two degrees of freedom and the
    standard error of the gap; a part of the noise that both runs of a seed share is no noise."""
    together = np.array([0.5, -0.3, 0.1])
    reference = curve(seeds=together)
    other = curve(shift=2.0, seeds=together + THREE)
    level = fit(reference, other).levels[10]
    assert level.loss == pytest.approx(power(2 * 40_000 * 2**-2.5) + 0.1, abs=1e-4)
    assert level.spread.sd == pytest.approx(THREE.std(ddof=1), rel=1e-3)
    assert (level.spread.seeds, level.spread.degrees) == (3, 2)
    slope = 1 / (0.3 * (level.loss - 0.1 - 2.5))
    half = t.isf(0.025, 2) * THREE.std(ddof=1) / np.sqrt(3) * slope
    for axis in AXES:
        ends = level.intervals[axis]
        assert np.log(ends.high / ends.low) == pytest.approx(2 * half, rel=0.03)
        assert np.log(ends.high * ends.low) == pytest.approx(2 * np.log(2), abs=0.01)
        assert ends.assumed is None


def test_pairs_with_one_seed_use_the_scatter_of_the_others():
    several = {i: (curve(seeds=0 * THREE), curve(seeds=np.roll(THREE, i))) for i in range(3)}
    pairs = several | {3: (curve(), curve(shift=2.0))}

    def last(context):
        contexts = (1024, 4096, 1024, context)
        places = {i: PLACE._replace(context=n) for i, n in enumerate(contexts)}
        return multiplier.fit_all(pairs, places)[3].levels[-1]

    near, far = last(1024), last(10**6)
    assert (near.spread.basis, near.intervals["updates"].assumed) == ("pooled", None)
    assert far.spread.basis == "assumed"
    assert far.intervals["updates"].assumed == pytest.approx(THREE.std(ddof=1), rel=1e-3)
    found = fit(*pairs[3])  # without any seeds nothing is tested
    assumed = {ends.assumed for level in found.levels for ends in level.intervals.values()}
    assert [*assumed] == [pytest.approx(0.0019 * np.sqrt(2))]
    assert {one.p for one in found.crossings.values()} == {None}


def rows(attention, seeds, is_baseline=False):
    plain = curve(shift=1.0 if is_baseline else 2.0)
    columns = plain.updates, plain.hours, plain.flops, np.ravel(plain.loss)
    points = np.column_stack(columns)[::20].tolist()
    head = ("measured", "s", 1e8, 1024, is_baseline, attention)
    return [(*head, seed, *point) for seed in seeds for point in points]


def test_only_seeds_of_both_attentions_are_compared():
    made = rows("softmax", (0, 1, 2), is_baseline=True) + rows("linear", (1, 2, 5))
    (pair,) = multiplier.compare([*made, *rows("gated", (7,))])[:1]
    assert (pair.attention, pair.reference, pair.seeds) == ("linear", "softmax", 2)
    assert pair.result.levels[-1].updates == pytest.approx(2, rel=0.02)
    unpaired = multiplier.compare(made + rows("gated", (7,)))[1]
    assert (unpaired.attention, unpaired.seeds) == ("gated", 0)
    assert (unpaired.result.status, unpaired.result.levels) == ("unpaired", ())


def test_noise_common_to_both_curves_is_subtracted_before_curves_are_smoothed():
    """Batches are the same at equal updates; their noise of 0.1 nats leaves the gap unharmed."""
    batch = np.random.default_rng(0).normal(0, 0.1, len(UPDATES))
    noisy = [replace(one, loss=np.add(one.loss, batch)) for one in (curve(), curve(E=2.51))]
    crossings = fit(*noisy).crossings["updates"]
    assert (crossings.status, crossings.ahead) == ("none", "reference")


def against_dented(at, loss):
    """A curve of which some losses are replaced, compared with the complete one."""
    dented = np.ravel(curve().loss)
    dented[at] = loss
    return fit(curve(), Curve(UPDATES, UPDATES, UPDATES, dented)).levels


@pytest.mark.parametrize(("outliers", "moved"), [(10, False), (11, True)])
def test_a_median_of_21_points_hides_ten_and_no_more(outliers, moved):
    found = against_dented(slice(200, 200 + outliers), 2.6)  # lower than all that follows
    assert bool(max(abs(np.log(level.updates)) for level in found) > 0.005) is moved
    found = against_dented(-2, 2.0)  # near its end a curve is smoothed by smaller windows
    assert [level.updates for level in found] == pytest.approx([1] * len(found), rel=0.01)
    assert found[-1].loss > 2.5


def test_on_a_plateau_the_interval_holds_all_of_it():
    plain = curve()
    loss = np.ravel(plain.loss).copy()
    loss[99:200] = loss[99]  # updates 10,000 to 20,000
    loss[200:] = np.minimum(loss[200:], loss[99] - 0.001)
    levels = fit(replace(plain, loss=loss), plain).levels
    level = min(levels, key=lambda one: abs(one.loss - loss[99]))
    assert level.loss == pytest.approx(loss[99], abs=1e-4)
    ends = level.intervals["updates"]
    assert 1 in ends
    assert 1.99 in ends


ERROR = 0.005
CHANCE = 1.959964 * ERROR
"""The largest gap that chance makes in 95 of 100 pairs."""


@pytest.mark.parametrize(("gap", "status", "ahead"), [
    ([1.01, 0.5], "none", "reference"), ([2, 3], "none", "reference"), ([-2, -3], "none", "other"),
    ([1.01, -1.01], "crossed", "other"), ([2, -3, 0.1], "crossed", "other"),
    ([1.01, -0.99], "open", "reference"), ([0.99, -0.99], "within_noise", None),
    ([], "apart", None),
])  # fmt: skip
def test_only_gaps_beyond_chance_count_and_the_last_of_them_says_who_is_ahead(gap, status, ahead):
    found = crossing.fit([10, 20, 30][: len(gap)], CHANCE * np.array(gap), ERROR)
    assert found.status == status
    assert ahead in (found.ahead, None)


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


def test_curves_may_cross_twice_but_between_two_sure_points_once():
    found = crossing.fit([1, 2, 4, 8], [0.1, -0.1, -0.2, 0.2], ERROR)
    assert [c.ahead_after for c in found.points] == ["other", "reference"]
    assert [c.at for c in found.points] == pytest.approx([2**0.5, 4 * 2**0.5])
    (zero,) = crossing.fit([1, 2, 4], [0.1, 0.0, -0.1], ERROR).points
    assert zero.at == pytest.approx(2)  # a gap of zero belongs to the side before it
    x = 2.0 ** np.arange(6)
    (only,) = crossing.fit(x, [0.1, -0.001, 0.001, -0.001, -0.002, -0.1], ERROR).points
    assert only.at == pytest.approx(2**1.5)  # the middle one of several zeros


def test_a_crossing_is_open_where_no_later_gap_exceeds_the_noise_which_may_differ_by_place():
    gap = [0.1, 0.03, -0.03, -0.1]
    (only,) = crossing.fit([1, 2, 4, 8], gap, [0.01, 0.1, 0.01, 0.01]).points
    assert 1 < (only.interval.low or 0) < 2 < (only.interval.high or 0) < 4
    found = crossing.fit([1, 2, 4, 8], [0.1, 0.02, -0.001, -0.002], ERROR)
    assert (found.status, found.ahead) == ("open", "reference")
    (only,) = found.points
    assert only.interval.low == pytest.approx(2 * 2 ** ((0.02 - CHANCE) / 0.021))
    assert only.interval.high is None
    assert 2 < only.at < 4
    assert only.ahead_after == "other"


def test_p_is_that_of_the_more_doubtful_side_and_of_the_degrees_of_freedom():
    """Two-sided, of a normal distribution: 3.29 gives 0.001, 1.96 gives 0.05; of t with two degrees
    of freedom 4.303."""
    gap = ERROR * np.array([3.2905, 0, -1.96, 1])
    assert crossing.fit([1, 2, 3, 4], gap, ERROR).p == pytest.approx(0.05, abs=1e-4)
    assert crossing.fit([1, 2], [0.1, 0.2], ERROR).p == 1  # one sign
    assumed = crossing.fit([1, 2], [0.1, -0.1], ERROR, assumed=0.002)
    assert (assumed.p, assumed.points[0].interval.assumed) == (None, 0.002)
    for gap, status in ((4.30, "within_noise"), (4.31, "none")):
        assert crossing.fit([1, 2], ERROR * np.full(2, gap), ERROR, degrees=2).status == status
