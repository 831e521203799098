"""Intervals of time laws, best contexts and best sizes contain the truth as often as they say."""

import coverage_curves
import pytest
from coverage import OURS, WIDE
from coverage_curves import ONE_SEED, SQUARES

STUDIES = 500
LAWS = {
    "loss between budgets": coverage_curves.time_law,
    "ln T": coverage_curves.best_context,
    "ln N*": coverage_curves.best_size,
}


def ours(rows, fitter: str = OURS) -> dict:
    return {row.quantity: row for row in rows if row.fitter == fitter}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("family", "seeds"),
    [("clean", 3), ("heavy", 2), ("heteroscedastic", 3), ("one run blown up", 3),
     ("slow tail", 3), ("sum of two powers", 2), ("9 minutes lost at the start", 2)],
)  # fmt: skip
def test_losses_between_budgets_are_covered_whether_a_power_is_the_law_or_not(family, seeds):
    """They are conservative: the variance between runs comes from few seeds."""
    row = ours(coverage_curves.time_law(family, seeds, 0.01, STUDIES), WIDE)["loss between budgets"]
    assert row.coverage >= 0.92
    assert row.refused < (0.4 if family in coverage_curves.SHAPES else 0.07)


@pytest.mark.ci
def test_the_loss_of_one_run_has_a_range_only():
    rows = coverage_curves.time_law("one run blown up", 1, 0.01, STUDIES)
    assert not ours(rows, WIDE)
    assert ours(rows, ONE_SEED)["loss between budgets"].coverage < 0.1


@pytest.mark.ci
@pytest.mark.parametrize("family", ["clean", "heavy", "heteroscedastic", "misspecified"])
@pytest.mark.parametrize(("seeds", "sd"), [(2, 0.01), (3, 0.03)])
def test_best_contexts_are_covered(family, seeds, sd):
    row = ours(coverage_curves.best_context(family, seeds, sd, STUDIES), WIDE)["ln T"]
    assert 0.92 <= row.coverage <= 0.995  # the interval has the lowest tried contexts
    assert row.refused < 0.1


@pytest.mark.ci
@pytest.mark.parametrize("family", coverage_curves.DIPS)
def test_the_best_context_of_no_smooth_curve_is_refused_or_covered(family):
    row = ours(coverage_curves.best_context(family, 3, 0.01, STUDIES), WIDE)["ln T"]
    assert row.refused > 0.3
    assert row.coverage >= 0.92


@pytest.mark.ci
@pytest.mark.parametrize(
    ("family", "seeds", "sd"),
    [("clean", 3, 0.002), ("clean", 3, 0.03), ("heavy", 2, 0.01), ("heteroscedastic", 3, 0.01),
     ("one run blown up", 3, 0.01)],
)  # fmt: skip
def test_best_sizes_and_their_exponent_are_covered(family, seeds, sd):
    """The exponent of two heavy seeds is conservative."""
    rows = ours(coverage_curves.best_size(family, seeds, sd, STUDIES))
    assert 0.92 <= rows["ln N*"].coverage <= 0.98
    assert 0.92 <= rows["p"].coverage <= 0.99
    assert rows["p"].refused < 0.12


@pytest.mark.ci
def test_one_blown_run_of_two_seeds_leaves_conservative_optima():
    rows = ours(coverage_curves.best_size("one run blown up", 2, 0.01, STUDIES), WIDE)
    assert rows["ln N*"].coverage >= 0.92
    assert rows["p"].coverage >= 0.92


@pytest.mark.ci
@pytest.mark.parametrize(("quantity", "fitter"), [("loss between budgets", WIDE), ("ln N*", OURS)])
def test_what_no_form_describes_is_refused(quantity, fitter):
    row = ours(LAWS[quantity]("misspecified", 3, 0.01, STUDIES), fitter)[quantity]
    assert row.refused > 0.9


@pytest.mark.parametrize("quantity", LAWS)
def test_ours_hold_the_truth_more_often_than_plain_squares(quantity):
    rows = LAWS[quantity]("one run blown up", 3, 0.01, 24)
    row = ours(rows, OURS if quantity == "ln N*" else WIDE)[quantity]
    plain = ours(rows, SQUARES)[quantity]
    assert row.coverage >= 20 / 24
    if quantity.startswith("ln"):
        assert plain.coverage < row.coverage


def test_one_seed_has_no_interval_of_a_best_size():
    rows = coverage_curves.best_size("clean", 1, 0.01, 3)
    assert {row.fitter for row in rows} == {ONE_SEED, SQUARES}
