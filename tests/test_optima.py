"""Best sizes and contexts: found where they are bracketed, and nowhere else."""

import numpy as np
import pytest

from lmscaling.fits import context_law, isotime
from lmscaling.fits.context_law import Losses
from lmscaling.fits.uncertainty import Noise

SIZES = np.geomspace(1e7, 1e9, 9)
BUDGETS = np.array([1.5, 3.0, 6.0, 12.0, 24.0])
N, HOURS = (axis.ravel() for axis in np.meshgrid(SIZES, BUDGETS, indexing="ij"))


def bowl(n, hours, best=3e7, p=0.5):
    return 3 - 0.1 * np.log(hours) + 0.03 * np.log(n / (best * hours**p)) ** 2


def chinchilla(n, compute, E=1.8, A=400.0, B=1500.0, alpha=0.34, beta=0.30):
    return E + A * n**-alpha + B * (compute / (6 * n)) ** -beta


def test_best_sizes_and_their_law_come_back():
    found = isotime.fit(N, HOURS, bowl(N, HOURS), trunk=N)
    assert found.status == "fitted"
    for hours, optimum in found.optima.items():
        assert optimum.status == "bracketed"
        assert optimum.at == pytest.approx(3e7 * hours**0.5)
        assert optimum.loss == pytest.approx(3 - 0.1 * np.log(hours))
        assert optimum.interval is not None
        assert 3e7 * hours**0.5 in optimum.interval
    assert found.p == pytest.approx(0.5)
    assert pytest.approx(3e7) == found.G
    assert found.interval is not None
    assert 0.5 in found.interval


def test_the_interval_of_the_exponent_holds_the_truth_in_most_of_40_studies():
    """33 of 40, as for surfaces."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(40):
        seed = rng.normal(0, Noise().seed_sd, len(SIZES))[np.searchsorted(SIZES, N)]
        loss = bowl(N, HOURS) + seed + rng.normal(0, Noise().point_sd, len(N))
        found = isotime.fit(N, HOURS, loss, trunk=N, count=300)
        assert found.interval is not None
        held.append(0.5 in found.interval)
    assert sum(held) >= 33


@pytest.mark.parametrize(
    ("best", "status"),
    [
        (SIZES[0] / 3, "edge"),
        (SIZES[0] * 1.2, "edge"),
        (SIZES[1] * 0.95, "thin"),
        (SIZES[2] * 1.1, "bracketed"),
        (SIZES[-2] * 1.05, "thin"),
        (SIZES[-1] * 3, "edge"),
    ],
)
def test_an_optimum_needs_two_sizes_on_each_side(best, status):
    loss = bowl(SIZES, 1.0, best)
    found = isotime.fit(SIZES, np.ones(9), loss).optima[1.0]
    assert found.status == status
    assert (found.at is None) == (status != "bracketed")
    assert found.lowest == SIZES[loss.argmin()]


@pytest.mark.parametrize(
    ("compute", "everywhere_off", "status"),
    [
        (1e17, 0.8, "edge"),
        (3e17, 0.5, "edge"),
        (3e18, 0.15, "bracketed"),
        (1e20, 0.02, "bracketed"),
    ],
)
def test_a_parabola_off_its_centre_is_biased_and_gives_no_number(compute, everywhere_off, status):
    """The pitfall of IsoFLOPs: the nearer the minimum lies to the edge of the sizes, the farther
    off is a parabola through all of them, on an exact surface; points around it are enough."""
    A, B, alpha, beta = 400.0, 1500.0, 0.34, 0.30
    truth = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    truth *= (compute / 6) ** (beta / (alpha + beta))
    sizes = 1.5e7 * 2.0 ** np.arange(9)
    loss = chinchilla(sizes, compute)
    bend, slope, _ = np.polyfit(np.log(sizes), loss, 2)
    assert abs(-slope / (2 * bend) - np.log(truth)) > everywhere_off
    found = isotime.fit(sizes, np.ones(9), loss).optima[1.0]
    assert found.status == status
    assert found.at is None or abs(np.log(found.at / truth)) < 0.02


def test_budgets_without_an_optimum_give_no_law():
    found = isotime.fit(N, HOURS, bowl(N, HOURS, best=1e6))
    assert (found.status, found.p, found.interval) == ("too_few", None, None)
    assert {optimum.status for optimum in found.optima.values()} == {"edge"}


@pytest.mark.parametrize(
    ("loss", "status"),
    [([3.0, 2, 3], "too_few"), ([2.0, 2, 2, 2, 2], "flat"), ([3.0, 2, 1, 2, 3], "bracketed")],
)
def test_degenerate_rows_are_named(loss, status):
    found = context_law.fit({"s": Losses(2.0 ** np.arange(len(loss)), loss)})["s"]
    assert found.status == status


def test_the_best_context_of_each_size_comes_back():
    context = 2.0 ** np.arange(8, 17)
    sizes = {"s": 2000.0, "m": 6000.0}
    losses = {
        name: Losses(context, 3 + 0.02 * np.log(context / best) ** 2)
        for name, best in sizes.items()
    }
    found = context_law.fit(losses)
    for name, best in sizes.items():
        assert found[name].at == pytest.approx(best)
        interval = found[name].interval
        assert interval is not None
        assert best in interval
        assert interval.width < best


def test_a_shallow_bowl_has_an_interval_with_open_ends():
    context = 2.0 ** np.arange(8, 17)
    loss = 3 + 1e-5 * np.log(context / 2000) ** 2
    found = context_law.fit({"s": Losses(context, loss)})["s"]
    assert found.status == "bracketed"
    assert found.interval is not None
    assert found.interval.width == np.inf


def test_seeds_tell_how_sure_the_best_context_is():
    context = np.tile(2.0 ** np.arange(8, 17), 3)
    rng = np.random.default_rng(0)
    width = {}
    for sd in (0.002, 0.02):
        loss = 3 + 0.02 * np.log(context / 2000) ** 2 + rng.normal(0, sd, len(context))
        interval = context_law.fit({"s": Losses(context, loss)})["s"].interval
        assert interval is not None
        width[sd] = interval.width
    assert width[0.02] > 4 * width[0.002]
