"""Best sizes and contexts: found where they are bracketed, and nowhere else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmscaling.fits import isotime, optimum, paired_losses
from lmscaling.fits.noise import Place
from lmscaling.fits.paired_losses import Table
from lmscaling.fits.points import Group, Point

SIZES = np.geomspace(1e7, 1e9, 9)
BUDGETS = [1.5, 3.0, 6.0, 12.0, 24.0]
CONTEXTS = 2.0 ** np.arange(8, 17)
SD = 0.004


def bowl(n, hours, best=3e7, p=0.5):
    return 3 - 0.1 * np.log(hours) + 0.03 * np.log(n / (best * hours**p)) ** 2


def table(truth, seeds=3, rng: Any = None, x: Any = SIZES, sd=SD):
    """Losses of paired seeds around ``truth [x]`` or ``[x, budgets]``."""
    truth = np.reshape(truth, (len(x), -1))
    loss = np.repeat(truth[None], seeds, axis=0)
    if rng is not None:
        loss = loss + 3 * sd * rng.standard_normal((seeds, 1, 1))
        loss = loss + sd * rng.standard_normal((seeds, len(x), 1))
    runs = np.arange(seeds * len(x))
    return Table.from_losses(np.tile(x, seeds), loss.reshape(len(runs), -1), runs // len(x), runs)


def scatter_of(*tables):
    places = dict.fromkeys(range(len(tables)), Place(1e8, 4096, "softmax"))
    return paired_losses.measure(dict(enumerate(tables)), places)[0]


def fit(one, *others) -> Any:
    return optimum.fit(one, scatter_of(one, *others))


def fit_law(one) -> Any:
    return isotime.fit(one, BUDGETS, scatter_of(one))


def fit_context(**how) -> Any:
    return optimum.fit_contexts({"a": contexts_of(**how)})["a"]


def over_budgets(best: Any = 3e7, p=0.5):
    return bowl(SIZES[:, None], np.array(BUDGETS), best, p)


def test_best_sizes_and_their_law_come_back():
    found = fit_law(table(over_budgets(), rng=np.random.default_rng(0)))
    assert found.status == "fitted"
    for hours, best in found.optima.items():
        assert best.status == "bracketed"
        assert best.at == pytest.approx(3e7 * hours**0.5, rel=0.2)
        assert best.loss == pytest.approx(3 - 0.1 * np.log(hours), abs=0.03)
        assert best.interval.assumed is None
        assert 3e7 * hours**0.5 in best.interval
    assert 0.5 in found.interval
    assert found.interval.width < 0.12
    assert found.p == pytest.approx(0.5, abs=0.05)


@settings(max_examples=15)
@given(st.sampled_from([1e-3, 0.5, 1e6]), st.floats(-1, 1), st.tuples(*[st.floats(-0.3, 0.3)] * 3))
def test_units_of_sizes_and_what_all_runs_of_a_seed_share_move_no_optimum(unit, shift, of_seeds):
    known = table(over_budgets(), rng=np.random.default_rng(5))
    up = shift + np.array(of_seeds)[known.seed_r, None]
    moved = replace(known, log_x_r=known.log_x_r + np.log(unit), loss_rT=known.loss_rT + up)
    plain, other = (fit_law(one) for one in (known, moved))
    assert (other.status, other.p) == (plain.status, pytest.approx(plain.p, rel=1e-4))
    assert pytest.approx(unit * plain.G, rel=1e-3) == other.G
    for one, two in zip(plain.optima.values(), other.optima.values(), strict=True):
        assert two.at == pytest.approx(unit * one.at, rel=1e-4)
        ends, scaled = one.interval, two.interval
        assert (scaled.low, scaled.high) == pytest.approx((unit * ends.low, unit * ends.high), 1e-3)
        assert one.at in ends


@pytest.mark.parametrize(("best", "p"), [(3e7, 0.5), (5e7, 0.3)])
def test_exact_losses_give_exact_optima(best, p):
    found = fit_law(table(over_budgets(best, p), seeds=1))
    assert (found.p, found.G) == (pytest.approx(p, abs=1e-6), pytest.approx(best, rel=1e-5))


def test_best_sizes_that_leave_a_power_law_or_are_not_bracketed_give_no_law():
    best = 3e7 * np.exp(0.6 * np.sin(2 * np.log(BUDGETS)))
    found = fit_law(table(over_budgets(best), rng=np.random.default_rng(1), sd=0.001))
    assert (found.status, found.p, found.interval) == ("refused", None, None)
    found = fit_law(table(over_budgets(best=1e6)))
    assert (found.status, found.p, found.interval) == ("too_few", None, None)
    assert {best.status for best in found.optima.values()} == {"edge"}


@pytest.mark.parametrize(("best", "status"), [
    (SIZES[0] * 1.2, "edge"), (SIZES[1] * 0.95, "thin"), (SIZES[2] * 1.1, "bracketed"),
    (SIZES[-2] * 1.05, "thin"), (SIZES[-1] * 3, "edge"),
])  # fmt: skip
def test_an_optimum_needs_two_sizes_on_each_side(best, status):
    loss = bowl(SIZES, 1.0, best)
    found = fit(table(loss))
    assert found.status == status
    assert (found.at is None) == (status != "bracketed")
    assert found.lowest == pytest.approx(SIZES[loss.argmin()])


@pytest.mark.parametrize("compute", [3e18, 1e20])
def test_the_asymmetry_of_a_surface_moves_no_optimum(compute):
    """A parabola through all sizes is off by 0.15 to 0.02 in ln N, through five by up to 0.02."""
    truth = (0.34 * 400 / (0.30 * 1500)) ** (1 / 0.64) * (compute / 6) ** (0.30 / 0.64)
    sizes = 1.5e7 * 2.0 ** np.arange(9)
    loss = 1.8 + 400 * sizes**-0.34 + 1500 * (compute / (6 * sizes)) ** -0.30
    assert abs(np.log(fit(table(loss, x=sizes)).at / truth)) < 0.004


@pytest.mark.parametrize(("loss", "status"), [
    ([3, 2, 3], "too_few"), ([3, 2, 2.1, 3], "too_few"), ([2] * 5, "flat"),
    ([3, 2, 1, 2, 3], "bracketed"),
])  # fmt: skip
def test_degenerate_rows_are_named(loss, status):
    assert fit(table(loss, x=2.0 ** np.arange(len(loss)))).status == status


def test_losses_that_are_no_smooth_curve_are_refused_by_the_scatter_of_seeds():
    rng = np.random.default_rng(2)
    truth = 3 + 0.02 * np.log(CONTEXTS / 2000) ** 2
    plain = fit(table(truth, rng=rng, x=CONTEXTS))
    bent = fit(table(truth + 0.015 * np.cos(np.pi * np.arange(9)), rng=rng, x=CONTEXTS))
    assert plain.status == "bracketed"
    assert (bent.status, bent.at, bent.interval) == ("refused", None, None)
    assert bent.lack < 0.001 < plain.lack


def test_the_run_that_deviates_from_its_seeds_is_left_out():
    rng = np.random.default_rng(3)
    truth = 3 + 0.02 * np.log(CONTEXTS / 2000) ** 2
    plain = table(truth, rng=rng, x=CONTEXTS)
    loss = plain.loss_rT.copy()
    loss[12] += 0.15
    blown = replace(plain, loss_rT=loss)
    assert plain.deviating() == []
    assert blown.deviating() == [12]
    kept = blown.without([12])
    assert "12" not in kept.run_r
    best = fit(kept)
    assert 2000 in best.interval
    assert best.at == pytest.approx(fit(plain).at, rel=0.02)
    narrow, usual = (
        optimum.fit_moves(one, scatter_of(one), 0)[0].interval for one in (kept, plain)
    )
    assert narrow is not None
    assert usual is not None
    assert narrow.width < 2 * usual.width


def test_the_interval_of_a_context_has_the_lowest_tried_one_of_each_seed():
    """Where instability sets in at 2048 the polynomial puts the minimum below it."""
    kink = 3 + 0.05 * np.maximum(np.log(2000 / CONTEXTS), 0.4 * np.log(CONTEXTS / 2000))
    found = fit(table(kink, rng=np.random.default_rng(1), x=CONTEXTS, sd=0.02))
    assert found.lowest in found.interval


def test_one_seed_has_a_range_that_names_its_assumption():
    rng = np.random.default_rng(6)
    alone = table(bowl(SIZES, 6.0), seeds=1, rng=rng, sd=0.001)
    assert fit(alone).interval.assumed == pytest.approx(0.0019)  # of the nearest measured study
    beside = fit(alone, *(table(bowl(SIZES, 6.0), rng=rng) for _ in range(3))).interval
    assert SD / 2 < beside.assumed < 2 * SD  # of the other tables
    assert fit(table(bowl(SIZES, 6.0), seeds=2, rng=rng)).interval.assumed is None


def test_a_shallow_bowl_has_an_interval_with_open_ends():
    def of(width, seed, sd):
        truth = 3 + width * np.log(CONTEXTS / 2000) ** 2
        return fit(table(truth, rng=np.random.default_rng(seed), x=CONTEXTS, sd=sd))

    shallow, exact, rough = of(1e-4, 7, 0.002), of(0.02, 8, 0.001), of(0.02, 8, 0.01)
    assert shallow.status == "bracketed"
    assert shallow.interval.width == np.inf
    assert rough.interval.width > 5 * exact.interval.width


def test_an_unknown_correlation_over_budgets_is_taken_for_the_worst():
    known = table(over_budgets(), rng=np.random.default_rng(9))
    measured = scatter_of(known)
    unknown = replace(measured, covariance_TT=SD**2 * np.eye(5), known=False)
    weight = np.ones((2, 5))
    assert unknown.variance(weight) == pytest.approx(2 * 25 * SD**2)
    weight[:, ::2] = -1
    assert unknown.variance(weight) == pytest.approx(2 * 5 * SD**2)


def test_the_run_that_matters_most_is_named():
    known = table(bowl(SIZES, 6.0), rng=np.random.default_rng(10))
    found: Any = optimum.most_influential(known)
    fewer: list[Any] = [optimum.fit(known.without([row]), scatter_of(known)) for row in range(27)]
    moved = [abs(np.log(one.at / fit(known).at)) for one in fewer]
    farthest = int(np.argmax(moved))
    assert found == (str(farthest), pytest.approx(fewer[farthest].at))


def point(context, seed, loss, share=1.0, spent=24.0, schedule="constant"):
    trunk = f"c{context:.0f} s{seed}"
    return Point("measured", schedule, "validation", "softmax", "s", int(context), seed, trunk,
                 10**8, 10**8, 0, "hours", share, 24 * share, 1.0, 1.0, spent, spent, None,
                 loss)  # fmt: skip


def contexts_of(spent=24.0, schedule="constant"):
    """Three seeds at nine contexts, each with a loss at half of its budget; the runs of the longest
    context spend ``spent`` hours."""
    rng = np.random.default_rng(11)
    known = table(3 + 0.02 * np.log(CONTEXTS / 2000) ** 2, rng=rng, x=CONTEXTS)
    made = []
    for u, seed, (loss,) in zip(known.log_x_r, known.seed_r, known.loss_rT, strict=True):
        context, own = round(np.exp(u)), spent if np.exp(u) > 60000 else 24.0
        half = loss + 0.1 * np.log(own / 12)
        made.append(point(context, int(seed), half, 0.5, 12.0, schedule))
        made.append(point(context, int(seed), loss, 1.0, own, schedule))
    return Group(tuple(made))


def test_the_best_context_comes_from_the_ends_of_runs():
    found = fit_context()
    assert (found.status, found.short) == ("bracketed", ())
    assert 2000 in found.interval
    assert found.moved is not None
    # Of 15 hours beside a day, a slope of 0.1 nats an e-fold makes 0.047: they are not fitted.
    found = fit_context(spent=15.0)
    short = [(one.run, one.spent, one.budget) for one in found.short]
    assert short == [(f"c65536 s{seed}", 15.0, 24.0) for seed in range(3)]
    assert found.status == "bracketed"
    assert found.curve[-1][0] == pytest.approx(32768)
    assert fit_context(spent=23.8).short == ()
    unknown = fit_context(schedule="unknown")
    assert (unknown.status, unknown.at) == ("unknown_schedule", None)
    half = Group(tuple(p for p in contexts_of().points if p.share < 1))
    assert optimum.fit_contexts({"a": half})["a"].status == "too_few"
