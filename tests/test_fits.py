"""A fit recovers what it was given, and says so where nothing can be known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmscaling.fits import lr_optimum

SCALES = np.array([0.25, 0.5, 1.0, 2.0, 4.0])


def parabola(optimum: float, bottom: float = 3.0, scales: np.ndarray = SCALES) -> np.ndarray:
    return bottom + 0.04 * np.log(scales / optimum) ** 2


@given(st.floats(0.36, 2.6), st.floats(1, 9), st.floats(0.3, 3))
def test_a_known_optimum_is_found_in_any_unit_and_at_any_level(optimum, bottom, unit):
    scales = SCALES * unit
    found = lr_optimum.fit(scales, parabola(optimum * unit, bottom, scales))
    assert found.status == "thin"
    assert found.scale == pytest.approx(optimum * unit)
    assert found.loss == pytest.approx(bottom)


def test_the_gain_is_counted_from_the_studys_own_rate():
    found = lr_optimum.fit(SCALES, parabola(2.0))
    assert found.gain == pytest.approx(0.04 * np.log(2) ** 2)
    assert lr_optimum.fit([0.5, 2.0, 4.0], [2.0, 1.0, 2.0]).gain is None


@pytest.mark.parametrize(("optimum", "lowest"), [(0.1, 0.25), (20.0, 4.0)])
def test_an_optimum_beyond_the_rates_tried_is_an_edge_and_has_no_number(optimum, lowest):
    found = lr_optimum.fit(SCALES, parabola(optimum))
    assert (found.status, found.scale, found.loss) == ("edge", None, None)
    assert found.lowest_scale == lowest
    assert found.gain == pytest.approx(parabola(optimum)[2] - parabola(optimum).min())


@pytest.mark.parametrize(("losses", "status", "scale"), [
    ([3, 2, 1, 1, 2], "thin", 2**0.5),
    ([1, 1, 2, 3, 4], "thin", 0.5 / 2**0.5),
    ([3, 2, 2, 1, 1], "thin", 2 * 2**0.5),
    ([1, 2, 3, 2, 1], "edge", None),
    ([2, 1, 1, 1, 2], "flat", None),
    ([1, 1, 1, 1, 1], "flat", None),
])  # fmt: skip
def test_two_equal_lowest_losses_have_the_optimum_between_them_and_three_have_none(
    losses, status, scale
):
    found = lr_optimum.fit(SCALES, losses)
    assert found.status == status
    assert found.scale == (scale if scale is None else pytest.approx(scale))


def test_a_missing_loss_is_left_out_and_its_neighbour_steps_in():
    losses = parabola(0.9)
    losses[1] = np.nan
    assert lr_optimum.fit(SCALES, losses).scale == pytest.approx(0.9)
    seeds = [losses, parabola(0.9, bottom=4.0)]
    assert lr_optimum.fit(SCALES, seeds).scale == pytest.approx(0.9)
    losses[0] = np.nan
    assert lr_optimum.fit(SCALES, losses).status == "edge"
    losses[3] = np.nan
    assert lr_optimum.fit(SCALES, losses).status == "too_few"
    assert lr_optimum.fit(SCALES, losses).study_loss == losses[2]
    assert lr_optimum.fit(SCALES, np.full(5, np.nan)) == lr_optimum.LrOptimum(status="too_few")


def test_groups_are_runs_that_differ_in_seed_and_rate():
    rows = [
        ("linear", size, 1024, 6e-4, 768, 700.0, seed, scale, loss)
        for size, optimum in (("s", 0.8), ("m", 1.5))
        for seed in (0, 1)
        for scale, loss in zip(SCALES, parabola(optimum), strict=True)
    ]
    alone = ("softmax", "s", 1024, 6e-4, 768, 700.0, 0, 1.0, 3.0)
    elsewhere = ("softmax", "l", 1024, 6e-4, 768, 700.0, 0, 1.0, 3.0)
    small, medium, other = lr_optimum.groups([*rows, alone, elsewhere])
    assert (small.size, small.optimum.scale) == ("s", pytest.approx(0.8))
    assert (medium.size, medium.rate) == ("m", pytest.approx(1.5 * 6e-4))
    assert (small.study_lr, small.n) == (6e-4, 768)
    assert (other.size, other.optimum.status) == ("s", "untuned")
