"""Losses of unfinished runs are predicted from finished ones, with intervals that hold."""

from typing import Any

import coverage_unfinished
import numpy as np
import pytest
from conftest import sentence
from coverage import OURS

from lmscaling.fits import unfinished
from lmscaling.fits.unfinished import Run
from lmscaling.records.forecast import Predicted


def grid(attentions=("softmax", "linear"), seeds=(0,)):
    """Runs of a smooth surface with a little noise."""
    rng = np.random.default_rng(0)
    return [
        Run(name, f"{n:g}", n, context, seed,
            2 + 5 * n**-0.15 - 0.02 * np.log(context) + 0.05 * (name == "linear")
            + 0.005 * rng.standard_normal())
        for name in attentions
        for n in (1e5, 1e6, 1e7)
        for context in (64, 256, 1024, 4096)
        for seed in seeds
    ]  # fmt: skip


interval: Any = unfinished.interval


def without(runs, wanted) -> Any:
    """What the others say of a run."""
    rest = [run for run in runs if run != wanted]
    (found,) = unfinished.predict(rest, [wanted._replace(value=np.nan)])
    return found


def test_a_cell_between_finished_ones_is_predicted_and_another_seed_of_it_narrows_the_interval():
    runs = grid(seeds=(0, 1))
    wanted = next(run for run in runs if run[:5] == ("linear", "1e+06", 1e6, 256, 1))
    alone = [run for run in runs if run[:4] != wanted[:4]]
    found = without(alone, wanted)
    low, high = interval(found, 0.95)
    assert low < wanted.value < high
    assert high - low < 0.1
    assert interval(found, 0.8).low > low
    assert without(runs, wanted).sd < found.sd


@pytest.mark.parametrize(("runs", "wanted", "said"), [
    (grid(("softmax",)), Run("linear", "1e+06", 1e6, 256, 0), "linear"),
    (grid(), Run("linear", "1e+08", 1e8, 256, 0), "size"),
    (grid(), Run("linear", "1e+06", 1e6, 8192, 0), "context"),
    (grid()[:5], Run("softmax", "1e+05", 1e5, 256, 1), "5"),
    ([r._replace(value=np.nan) for r in grid()], grid()[0], "softmax"),
])  # fmt: skip
def test_what_is_not_predicted_has_a_reason(runs, wanted, said):
    (found,) = unfinished.predict(runs, [wanted])
    assert found.median is None
    assert said in found.reason
    assert interval(found, 0.95) is None
    sentence("not predicted", found.reason)


def test_equal_losses_and_one_size_are_no_fault():
    runs = [Run("softmax", "s", 1e5, 64, seed, 3.0) for seed in range(5)]
    (found,) = unfinished.predict(runs, [Run("softmax", "s", 1e5, 64, 5)])
    assert found.median == pytest.approx(3.0)


def test_many_runs_are_predicted_from_those_of_their_attention():
    """More than 200 finished runs of two attentions."""
    runs = grid(seeds=range(unfinished.MOST_RUNS // 24 + 1))
    left = [run for run in runs if run.context == 256 and run.params == 1e6 and run.seed == 0]
    assert len(runs) - len(left) > unfinished.MOST_RUNS
    found = unfinished.predict([run for run in runs if run not in left], left)
    for run, one in zip(left, found, strict=True):
        low, high = interval(one, 0.95)
        assert low < run.value < high


def test_a_prediction_without_degrees_is_normal_and_its_intervals_are_nested():
    found = Predicted(median=2.0, sd=0.1)
    ends = [interval(found, level) for level in (0.5, 0.8, 0.95)]
    assert ends[2] == pytest.approx((2 * np.exp(-0.196), 2 * np.exp(0.196)), rel=1e-3)
    lows, highs = zip(*ends, strict=True)
    assert lows[2] < lows[1] < lows[0] < 2.0 < highs[0] < highs[1] < highs[2]


def test_most_intervals_of_a_few_studies_hold_the_truth():
    rows: list[Any] = [*coverage_unfinished.losses("hours", "heavy", "any order", 12)]
    for row in rows:
        assert row.coverage > (0.9 if row.fitter == OURS else 0.75)
