"""Noise measured from seeds: variances of cells, their intervals, Holm, and how many seeds."""

import numpy as np
import pytest
from scipy.special import digamma
from scipy.stats import t

from lmscaling.fits.noise import Noise, Place, holm, nearest, seeds_needed

HERE = Place(1e6, 1024, "linear")


def measure(samples, places=None, **options):
    places = places or dict.fromkeys(samples, HERE)
    return Noise.measure(samples, places, **options)


def test_one_repeated_cell_alone_has_the_scatter_of_its_seeds():
    spread = measure({"a": [3.0, 3.2]}).at("a")
    assert (spread.sd, spread.degrees) == (pytest.approx(0.1 * 2**0.5), 1)
    assert (spread.seeds, spread.basis, spread.assumed) == (2, "measured", None)
    ends = spread.interval(3.1)
    half = t.isf(0.025, 1) * 0.1
    p = measure({"a": [0.1, 0.2, 0.3]}).at("a").p_value(0.2)
    assert p == pytest.approx(0.0742, abs=1e-4)  # t = 3.464, two degrees
    assert (ends.low, ends.high, ends.assumed) == (
        pytest.approx(3.1 - half), pytest.approx(3.1 + half), None,
    )  # fmt: skip


def test_variances_are_shrunk_to_the_level_of_all_cells_by_their_degrees():
    """Equal variances leave no scatter beyond chance: the others count as six degrees, at most."""
    samples = {i: [3.0, 3.2] for i in range(10)}
    found = measure(samples)
    level = 0.02 * np.exp(-digamma(0.5) + np.log(0.5) - digamma(3) + np.log(3))
    assert found.at(0).degrees == 6 + 1
    assert found.at(0).sd ** 2 == pytest.approx((6 * level + 0.02) / 7)


def test_the_others_count_as_no_more_degrees_than_they_have():
    assert measure({i: [3.0, 3.2] for i in range(4)}).at(0).degrees == 3 + 1
    assert measure({i: [3.0, 3.1 + i / 10] for i in range(2)}).at(0).degrees == 1  # two in all


def test_a_cell_with_one_seed_inside_the_repeated_ones_has_their_scatter():
    places = {i: Place(10.0 ** (6 + i % 2), 256 * 2 ** (i // 2)) for i in range(4)}
    samples = {i: [3.0, 3.2] for i in range(4)}
    inside = places | {"in": Place(3e6, 300), "out": Place(3e7, 300)}
    found = measure(samples | {"in": [2.0], "out": [2.0]}, inside)
    assert (found.at("in").basis, found.at("in").degrees) == ("pooled", 3)
    out = found.at("out")
    assert (out.basis, out.sd) == ("assumed", pytest.approx(0.1 * 2**0.5))
    assert out.interval(2.0).assumed == out.sd
    assert np.isnan(out.p_value(1.0))


def test_the_scatter_of_other_attentions_is_assumed_and_not_measured():
    samples = {i: [3.0, 3.2] for i in range(4)} | {"mine": [2.0]}
    places = dict.fromkeys(samples, HERE) | {"mine": HERE._replace(attention="mine")}
    spread = measure(samples, places).at("mine")
    assert (spread.basis, spread.sd) == ("assumed", pytest.approx(0.1 * 2**0.5))


def test_without_seeds_the_nearest_measured_study_is_assumed():
    spread = measure({"a": [3.0]}, {"a": Place(25e3, 256, "softmax")}).at("a")
    assert (spread.sd, spread.basis, spread.degrees) == (0.017, "assumed", np.inf)
    ends = spread.interval(3.0)
    half = 1.95996 * 0.017
    assert (ends.low, ends.high, ends.assumed) == (
        pytest.approx(3 - half), pytest.approx(3 + half), 0.017,
    )  # fmt: skip
    assert nearest(Place(25e3, 256, "linear")).sd == 0.010
    assert nearest(Place(1e9, 4096, "mine")).sd == 0.0019


def test_a_pair_without_seeds_is_assumed_to_be_independent():
    alone, pair = (
        measure({"a": [0.1]}, {"a": Place(25e3, 256, "linear")}, paired=paired).at("a")
        for paired in (False, True)
    )
    assert pair.sd == pytest.approx(alone.sd * 2**0.5)


def test_seeds_of_equal_loss_measure_no_noise():
    """A variance of 0 is a fault of rounding or of the runs, not a measurement."""
    same = [3.0, 3.0, 3.0]
    assert measure({"a": same}).at("a").basis == "assumed"
    others = {i: [3.0, 3.2] for i in range(4)}
    assert measure(others | {"a": same}).at("a").basis == "pooled"


def test_a_trend_needs_twenty_degrees_and_then_follows_size_context_and_attention():
    rng = np.random.default_rng(0)
    places = {
        (n, c, a): Place(10.0**n, 2.0**c, a)
        for n in (4, 5, 6) for c in (8, 10, 12) for a in ("linear", "softmax")
    }  # fmt: skip

    def sd(place: Place) -> float:
        return 0.02 * (place.params / 1e5) ** -0.2 * (1 + (place.attention == "softmax"))

    samples = {key: rng.normal(3, sd(place), 12) for key, place in places.items()}
    found = measure(samples | {"one": [3.0]}, places | {"one": Place(10.0**5.5, 1024, "softmax")})
    assert found.at("one").sd == pytest.approx(0.04 * 10**-0.1, rel=0.2)
    few = {key: sample[:2] for key, sample in samples.items()}  # 18 degrees
    pooled = measure(few | {"one": [3.0], "two": [3.0]}, places | {
        "one": Place(1e6, 1024, "softmax"), "two": Place(1e4, 1024, "linear"),
    })  # fmt: skip
    assert pooled.at("one").sd == pooled.at("two").sd


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


def test_no_number_of_seeds_decides_a_gap_of_nothing():
    assert seeds_needed(0, 1) is None
    assert seeds_needed(0.01, 1) is None  # above 1,000
