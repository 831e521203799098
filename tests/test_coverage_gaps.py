"""Intervals of cells, gaps, multipliers and crossings contain the truth as often as they say."""

import coverage_gaps
import coverage_noise
import pytest
from coverage import Row

STUDIES = 500


def by_quantity(rows: list[Row]) -> dict[str, Row]:
    return {row.quantity: row for row in rows}


def covered(row: Row) -> float:
    assert row.coverage is not None, row.quantity
    return row.coverage


@pytest.mark.ci
def test_cells_with_one_seed_are_covered_by_the_scatter_of_six_others():
    rows = by_quantity(coverage_gaps.tables("heteroscedastic", "seeds 3 in 6 cells", STUDIES))
    for name in ("loss, 1 seed", "loss, 3 seeds", "gap, 1 seed", "gap, 3 seeds"):
        assert 0.92 <= covered(rows[name]) <= 0.985, name
    assert rows["mean gap"].refused == 1
    assert covered(rows["no gap called different"]) >= 0.93


@pytest.mark.ci
def test_noise_that_cells_share_harms_neither_the_mean_gap_nor_the_table():
    rows = by_quantity(coverage_gaps.tables("shared", "seeds 3", STUDIES))
    assert 0.92 <= covered(rows["mean gap"]) <= 0.975
    assert 0.92 <= covered(rows["gap, 3 seeds"]) <= 0.985
    assert covered(rows["no gap called different"]) >= 0.93


@pytest.mark.ci
@pytest.mark.parametrize(("family", "seeds"), [
    ("20 % of runs 0.3 nats higher", 5), ("sd 13 times at the longest", 3),
    ("seeds move all contexts", 3), ("baseline 5 times as noisy", 3),
])  # fmt: skip
def test_gaps_of_unstable_attentions_and_noisy_baselines_are_covered(family, seeds):
    """Those of runs that do not fail, in every context and on average."""
    rows = by_quantity(coverage_noise.tables(family, seeds, 200))
    for name in ("loss", "gap", "gap, longest context", "mean gap"):
        assert covered(rows[name]) >= 0.92, name
    assert covered(rows["no gap called different"]) >= 0.94


@pytest.mark.ci
@pytest.mark.parametrize("seeds", [1, 3])
def test_multipliers_and_crossings_are_covered(seeds):
    """Crossings are conservative: their interval is the hull of all places that are not excluded,
    and the scatter of one seed is that of two other pairs."""
    multiplier, crossing = coverage_gaps.curves(0.01, seeds, STUDIES)
    assert 0.92 <= covered(multiplier) <= 0.99
    assert covered(crossing) >= 0.95
    for row in (multiplier, crossing):
        assert abs(row.bias) < 0.25 * row.rmse, row.quantity


def test_gaps_of_equal_attentions_are_called_different_in_few_studies():
    rows = by_quantity(coverage_gaps.tables("heteroscedastic", "seeds 3", 12))
    assert covered(rows["gap, 3 seeds"]) > 0.9
    assert covered(rows["loss, 3 seeds"]) > 0.85
    assert covered(rows["no gap called different"]) >= 10 / 12


def test_a_true_multiplier_is_mostly_inside_its_interval():
    for row in coverage_gaps.curves(0.03, 3, 12):
        assert covered(row) >= 10 / 12
        assert row.width is not None
        assert row.width > 0.05
