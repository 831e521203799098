"""Best learning rates: found with an interval that covers, and warned of where unfair."""

import coverage_rates
import numpy as np
import pytest
from conftest import refused, sentence
from coverage_rates import Family
from hypothesis import given
from hypothesis import strategies as st

from lmscaling.config import grid
from lmscaling.errors import UserError
from lmscaling.fits import laws, lr_optimum
from lmscaling.report import rates

SCALES = np.array([0.25, 0.5, 1.0, 2.0, 4.0])


def swept_rows(rates, seeds, sd):
    return coverage_rates.sweep(Family(rates, seeds, sd), np.random.default_rng(0))[0]


def test_intervals_of_optima_cover_them():
    for row in coverage_rates.rates("asymmetric", 60):
        assert row.fitter != "ours" or (row.coverage or 0) >= 0.92


def test_a_run_that_deviates_is_left_out_and_counted():
    rng = np.random.default_rng(0)
    rows, truth = coverage_rates.sweep(coverage_rates.FAMILIES["one run blown up"], rng)
    for group in lr_optimum.groups(rows):
        assert group.optimum.left_out == 1
        assert group.optimum.scale == pytest.approx(np.exp(truth[group.attention]), rel=0.15)


def test_one_seed_gives_a_range_that_says_what_it_assumes_unless_its_curve_is_not_smooth():
    for group in lr_optimum.groups(swept_rows(7, seeds=1, sd=0.002)):
        assert group.interval is not None
        assert group.interval.assumed
    rows = swept_rows(9, seeds=1, sd=1e-5)
    rough = [(*row[:7], row[7] + 0.05 * (row[6] in (0.5, 4.0))) for row in rows]
    for group in lr_optimum.groups(rough):
        assert (group.optimum.status, group.rate) == ("refused_assumed", None)


def test_one_rate_on_a_side_gives_an_optimum_without_interval():
    for group in lr_optimum.groups(swept_rows(3, seeds=3, sd=1e-4)):
        assert (group.optimum.status, group.interval) == ("thin", None)
        assert group.rate is not None


def warned(rows):
    (said,) = rates.unfair(laws.best_rates(rows))
    sentence("warning", said)
    return said


def test_it_warns_of_rates_that_are_unfair():
    """One attention was tuned and another was not, or the best rate is the last that was tried."""
    rows = [row for row in swept_rows(7, seeds=1, sd=1e-5) if row[0] in ("a0", "a1")]
    one = [row for row in rows if row[0] == "a0" and 0.5 <= row[6] <= 2]
    assert "1,024" in warned(one + [row for row in rows if row[0] == "a1" and row[6] == 1])
    assert "a0" in warned([row for row in rows if row[0] == "a0" and row[6] > 1])
    assert lr_optimum.groups(swept_rows(1, seeds=3, sd=0.01)) == []


def fitted(scales, losses):
    return lr_optimum.fit(lr_optimum.Sweep.from_losses(scales, losses))


def parabola(optimum, bottom=3.0, scales=SCALES):
    return bottom + 0.04 * np.log(scales / optimum) ** 2


@given(st.floats(0.36, 2.6), st.floats(1, 9), st.floats(0.3, 3))
def test_a_known_optimum_is_found_in_any_unit_and_at_any_level(optimum, bottom, unit):
    scales = SCALES * unit
    found = fitted(scales, parabola(optimum * unit, bottom, scales))
    assert found.status == "thin"
    assert (found.scale, found.loss) == pytest.approx((optimum * unit, bottom))


@pytest.mark.parametrize(("optimum", "lowest"), [(0.1, 0.25), (20.0, 4.0)])
def test_an_optimum_beyond_the_rates_tried_is_an_edge_and_has_no_number(optimum, lowest):
    found = fitted(SCALES, parabola(optimum))
    assert (found.status, found.scale, found.loss) == ("edge", None, None)
    assert found.lowest_scale == lowest
    assert found.gain == pytest.approx(parabola(optimum)[2] - parabola(optimum).min())


@pytest.mark.parametrize(("losses", "status", "scale"), [
    ([3, 2, 1, 1, 2], "thin", 2**0.5), ([1, 1, 2, 3, 4], "thin", 0.5 / 2**0.5),
    ([3, 2, 2, 1, 1], "thin", 2 * 2**0.5), ([1, 2, 3, 2, 1], "edge", None),
    ([2, 1, 1, 1, 2], "flat", None), ([1, 1, 1, 1, 1], "flat", None),
])  # fmt: skip
def test_two_equal_lowest_losses_have_an_optimum_between_them_and_three_none(losses, status, scale):
    found = fitted(SCALES, losses)
    assert (found.status, found.scale) == (status, scale and pytest.approx(scale))


def test_a_missing_loss_is_left_out_and_its_neighbour_steps_in():
    losses = parabola(0.9)
    losses[1] = np.nan
    assert fitted(SCALES, losses).scale == pytest.approx(0.9)
    seeds = [losses, parabola(0.9, bottom=4.0)]
    assert fitted(SCALES, seeds).scale == pytest.approx(0.9)
    losses[0] = np.nan
    assert fitted(SCALES, losses).status == "edge"
    losses[3] = np.nan
    assert fitted(SCALES, losses).status == "too_few"
    assert fitted(SCALES, losses).study_loss == losses[2]
    assert fitted([0.5, 2.0, 4.0], [2.0, 1.0, 2.0]).gain is None  # of no rate of the study
    assert fitted(SCALES, np.full(5, np.nan)) == lr_optimum.LrOptimum(status="too_few")


def test_groups_are_runs_that_differ_in_seed_and_rate():
    def rows(attention, size, scales, losses, seeds=(0,)):
        cell, pairs = (attention, size, 1024, 6e-4, 700.0), [*zip(scales, losses, strict=True)]
        return [(*cell, seed, *pair) for seed in seeds for pair in pairs]

    small, medium, other = lr_optimum.groups([
        *rows("linear", "s", SCALES, parabola(0.8), (0, 1)),
        *rows("linear", "m", SCALES, parabola(1.5), (0, 1)),
        *rows("softmax", "s", [1.0], [3.0]),
        *rows("softmax", "l", [1.0], [3.0]),
    ])  # fmt: skip
    assert (small.size, small.optimum.scale) == ("s", pytest.approx(0.8))
    assert (medium.size, medium.rate) == ("m", pytest.approx(1.5 * 6e-4))
    assert small.study_lr == 6e-4
    assert (other.size, other.optimum.status) == ("s", "untuned")


def test_rates_by_attention_reach_their_cells(values):
    values["sizes"]["s"]["lr"] = {"softmax": 1e-3, "linear": 2e-3}
    values["axes"]["lr_scale"] = {"linear": [0.5, 1.0]}
    found = {(c.attention, c.lr_scale): c.lr for c in grid.expand(values).cells.values()}
    assert found == {("softmax", 1.0): 1e-3, ("linear", 0.5): 1e-3, ("linear", 1.0): 2e-3}


@pytest.mark.parametrize(("lr", "named"), [
    ({"softmax": 1e-3}, ["sizes.s.lr", "linear"]),
    ({"softmax": -1, "linear": 1}, ["sizes.s.lr.softmax", "-1"]),
    (-1, ["sizes.s.lr", "-1", "1e-12", "10"]),
])  # fmt: skip
def test_a_rate_that_is_not_there_is_one_sentence(values, lr, named):
    values["sizes"]["s"]["lr"] = lr
    with refused(UserError, *named):
        grid.expand(values)
