"""The end of a run, whatever spikes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmscaling.fits import final_loss


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


@pytest.mark.parametrize("loss", [[], [3.0] * 399])
def test_too_few_losses_have_no_end(loss):
    found = final_loss.fit(loss)
    assert (found.status, found.loss, found.used, found.left_out) == ("too_few", None, 0, 0)


LOSSES = st.lists(st.integers(-99, 99).map(lambda n: 3 + n / 1024), min_size=40, max_size=60)


@given(LOSSES, st.floats(-2, 2))
def test_a_constant_moves_the_mean_alone(end, shift):
    plain, moved = final_loss.mean(end), final_loss.mean(np.array(end) + shift)
    assert (plain.status, plain.used, plain.left_out) == (moved.status, moved.used, moved.left_out)
    assert plain.loss is not None
    assert moved.loss == pytest.approx(plain.loss + shift)
    assert moved.error == pytest.approx(plain.error, abs=1e-9)
