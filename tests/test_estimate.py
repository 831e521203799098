"""Estimates of memory, time, tokens and disk space, against the arithmetic written out by hand."""

from dataclasses import replace
from math import exp

import pytest
from conftest import STUDY
from hypothesis import given
from hypothesis import strategies as st

from lmscaling.config import grid
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Model
from lmscaling.config.devices import Device
from lmscaling.plan import estimate
from lmscaling.plan.estimate import Shape

GPT2 = Model(n_layer=12, n_head=12, d_model=768, vocab_size=50257)
PARAMS = 124_000_000
ROOMY = Device(peak_flops=1e15, bandwidth=3e12, memory_bytes=1e12)


@pytest.fixture
def gpt2(cell):
    """A cell of GPT-2 124M: context 1024, 512 sequences an update, 8 devices, 1000 updates."""
    return replace(
        cell, model=GPT2, context=1024, update_tokens=2**19, gpus=8, budget="1000 updates"
    )


def test_memory_is_the_sum_of_state_activations_and_logits(gpt2):
    """18 bytes a parameter; 37 bytes a token, layer and unit of width; at most 2 x 2^28 bytes of
    logits, else 2 bytes for each, and 6 bytes for a weight of the head."""
    state = 18 * PARAMS + 6 * 50257 * 768
    small = estimate.memory_bytes(gpt2, PARAMS, 2, recompute=False)
    assert small == state + 2 * 1024 * 768 * 12 * 37 + 2 * 2 * 1024 * 50257
    large = estimate.memory_bytes(gpt2, PARAMS, 16, recompute=False)
    assert large == state + 16 * 1024 * 768 * 12 * 37 + 2 * 2**28


def test_recomputation_keeps_four_bytes_a_layer_and_one_complete_layer(gpt2):
    needed = estimate.memory_bytes(gpt2, PARAMS, 2, recompute=True)
    head = 6 * 50257 * 768 + 2 * 2 * 1024 * 50257
    assert needed == 18 * PARAMS + 2 * 1024 * 768 * (12 * 4 + 37) + head


def test_a_micro_batch_has_at_most_16384_tokens_and_divides_the_update(gpt2):
    layout = estimate.guess(gpt2, PARAMS, 1e12)
    assert layout
    assert (layout.micro_batch, layout.recompute) == (16, False)
    thirds = estimate.guess(replace(gpt2, update_tokens=8 * 24 * 1024), PARAMS, None)
    assert thirds
    assert thirds.micro_batch == 12  # the largest divisor of 24 up to 16
    long = estimate.guess(replace(gpt2, context=2**17, update_tokens=2**20), PARAMS, None)
    assert long
    assert long.micro_batch == 1


def test_an_estimate_fills_nine_tenths_of_a_device_for_sure(gpt2):
    """With a probability of 90 % it takes less than the upper end of its interval of 80 %."""
    needed = estimate.memory_bytes(gpt2, PARAMS, 16, recompute=False)
    most = needed * exp(1.2816 * 0.1 * (1 - 18 * PARAMS / needed))
    enough = estimate.guess(gpt2, PARAMS, most / 0.9 * 1.0001)
    short = estimate.guess(gpt2, PARAMS, most / 0.9 * 0.9999)
    assert enough
    assert short
    assert (enough.micro_batch, enough.memory_bytes) == (16, needed)
    assert short.micro_batch == 8


def test_the_smallest_layout_is_taken_if_it_only_likely_fits(gpt2):
    needed = estimate.memory_bytes(gpt2, PARAMS, 1, recompute=True)
    likely, none = (estimate.guess(gpt2, PARAMS, needed / 0.9 * x) for x in (1.0001, 0.9999))
    assert likely
    assert (likely.micro_batch, likely.recompute, none) == (1, True, None)
    words = [likely.fits(needed / 0.9 * x) for x in (0.9999, 1.0001, 1.1)]
    assert words == ["does not fit", "likely fits", "fits"]


def test_time_is_predicted_from_the_shape_within_an_interval(gpt2):
    made = estimate.forecast(gpt2, Shape(PARAMS, 8e8), ROOMY, None, None)
    assert made.update_seconds
    low, high = made.range_80["update_seconds"]
    assert low < made.update_seconds < high < 2 * low
    assert 0.2 < 8e8 * 2**19 / (8 * 1e15 * made.update_seconds) < 0.6  # of the peak
    assert sum(made.shares.values()) == pytest.approx(1)
    assert made.gpu_hours == pytest.approx(1000 * made.update_seconds * 8 / 3600)
    assert (made.updates, made.tokens, made.epochs) == (1000, 1000 * 2**19, None)
    assert (made.micro_batch, made.accumulation) == (16, 4)
    assert (made.measured, made.cannot, made.notes) == (False, "", [])


def test_a_branch_costs_a_fifth_of_its_share(gpt2):
    kept = replace(gpt2, budget="24 hours", keep=(0.25, 0.5, 1.0))
    made = estimate.forecast(kept, Shape(PARAMS, 8e8), ROOMY, None, None)
    assert made.gpu_hours == pytest.approx(24 * 8)
    assert made.branch_gpu_hours == pytest.approx(24 * 8 * 0.2 * 1.75)


