"""Gaps of final losses: paired by seed, corrected for their number, refused without seeds."""

import numpy as np
import pytest
from scipy.stats import t

from lmscaling.fits import gaps


def rows(cells, source="measured"):
    """Rows of the query: by (size, context) the losses of each attention by seed, or with the part
    of the budget that was spent."""
    return [
        (source, size, 1e6, context, attention == "softmax", attention, seed,
         *(loss if isinstance(loss, tuple) else (loss, None)))
        for (size, context), attentions in cells.items()
        for attention, losses in attentions.items()
        for seed, loss in losses.items()
    ]  # fmt: skip


CELL = {
    "softmax": {0: 3.0, 1: 3.5, 2: 3.2},
    "linear": {0: 3.11, 1: 3.59, 2: 3.30, 7: 9.0},
}
D = np.array([0.11, 0.09, 0.10])


def test_a_gap_is_taken_seed_by_seed():
    (gap,) = gaps.compare(rows({("s", 256): CELL}))
    assert (gap.attention, gap.reference, gap.size, gap.seeds) == ("linear", "softmax", "s", 3)
    assert gap.gap == pytest.approx(0.1)
    half = t.isf(0.025, 2) * 0.01 / np.sqrt(3)
    assert gap.interval is not None
    assert gap.interval.low == pytest.approx(0.1 - half)
    assert gap.p == pytest.approx(2 * t.sf(0.1 / 0.01 * np.sqrt(3), 2))
    assert (gap.status, gap.needed) == ("higher", None)


def test_an_attention_with_other_parameters_is_compared_at_the_same_size():
    wider = [(s, size, 2e6 if who == "linear" else n, context, base, who, *rest)
             for s, size, n, context, base, who, *rest in rows({("s", 256): CELL})]  # fmt: skip
    assert gaps.compare(wider) == gaps.compare(rows({("s", 256): CELL}))


def test_the_mean_gap_comes_first_and_its_interval_is_that_of_whole_seeds():
    """Seeds differ by the same amount in all cells, as data that cells share would make them."""
    cells = {("s", context): CELL for context in (256, 512, 1024)}
    mean, *single = gaps.compare(rows(cells))
    assert (mean.size, mean.context, mean.cells, mean.seeds) == (None, None, 3, 3)
    assert mean.gap == pytest.approx(0.1)
    assert mean.interval is not None
    assert mean.interval.width == pytest.approx(2 * t.isf(0.025, 2) * 0.01 / 3**0.5)
    assert [gap.context for gap in single] == [256, 512, 1024]


def test_the_mean_gap_has_no_interval_without_two_seeds_in_every_cell():
    one = {name: {0: losses[0]} for name, losses in CELL.items()}
    mean = gaps.compare(rows({("s", 256): CELL, ("s", 512): one}))[0]
    assert (mean.interval, mean.status) == (None, "untested")
    assert mean.gap == pytest.approx((0.1 + 0.11) / 2)


def test_p_values_are_corrected_for_all_gaps_of_a_source():
    cells = {("s", context): CELL for context in (256, 512, 1024)}
    alone = gaps.compare(rows({("s", 256): CELL}))[0]
    found = gaps.compare(rows(cells) + rows(cells, "published"))
    assert [gap.source for gap in found] == ["measured"] * 4 + ["published"] * 4
    for one in found:
        assert one.spread is not None
        assert one.p >= one.spread.p_value(one.gap or 0)
    assert min(gap.p for gap in found) > 0
    assert alone.p < 0.05


def test_a_gap_within_the_noise_names_the_seeds_that_would_decide():
    cell = {"softmax": {0: 3.0, 1: 3.0, 2: 3.0}, "linear": {0: 3.04, 1: 2.99, 2: 3.0}}
    (gap,) = gaps.compare(rows({("s", 256): cell}))
    assert (gap.status, gap.p > 0.05) == ("not_different", True)
    assert gap.needed is not None
    assert gap.needed > 3


def test_without_seeds_nothing_is_tested_and_the_range_says_what_it_assumes():
    one = {name: {0: losses[0]} for name, losses in CELL.items()}
    (gap,) = gaps.compare(rows({("s", 256): one}))
    assert gap.status == "untested"
    assert gap.interval is not None
    assert gap.interval.assumed is not None
    assert np.isnan(gap.p)
    assert gap.needed == 1


@pytest.mark.parametrize(("cell", "status"), [
    ({"softmax": {0: 3.0}, "linear": {1: 3.1}}, "unpaired"),
    ({"softmax": {0: (3.0, 1.0)}, "linear": {0: (3.1, 0.9)}}, "unequal"),
])  # fmt: skip
def test_runs_that_cannot_be_paired_are_not_compared(cell, status):
    (gap,) = gaps.compare(rows({("s", 256): cell}))
    assert (gap.status, gap.gap, gap.interval) == (status, None, None)


def test_two_others_are_compared_too():
    both = CELL | {"gated": CELL["softmax"]}
    found = gaps.compare(rows({("s", 256): both}))
    pairs = [(gap.attention, gap.reference) for gap in found]
    assert pairs == [("linear", "softmax"), ("gated", "softmax"), ("gated", "linear")]
