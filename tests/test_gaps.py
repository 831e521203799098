"""The end of a run, whatever spikes, and gaps of ends: paired by seed, refused without seeds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from lmscaling.fits import final_loss, gaps


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


CELL = {"softmax": {0: 3.0, 1: 3.5, 2: 3.2}, "linear": {2: 3.30, 7: 9.0, 0: 3.11, 1: 3.59}}
ONE = {name: {0: losses[0]} for name, losses in CELL.items()}
SEVERAL = {("s", context): CELL for context in (256, 512, 1024)}


def test_a_gap_is_taken_seed_by_seed():
    gap: Any
    (gap,) = gaps.compare(rows({("s", 256): CELL}))
    assert (gap.attention, gap.reference, gap.size, gap.seeds) == ("linear", "softmax", "s", 3)
    assert gap.gap == pytest.approx(0.1)
    assert gap.interval.low == pytest.approx(0.1 - t.isf(0.025, 2) * 0.01 / np.sqrt(3))
    assert gap.p == pytest.approx(2 * t.sf(0.1 / 0.01 * np.sqrt(3), 2))
    assert (gap.status, gap.needed) == ("higher", None)
    more = rows({("s", 256): CELL | {"gated": CELL["softmax"]}})
    pairs = [(gap.attention, gap.reference) for gap in gaps.compare(more)]
    assert pairs == [("linear", "softmax"), ("gated", "softmax"), ("gated", "linear")]
    wider = [(s, size, 2e6 if who == "linear" else n, context, base, who, *rest)
             for s, size, n, context, base, who, *rest in rows({("s", 256): CELL})]  # fmt: skip
    assert gaps.compare(wider) == [gap]  # a size may have other parameters with each attention


def test_the_mean_gap_comes_first_and_its_interval_is_that_of_whole_seeds():
    """Seeds differ by the same amount in all cells, as data that cells share would make them."""
    mean: Any
    mean, *single = gaps.compare(rows(SEVERAL))
    assert (mean.size, mean.context, mean.cells, mean.seeds) == (None, None, 3, 3)
    assert mean.gap == pytest.approx(0.1)
    assert mean.interval.width == pytest.approx(2 * t.isf(0.025, 2) * 0.01 / 3**0.5)
    assert [gap.context for gap in single] == [256, 512, 1024]
    mean = gaps.compare(rows({("s", 256): CELL, ("s", 512): ONE}))[0]  # one seed in a cell
    assert (mean.interval, mean.status) == (None, "untested")
    assert mean.gap == pytest.approx((0.1 + 0.11) / 2)


def test_the_mean_of_cells_that_scatter_unequally_is_as_uncertain_as_they_are():
    """One of four contexts is unstable; a run that ends higher there moves the mean."""
    calm = {"softmax": {0: 3.0, 1: 3.1, 2: 3.2}, "linear": {0: 3.11, 1: 3.2, 2: 3.31}}
    unstable = calm | {"linear": {0: 3.11, 1: 4.2, 2: 3.31}}
    cells = {("s", context): calm for context in (256, 512, 1024)}
    mean: Any = gaps.compare(rows(cells | {("s", 2048): unstable}))[0]
    own = [np.std([0.11, 0.1, 0.11], ddof=1)] * 3 + [np.std([0.11, 1.1, 0.11], ddof=1)]
    assert mean.spread.sd == pytest.approx(np.mean(own))
    assert mean.spread.degrees == 2
    even: Any = gaps.compare(rows(cells | {("s", 2048): calm}))[0]
    assert even.spread.sd == pytest.approx(own[0])


def test_a_failed_run_is_counted_and_leaves_no_pair():
    cell = {"softmax": {0: 3.0, 1: 3.1, 2: 3.2}, "linear": {0: 3.1, 1: None, 2: 3.31}}
    gap: Any
    (gap,) = gaps.compare(rows({("s", 256): cell}))
    assert (gap.seeds, gap.failed, gap.ended) == (2, 1, 3)
    none = cell | {"linear": dict.fromkeys(range(3))}
    (gap,) = gaps.compare(rows({("s", 256): none}))
    assert (gap.status, gap.failed, gap.ended, gap.gap) == ("failed", 3, 3, None)
    cells = {("s", 256): CELL, ("s", 512): CELL, ("s", 1024): none}
    mean = gaps.compare(rows(cells))[0]
    assert (mean.cells, mean.failed, mean.ended) == (2, 3, 4 + 4 + 3)  # of all


def test_p_values_are_corrected_for_all_gaps_of_a_source():
    found: Any = gaps.compare(rows(SEVERAL) + rows(SEVERAL, "published"))
    assert [gap.source for gap in found] == ["measured"] * 4 + ["published"] * 4
    for one in found:
        assert one.p >= one.spread.p_value(one.gap)
    assert min(gap.p for gap in found) > 0
    assert gaps.compare(rows({("s", 256): CELL}))[0].p < 0.05


def test_a_gap_within_the_noise_names_the_seeds_that_would_decide_and_one_seed_tests_nothing():
    cell = {"softmax": {0: 3.0, 1: 3.0, 2: 3.0}, "linear": {0: 3.04, 1: 2.99, 2: 3.0}}
    gap: Any
    (gap,) = gaps.compare(rows({("s", 256): cell}))
    assert (gap.status, gap.p > 0.05, gap.needed > 3) == ("not_different", True, True)
    (gap,) = gaps.compare(rows({("s", 256): ONE}))
    assert (gap.status, gap.needed) == ("untested", 1)
    assert gap.interval.assumed is not None
    assert np.isnan(gap.p)


@pytest.mark.parametrize(("cell", "status"), [
    ({"softmax": {0: 3.0}, "linear": {1: 3.1}}, "unpaired"),
    ({"softmax": {0: (3.0, 1.0)}, "linear": {0: (3.1, 0.9)}}, "unequal"),
])  # fmt: skip
def test_runs_that_cannot_be_paired_are_not_compared(cell, status):
    (gap,) = gaps.compare(rows({("s", 256): cell}))
    assert (gap.status, gap.gap, gap.interval) == (status, None, None)


EXACT = st.integers(2048, 4096).map(lambda n: n / 1024)
BY_SEED = st.dictionaries(st.integers(0, 3), EXACT, min_size=1)
PLACES = st.tuples(st.sampled_from("sm"), st.sampled_from([64, 256]))
BOTH = st.builds(lambda softmax, linear: {"softmax": softmax, "linear": linear}, BY_SEED, BY_SEED)
CELLS = st.dictionaries(PLACES, BOTH, min_size=1)


def ends_of(gap: Any) -> list[float]:
    return [gap.interval.low, gap.interval.high] if gap.interval else []


@given(CELLS)
def test_the_other_attention_as_reference_turns_every_sign(cells):
    """Names are exchanged with the losses: the scatter of pairs does not depend on them."""
    turned = {
        cell: {"softmax": of["linear"], "linear": of["softmax"]} for cell, of in cells.items()
    }
    one, other = gaps.compare(rows(cells)), gaps.compare(rows(turned))
    opposite = {"lower": "higher", "higher": "lower"}
    assert len(one) == len(other)
    for plain, swapped in zip(one, other, strict=True):
        assert swapped.status == opposite.get(plain.status, plain.status)
        for name in ("size", "context", "seeds"):
            assert getattr(swapped, name) == getattr(plain, name)
        if plain.gap is not None and swapped.gap is not None:
            assert swapped.gap == pytest.approx(-plain.gap, abs=1e-12)
            assert swapped.p == pytest.approx(plain.p, nan_ok=True)
            ends, turned_ends = ends_of(plain), ends_of(swapped)
            assert turned_ends == pytest.approx([-end for end in reversed(ends)], abs=1e-9)
            assert sorted([*ends, plain.gap]) == [*ends[:1], plain.gap, *ends[1:]]


def run(n: int = 10_000, seed: int = 0) -> np.ndarray:
    return 3 + np.random.default_rng(seed).normal(0, 0.03, n)


def test_spikes_and_missing_losses_are_left_out():
    loss = run()
    clean = final_loss.fit(loss).loss
    loss[-30], loss[-50:-48], loss[-70], loss[-80] = 9.0, 6.0, np.nan, 0.0
    found = final_loss.fit(loss)
    assert (found.status, found.left_out) == ("settled", 5)
    assert found.loss == pytest.approx(clean, abs=0.003)
    assert final_loss.mean(loss[-200:]) == found
    loss[-100::6] += 1
    assert final_loss.fit(loss).status == "spiking"


@pytest.mark.parametrize(("n", "share", "height"), [
    (400, 0.25, 0.3), (400, 1.0, -0.3), (10_000, 0.5, 0.3), (10_000, 0.25, -0.3),
])  # fmt: skip
def test_a_late_plateau_is_no_settled_end(n, share, height):
    """Of half of the updates that are averaged it moves the mean by 0.15 nats."""
    loss = run(n)
    loss[-int(share * max(20, n // 100)) :] += height
    status = final_loss.fit(loss).status
    assert status == "unsettled" or (share == 0.25 and status == "spiking")


@pytest.mark.parametrize(("updates", "used"), [(400, 20), (1999, 20), (2000, 20), (5000, 50)])
def test_the_last_hundredth_counts_but_at_least_twenty_losses(updates, used):
    assert used <= updates / 20
    loss = np.full(updates, 9.0)
    loss[-used:] = 3.0 + 0.001 * np.arange(used)
    found = final_loss.fit(loss)
    assert (found.used, found.left_out) == (used, 0)
    assert found.loss == pytest.approx(3.0 + 0.0005 * (used - 1))


@pytest.mark.parametrize(("height", "left_out"), [(0.049, 0), (0.051, 1), (-0.049, 0), (-0.051, 1)])
def test_a_calm_end_leaves_out_what_is_a_twentieth_of_a_nat_off(height, left_out):
    loss = np.full(400, 3.0)
    loss[-7] += height
    assert final_loss.fit(loss).left_out == left_out


@pytest.mark.parametrize(("known", "status"), [(0, "too_few"), (9, "too_few"), (10, "spiking")])
def test_half_of_the_last_losses_must_be_numbers(known, status):
    loss = np.full(400, np.nan)
    loss[380 : 380 + known] = 3.0
    assert final_loss.fit(loss).status == status
    found = final_loss.fit([3.0] * (399 if known else 0))
    assert (found.status, found.loss, found.used, found.left_out) == ("too_few", None, 0, 0)


def test_the_error_is_that_of_ten_block_means():
    loss = 3 + 0.001 * np.random.default_rng(0).normal(size=400)
    blocks = loss[-20:].reshape(10, 2).mean(axis=1)
    deviation = np.sqrt(((blocks - blocks.mean()) ** 2).sum() / 9)
    assert final_loss.fit(loss).error == pytest.approx(deviation / np.sqrt(10))


@pytest.mark.parametrize(("sd", "correlation", "most"), [(0.03, 0.0, 6), (0.2, 0.5, 18)])
def test_an_even_end_is_called_unsettled_in_less_than_two_of_a_hundred_runs(sd, correlation, most):
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        noise = rng.normal(0, sd, 40 + 50)
        for i in range(1, len(noise)):
            noise[i] = correlation * noise[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
        wrong += final_loss.mean(3 + noise[50:]).status == "unsettled"
    assert wrong < most
