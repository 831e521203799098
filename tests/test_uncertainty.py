"""Intervals; and the noise that seeds measure, Holm, and how many seeds decide."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import digamma
from scipy.stats import t

from lmscaling.fits.noise import Noise, Place, Spread, holm, nearest, seeds_needed
from lmscaling.fits.uncertainty import LEVEL, Interval, codes

T = float(t.isf((1 - LEVEL) / 2, 30))
NUMBERS = st.floats(-100, 100)


def contained(inner: Any, outer: Any) -> bool:
    """Whether an interval with two ends lies in another one."""
    return inner.low in outer and inner.high in outer


SCALES = st.floats(0.01, 10)


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


HERE = Place(1e6, 1024, "linear")


def measure(samples, places=None, **options):
    places = places or dict.fromkeys(samples, HERE)
    by_seed = {cell: dict(enumerate(sample)) for cell, sample in samples.items()}
    return Noise.measure(by_seed, places, **options)


def test_one_repeated_cell_alone_has_the_scatter_of_its_seeds():
    spread = measure({"a": [3.0, 3.2]}).at("a")
    assert (spread.sd, spread.degrees) == (pytest.approx(0.1 * 2**0.5), 1)
    assert (spread.seeds, spread.basis, spread.assumed) == (2, "measured", None)
    half = t.isf(0.025, 1) * 0.1
    ends = spread.interval(3.1)
    assert (ends.low, ends.high) == pytest.approx((3.1 - half, 3.1 + half))
    assert ends.assumed is None
    p = measure({"a": [0.1, 0.2, 0.3]}).at("a").p_value(0.2)
    assert p == pytest.approx(0.0742, abs=1e-4)  # t = 3.464, two degrees


def calm(cells):
    """Two seeds in each, 0.2 nats apart, as often one way as the other."""
    return {i: [3.0, 3.2][:: (-1) ** i] for i in range(cells)}


def test_variances_below_the_level_of_all_cells_are_raised_by_their_degrees():
    """Equal variances leave no scatter beyond chance: the others count as six degrees, at most, and
    as no more than they have beside the cell."""
    found = measure(calm(10)).at(0)
    level = 0.02 * np.exp(-digamma(0.5) + np.log(0.5) - digamma(3) + np.log(3))
    assert found.degrees == 6 + 1
    assert found.sd**2 == pytest.approx((6 * level + 0.02) / 7)
    assert measure(calm(4)).at(0).degrees == 3 + 1
    assert measure({i: [3.0, 3.1 + i / 10] for i in range(2)}).at(0).degrees == 1  # two in all


def test_a_cell_that_became_unstable_keeps_its_own_variance():
    found = measure(calm(10) | {"long": [3.0, 3.9]}).at("long")
    assert (found.sd, found.degrees) == (pytest.approx(0.9 / 2**0.5), 1)


def test_cells_that_a_seed_moves_alike_count_once():
    assert measure({i: [3.0, 3.2] for i in range(10)}).at(0).degrees == 1
    assert measure({i: [3.0, 3.2, 3.1] for i in range(10)}).at(0).degrees == 2


def test_gaps_that_share_the_runs_of_a_baseline_count_once():
    """Ten attentions at one place say no more of the noise than one."""
    samples = {i: [0.0, 0.2 + i / 100, 0.05] for i in range(10)}
    places = {i: Place(1e6, 256, f"a{i}") for i in range(10)}
    assert measure(samples, places, paired=True).at(0).degrees == 2


def test_a_cell_with_one_seed_inside_the_repeated_ones_has_their_scatter():
    """Outside of their sizes and contexts, or of another attention, it is assumed."""
    places = {i: Place(10.0 ** (6 + i % 2), 256 * 2 ** (i // 2)) for i in range(4)}
    alone = {"in": Place(3e6, 300), "out": Place(3e7, 300), "mine": Place(3e6, 300, "mine")}
    samples = calm(4) | {name: [2.0] for name in alone}
    found = measure(samples, places | alone)
    assert (found.at("in").basis, found.at("in").degrees) == ("pooled", 4)
    for name in ("out", "mine"):
        out = found.at(name)
        assert (out.basis, out.sd) == ("assumed", pytest.approx(0.1 * 2**0.5))
        assert out.interval(2.0).assumed == out.sd
        assert np.isnan(out.p_value(1.0))


def test_without_seeds_the_nearest_measured_study_is_assumed():
    spread = measure({"a": [3.0]}, {"a": Place(25e3, 256, "softmax")}).at("a")
    assert (spread.sd, spread.basis, spread.degrees) == (0.017, "assumed", np.inf)
    ends = spread.interval(3.0)
    half = 1.95996 * 0.017
    assert (ends.low, ends.high, ends.assumed) == pytest.approx((3 - half, 3 + half, 0.017))
    assert nearest(Place(1e9, 4096, "mine")).sd == 0.0019
    alone, pair = (
        measure({"a": [0.1]}, {"a": Place(25e3, 256, "linear")}, paired=paired).at("a")
        for paired in (False, True)
    )
    assert alone.sd == 0.010
    assert pair.sd == pytest.approx(alone.sd * 2**0.5)
    same = {"a": [3.0, 3.0, 3.0]}  # a fault of rounding or of the runs, not a measurement
    assert measure(same).at("a").basis == "assumed"
    assert measure(same | calm(4)).at("a").basis == "pooled"


def test_holm_multiplies_the_smallest_by_their_number_and_never_reorders():
    """The example of Holm's procedure: 0.005, 0.01, 0.03, 0.04."""
    found = holm([0.01, np.nan, 0.04, 0.03, 0.005])
    assert found == pytest.approx([0.03, np.nan, 0.06, 0.06, 0.02], nan_ok=True)
    assert holm([0.6, 0.9]) == pytest.approx([1, 1])
    assert np.isnan(holm([np.nan])).all()
    assert not len(holm([]))


@pytest.mark.parametrize(("ratio", "unpaired", "paired", "first_of_36"), [
    (0.25, 254, 40, 84), (0.75, 30, 6, 13), (1, 18, 4, 8), (2, 5, 1, 3), (300, 1, 1, 1),
])  # fmt: skip
def test_seeds_that_decide_a_gap(ratio, unpaired, paired, first_of_36):
    """Gap over the deviation of a seed; pairs correlate by 0.85."""
    sd = (2 * 0.15) ** 0.5
    assert seeds_needed(ratio, 2**0.5) == unpaired
    assert seeds_needed(-ratio, sd) == paired
    assert seeds_needed(ratio, sd, level=1 - 0.05 / 36) == first_of_36
    assert seeds_needed(0, 1) is None
    assert seeds_needed(0.01, 1) is None  # above 1,000
