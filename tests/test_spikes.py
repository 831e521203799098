"""Spikes are exactly those of the definition, however fast they are found."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas import Series
from test_store import ask, end, exported, header, log, record, study, update

from lmscaling.config import study_file
from lmscaling.store import spikes

__all__ = ["study"]


def plainly(loss):
    """The definition, word by word: index and height of each spike."""
    found = {}
    for i in range(32, len(loss)):
        before = loss[max(0, i - 128) : i]
        height = loss[i] - np.median(before)
        deviation = 1.4826 * np.median(np.abs(before - np.median(before)))
        if height > 0.05 and height > 7 * deviation:
            found[i] = height
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
SERIES = st.builds(
    lambda noise, n, seed: NOISE[noise](np.random.default_rng(seed), n),
    st.sampled_from(sorted(NOISE)),
    st.sampled_from([0, 1, 32, 33, 127, 128, 129, 160, 161, 1000]),
    st.integers(0, 99),
)


@given(SERIES)
def test_the_bounds_miss_no_spike(loss):
    indices, heights = spikes.find(loss)
    expected = plainly(loss)
    assert indices.tolist() == list(expected)
    assert heights == pytest.approx(list(expected.values()))


@pytest.mark.parametrize(("height", "is_one"), [(0.049, False), (0.051, True)])
def test_a_calm_loss_has_a_spike_from_a_twentieth_of_a_nat_on(height, is_one):
    loss = 3 + 1e-4 * np.random.default_rng(0).normal(size=400)
    loss[300] = np.median(loss[172:300]) + height
    assert spikes.find(loss)[0].tolist() == [300] * is_one


def calm(n=400):
    return np.random.default_rng(0).normal(3, 0.02, n)


def lasted(loss, *at):
    """How many updates each upset lasts that begins with these spikes, or with those found."""
    places = np.array(at) if at else spikes.find(loss)[0]
    updates = spikes.recoveries(loss, places)
    return {i: n for i, n in zip(places.tolist(), updates.tolist(), strict=True) if n == n}


def test_an_upset_lasts_until_the_loss_is_back_in_the_band_before_it():
    loss = calm()
    loss[200:230] += np.linspace(2, 0.3, 30)
    loss[300] += 1
    assert lasted(loss) == {200: 30, 300: 1}
    loss[303] = np.nan  # is not calm
    assert lasted(loss, 300) == {300: 4}
    assert lasted(calm()) == {}
    for first, last in ((200, 400), (397, 398)):  # either may outlast the run
        loss = calm()
        loss[first:last] += 1
        assert lasted(loss) == {first: np.inf}


@pytest.mark.parametrize("at", [40, 450])
def test_the_band_is_that_of_the_128_updates_before_the_upset(at):
    loss = calm(500)
    loss[:300] += 1 if at > 300 else 0
    loss[at : at + 10] += 0.5
    assert lasted(loss, at) == {at: 10}


@pytest.mark.parametrize(("low", "updates"), [(1, 40), (7, 40), (8, 20)])
def test_eight_low_updates_in_a_row_end_an_upset_and_fewer_do_not(low, updates):
    loss = calm()
    loss[200:240] += 1
    loss[220 : 220 + low] -= 1
    assert lasted(loss, 200) == {200: updates}


def text(n: int, seed: int = 0) -> np.ndarray:
    """How hard the text of each update is: noise, and slabs of text that is harder."""
    hard = np.random.default_rng(seed).normal(0, 0.03, n)
    for start, length, nats in ((300, 1, 0.6), (420, 40, 0.4), (700, 300, 0.5), (1200, 100, -0.5)):
        hard[start : start + length] += nats
    return hard


def study_of(runs: int, n: int = 1500, noise: float = 0.005) -> list[np.ndarray]:
    """Losses of runs of different levels on the same text."""
    falling = 3 + 7 * np.exp(-np.arange(n) / 15)
    return [
        falling + i / 10 + text(n) + np.random.default_rng(i + 1).normal(0, noise, n)
        for i in range(runs)
    ]


def judged(losses, trunks=None) -> list[tuple[dict[int, float], int]]:
    """Spikes by index with their heights, and the number of compared updates, of each run."""
    runs = {str(i): Series(loss) for i, loss in enumerate(losses)}
    differences = spikes.differences(runs, {run: run for run in runs} | (trunks or {}))
    found = [spikes.judge(loss, differences[str(i)]) for i, loss in enumerate(losses)]
    return [(dict(zip(at.tolist(), high.tolist(), strict=True)), n) for at, high, n in found]


@pytest.mark.parametrize(("runs", "at"), [(4, 250), (5, 430), (4, 720), (5, 1499)])
def test_text_that_is_hard_for_all_runs_makes_no_spikes_and_one_of_one_run_is_found(runs, at):
    losses = study_of(runs)
    assert all(len(spikes.find(loss)[0]) > 40 for loss in losses)
    assert judged(losses) == [({}, 1500 - spikes.BEFORE - spikes.FEWEST)] * runs
    losses[0][at] += 0.5
    (found, _), *rest = judged(losses)
    assert found == {at: pytest.approx(0.5, abs=0.05)}
    assert all(other == {} for other, _ in rest)


def test_text_that_is_easy_for_the_other_runs_alone_is_no_spike_of_a_run():
    losses = study_of(4)
    for other in losses[1:]:
        other[600] -= 1.5
    losses[0][600] -= 0.4  # far above what the others gain, and below its own level
    assert [found for found, _ in judged(losses)] == [{}] * 4
    losses[0][600] += 1.0
    assert list(judged(losses)[0][0]) == [600]


@pytest.mark.parametrize("length", [1, 400])
def test_an_upset_of_one_run_gives_no_other_a_spike_and_takes_none_away(length):
    losses = study_of(4)
    losses[1][600 : 600 + length] += 1
    losses[0][601] += 0.4
    (found, _), (upset, _), *rest = judged(losses)
    assert list(found) == [601]
    assert list(upset) == list(range(600, 600 + min(length, 64)))
    assert all(other == {} for other, _ in rest)


@pytest.mark.parametrize("runs", [1, 3])
def test_with_fewer_than_three_others_a_run_is_judged_by_its_own_losses(runs):
    losses = study_of(runs)
    losses[0][250] += 0.5
    for loss, (found, compared) in zip(losses, judged(losses), strict=True):
        assert compared == 0
        assert list(found) == spikes.find(loss)[0].tolist()


def test_a_branch_is_compared_with_other_trunks_only():
    losses = study_of(4)
    branch = losses[0].copy()
    branch[1000] += 0.5
    losses[0][1000] += 0.5  # what trunk and branch share is no text
    found = judged([*losses, branch], {"4": "0"})
    assert list(found[0][0]) == list(found[4][0]) == [1000]
    assert all(other == {} for other, _ in found[1:4])


def test_the_excess_of_the_others_is_that_of_a_plain_computation():
    """Of the runs with a loss at an update, at least three others; some losses are missing."""
    rng = np.random.default_rng(0)
    table = rng.normal(3, 0.1, (7, 300)).round(2)
    table[:, 0] = 3.0
    missing = rng.random(table.shape) < [[0.1], [0.1], [0.3], [0.5], [0.5], [0.5], [0.5]]
    missing[:, :130] = False
    runs, excess = {}, np.full(table.shape, np.nan)
    for row, (loss, gone) in enumerate(zip(table, missing, strict=True)):
        known = np.flatnonzero(~gone)
        runs[str(row)] = Series(loss[known], known)
        latest = [loss[known[known <= u][-1]] for u in range(len(loss))]
        for u in known[known >= spikes.BEFORE]:
            excess[row, u] = loss[u] - np.median(latest[u - spikes.BEFORE : u])
    differences = spikes.differences(runs, {run: run for run in runs})
    for row, found in enumerate(differences.values()):
        left = np.delete(excess, row, axis=0)
        enough = np.isfinite(left).sum(axis=0) >= spikes.FEWEST_OTHERS
        expected = np.full(300, np.nan)
        expected[enough] = excess[row, enough] - np.nanmedian(left[:, enough], axis=0)
        assert found == pytest.approx(expected[~missing[row]], nan_ok=True)


@pytest.mark.parametrize("block_tokens", [None, 1024])
def test_runs_that_read_the_same_tokens_in_the_same_update_are_compared(
    study, values, block_tokens
):
    """Text is read from end to end, or in an order that the seed draws."""
    values["axes"] |= {"size": ["s", "m"], "context": [16, 32], "seed": [0, 1]}
    if block_tokens:
        values["datasets"]["lines"] |= {"shuffle": "blocks", "block_tokens": block_tokens}
    (study / "study.json").write_text(json.dumps({"command": "", "study": values}))
    cells = study_file.read_record(study / "study.json").grid.cells
    first, second = ([run for run in cells if cells[run].seed == seed] for seed in (0, 1))
    runs = [*first[:4], second[0], "softmax-x-ctx16-s0-00000000"]  # the last has left the study
    losses = study_of(6, 400)
    losses[0][250] += 0.5
    for run, loss in zip(runs, losses, strict=True):
        rows = [update(n, loss=value) for n, value in enumerate(loss.tolist(), start=1)]
        record(study, run, log(header(run), *rows, end(400)), updates=400)
    together, alone = (runs[:4], runs[4:]) if block_tokens else (runs[:5], runs[5:])
    found = ask(study, "SELECT run, update FROM spikes")
    assert [row for row in found if row[0] in together] == [(runs[0], 251)]
    assert {run for run, _ in found} == {runs[0], *alone}
    compared = 400 - spikes.BEFORE - spikes.FEWEST
    shares = exported(study, "SELECT run, compared_updates FROM runs")
    assert dict(shares) == dict.fromkeys(together, compared) | dict.fromkeys(alone, 0)
    query = "SELECT DISTINCT compared_share FROM stability ORDER BY ALL"
    assert exported(study, query) == [(0.0,), (compared / 400,)]