def test_disk_space_is_the_weights_and_a_checkpoint_of_each_branch(gpt2):
    shape = Shape(PARAMS, 8e8)
    assert estimate.forecast(gpt2, shape, ROOMY, None, None).disk_bytes == 4 * PARAMS
    kept = replace(gpt2, keep=(0.5, 1.0))
    assert estimate.forecast(kept, shape, ROOMY, None, None).disk_bytes == (4 + 2 * 16) * PARAMS


@pytest.mark.parametrize(("budget", "updates"), [
    ("7 updates", 7), ("6.2 updates", 7), ("1e6 tokens", 2), ("1048576 tokens", 2),
    ("10 seconds", 4), ("1 minutes", 24), ("1 hours", 1440),
])  # fmt: skip
def test_updates_of_a_budget_are_rounded_up_and_those_of_a_time_down(gpt2, budget, updates):
    measured = Calibration(
        of="", device="", versions={}, measured=True, micro_batch=4, update_seconds=2.5,
        peak_memory_bytes=7,
    )  # fmt: skip
    made = estimate.forecast(replace(gpt2, budget=budget), Shape(PARAMS, 1.0), None, measured, None)
    assert (made.updates, made.tokens) == (updates, updates * 2**19)
    assert (made.memory_bytes, made.measured, made.update_seconds) == (7, True, 2.5)


@given(
    st.floats(1, 1e4), st.floats(1, 10), st.sampled_from(["hours", "seconds", "updates", "tokens"])
)
def test_a_larger_budget_never_has_fewer_updates_and_a_whole_one_is_spent(amount, factor, unit):
    cell = replace(
        next(iter(grid.expand(STUDY).cells.values())), model=GPT2, context=1024, update_tokens=2048
    )
    measured = Calibration(
        of="", device="", versions={}, measured=True, micro_batch=1, update_seconds=2.5
    )
    less, more = (
        estimate.forecast(
            replace(cell, budget=f"{x!r} {unit}"), Shape(PARAMS, 1.0), None, measured, None
        ).updates
        for x in (amount, amount * factor)
    )
    assert less is not None
    assert more is not None
    assert less <= more
    each = {"hours": 2.5 / 3600, "seconds": 2.5, "updates": 1, "tokens": 2048}[unit]
    assert abs(less * each - amount) <= each * (1 + 1e-9)


@pytest.mark.parametrize(("data", "epochs", "share", "has_note"), [
    (2.0, 1, 1.0, False), (1.0, 1, 1.0, False), (0.5, 1, 0.5, True), (0.5, 2, 1.0, False),
    (0.25, 2, 0.5, True),
])  # fmt: skip
def test_a_run_ends_where_its_data_end_and_costs_no_more(gpt2, data, epochs, share, has_note):
    """``data`` is the training text as a share of what the budget would read."""
    complete = replace(gpt2, epochs=epochs)
    wanted = 1000 * 2**19
    shape = Shape(PARAMS, 8e8)
    unlimited = estimate.forecast(complete, shape, ROOMY, None, None)
    made = estimate.forecast(complete, shape, ROOMY, None, data * wanted)
    assert made.epochs == pytest.approx(1 / data)
    assert made.tokens == int(share * wanted)
    assert made.gpu_hours == pytest.approx(share * unlimited.gpu_hours)
    assert bool(made.notes) is has_note


@pytest.mark.parametrize(("updates", "early"), [(1000, False), (999, True)])
def test_a_branch_that_starts_within_the_warm_up_is_noted(gpt2, updates, early):
    """A branch of half the budget starts at 0.4 of it: 400 of 1000 updates."""
    warm = replace(gpt2.optimizer, warmup_updates=400)
    kept = replace(gpt2, optimizer=warm, budget=f"{updates} updates", keep=(0.5, 1.0))
    made = estimate.forecast(kept, Shape(PARAMS, 8e8), ROOMY, None, None)
    assert bool(made.notes) is early
    assert not early or "0.5" in made.notes[0]


def test_a_cell_that_does_not_fit_has_a_reason_and_no_numbers(gpt2):
    least = estimate.memory_bytes(gpt2, PARAMS, 1, recompute=True)
    tight = Device(peak_flops=1e15, bandwidth=3e12, memory_bytes=least / 0.9 * 1.001)
    fits = estimate.forecast(gpt2, Shape(PARAMS, 8e8), tight, None, None)
    assert (fits.micro_batch, fits.recompute, fits.cannot) == (1, True, "")
    small = replace(tight, memory_bytes=least / 0.9 * 0.999)
    refused = estimate.forecast(gpt2, Shape(PARAMS, 8e8), small, None, None)
    assert refused.cannot
    assert (refused.micro_batch, refused.updates, refused.gpu_hours) == (None, None, None)
    assert (refused.gpus, refused.disk_bytes) == (8, 0)
