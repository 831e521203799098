"""Spikes are exactly those of the definition, however fast they are found."""

import numpy as np
import pytest

from lmscaling.store import spikes


def plainly(loss):
    """The definition, word by word."""
    found = []
    for i in range(32, len(loss)):
        before = loss[max(0, i - 128) : i]
        height = loss[i] - np.median(before)
        deviation = 1.4826 * np.median(np.abs(before - np.median(before)))
        if height > 0.05 and height > 7 * deviation:
            found.append((i, height))
    return found


NOISE = {
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "normal": lambda rng, n: rng.normal(3, 0.02, n) + (rng.random(n) < 0.02),
    "half constant": lambda rng, n: np.where(rng.random(n) < 0.5, 3.0, rng.exponential(1, n)),
    "two levels": lambda rng, n: 3 + (rng.random(n) < 0.45) + rng.normal(0, 0.01, n),
    "rounded": lambda rng, n: rng.normal(3, 0.1, n).round(1) + 2 * (rng.random(n) < 0.05),
    "walk": lambda rng, n: rng.standard_cauchy(n).cumsum() / 100,
    "bursts": lambda rng, n: rng.normal(3, 0.02, n) + (np.arange(n) % 200 > 140),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("n", [0, 1, 32, 33, 127, 128, 129, 160, 161, 1000, 3001])
def test_the_bounds_miss_no_spike(noise, n):
    loss = NOISE[noise](np.random.default_rng(n), n)
    indices, heights = spikes.find(loss)
    expected = plainly(loss)
    assert indices.tolist() == [i for i, _ in expected]
    assert heights == pytest.approx([height for _, height in expected])
    assert len(expected) > 0 or n < 1000 or noise == "two levels"


@pytest.mark.parametrize("at", [128, 200, 500, 999])
@pytest.mark.parametrize(("share", "is_one"), [(0.999, False), (1.001, True)])
def test_an_evenly_spread_loss_has_a_spike_from_the_threshold_on(at, share, is_one):
    """Blocks of 32 evenly spread values: the median of 128 is known, and so is the deviation."""
    rng = np.random.default_rng(at)
    blocks = np.tile(np.linspace(3, 4, 32), (32, 1))
    loss = rng.permuted(blocks, axis=1).ravel()[:1000]
    before = loss[at - 128 : at]
    middle = np.median(before)
    threshold = 7 * 1.4826 * np.median(np.abs(before - middle))
    loss[at] = middle + share * threshold
    indices, heights = spikes.find(loss)
    assert indices.tolist() == [at] * is_one
    assert heights == pytest.approx([share * threshold] * is_one)


@pytest.mark.parametrize(("height", "is_one"), [(0.049, False), (0.051, True)])
def test_a_calm_loss_has_a_spike_from_a_twentieth_of_a_nat_on(height, is_one):
    loss = 3 + 1e-4 * np.random.default_rng(0).normal(size=400)
    loss[300] = np.median(loss[172:300]) + height
    assert spikes.find(loss)[0].tolist() == [300] * is_one


def test_the_bounds_rule_out_most_of_a_calm_run():
    loss = 3 + np.random.default_rng(0).normal(0, 0.1, 100_000)
    assert len(spikes._candidates(loss)) < 10_000
    assert len(spikes.find(loss)[0]) == 0


def calm(n: int = 400) -> np.ndarray:
    return np.random.default_rng(0).normal(3, 0.02, n)


def test_an_upset_lasts_until_the_loss_is_back_in_the_band_before_it():
    loss = calm()
    loss[200:230] += np.linspace(2, 0.3, 30)
    loss[300] += 1
    first, updates = spikes.recoveries(loss, spikes.find(loss)[0])
    assert first.tolist() == [200, 300]
    assert updates.tolist() == [30, 1]


@pytest.mark.parametrize("at", [40, 450])
def test_the_band_is_that_of_the_128_updates_before_the_upset(at):
    loss = calm(500)
    loss[:300] += 1 if at > 300 else 0
    loss[at : at + 10] += 0.5
    _, updates = spikes.recoveries(loss, np.array([at]))
    assert updates.tolist() == [10]


def test_one_low_update_does_not_end_an_upset():
    loss = calm()
    loss[200:240] += 1
    loss[220] -= 1
    first, updates = spikes.recoveries(loss, spikes.find(loss)[0])
    assert (first.tolist(), updates.tolist()) == ([200], [40])


@pytest.mark.parametrize(("low", "lasted"), [(1, 40), (4, 40), (5, 40), (7, 40), (8, 20), (9, 20)])
def test_eight_low_updates_in_a_row_end_an_upset_and_fewer_do_not(low, lasted):
    loss = calm()
    loss[200:240] += 1
    loss[220 : 220 + low] -= 1
    _, updates = spikes.recoveries(loss, np.array([200]))
    assert updates.tolist() == [lasted]


def test_updates_without_a_number_are_not_calm():
    loss = calm()
    loss[200] += 1
    loss[203] = np.nan
    _, updates = spikes.recoveries(loss, np.array([200]))
    assert updates.tolist() == [4]


def test_an_upset_may_outlast_the_run():
    loss = calm()
    loss[200:] += 1
    first, updates = spikes.recoveries(loss, spikes.find(loss)[0])
    assert (first.tolist(), updates.tolist()) == ([200], [np.inf])
    late = calm()
    late[-3] += 1
    assert spikes.recoveries(late, spikes.find(late)[0])[1].tolist() == [np.inf]
    assert spikes.recoveries(calm(), np.array([], dtype=int))[1].tolist() == []
