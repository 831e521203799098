"""Estimates of memory, time, tokens and disk space, against the arithmetic written out by hand."""

from dataclasses import replace
from math import exp
from typing import Any

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
SHAPE = Shape(PARAMS, 8e8)


def forecast(cell, device: Any = ROOMY, measured=None, tokens=None) -> Any:
    return estimate.forecast(cell, SHAPE, device, measured, tokens)


def guess(cell, memory) -> Any:
    return estimate.guess(cell, PARAMS, memory)


def measured(micro_batch=1, **values):
    return Calibration(
        of="", device="", versions={}, measured=True, update_seconds=2.5, micro_batch=micro_batch,
        **values,
    )  # fmt: skip


@pytest.fixture
def gpt2(cell):
    """A cell of GPT-2 124M: context 1024, 512 sequences an update, 8 devices, 1000 updates."""
    return replace(
        cell, model=GPT2, context=1024, update_tokens=2**19, gpus=8, budget="1000 updates"
    )


def test_memory_is_the_sum_of_state_activations_and_logits(gpt2):
    """18 bytes a parameter; 37 bytes a token, layer and unit of width; at most 2 x 2^28 bytes of
    logits, else 2 bytes for each, and 6 bytes for a weight of the head. Recomputation keeps four
    bytes a layer and one complete layer."""
    state, head, width = 18 * PARAMS, 6 * 50257 * 768, 1024 * 768
    logits = 2 * 2 * 1024 * 50257
    small = estimate.memory_bytes(gpt2, PARAMS, 2, recompute=False)
    assert small == state + head + 2 * width * 12 * 37 + logits
    large = estimate.memory_bytes(gpt2, PARAMS, 16, recompute=False)
    assert large == state + head + 16 * width * 12 * 37 + 2 * 2**28
    recomputed = estimate.memory_bytes(gpt2, PARAMS, 2, recompute=True)
    assert recomputed == state + head + 2 * width * (12 * 4 + 37) + logits


def test_a_micro_batch_has_at_most_16384_tokens_and_divides_the_update(gpt2):
    layout = guess(gpt2, 1e12)
    assert (layout.micro_batch, layout.recompute) == (16, False)
    thirds = guess(replace(gpt2, update_tokens=8 * 24 * 1024), None)
    assert thirds.micro_batch == 12  # the largest divisor of 24 up to 16
    assert guess(replace(gpt2, context=2**17, update_tokens=2**20), None).micro_batch == 1


def test_an_estimate_fills_nine_tenths_of_a_device_for_sure(gpt2):
    """With a probability of 90 % it takes less than the upper end of its interval of 80 %."""
    needed = estimate.memory_bytes(gpt2, PARAMS, 16, recompute=False)
    most = needed * exp(1.2816 * 0.1 * (1 - 18 * PARAMS / needed))
    enough, short = (guess(gpt2, most / 0.9 * x) for x in (1.0001, 0.9999))
    assert (enough.micro_batch, enough.memory_bytes) == (16, needed)
    assert short.micro_batch == 8


def test_the_smallest_layout_is_taken_if_it_only_likely_fits(gpt2):
    needed = estimate.memory_bytes(gpt2, PARAMS, 1, recompute=True)
    likely, none = (guess(gpt2, needed / 0.9 * x) for x in (1.0001, 0.9999))
    assert (likely.micro_batch, likely.recompute, none) == (1, True, None)
    words = [likely.fits(needed / 0.9 * x) for x in (0.9999, 1.0001, 1.1)]
    assert words == ["does not fit", "likely fits", "fits"]


def test_time_is_predicted_from_the_shape_within_an_interval(gpt2):
    made = forecast(gpt2)
    low, high = made.range_80["update_seconds"]
    assert low < made.update_seconds < high < 2 * low
    assert 0.2 < 8e8 * 2**19 / (8 * 1e15 * made.update_seconds) < 0.6  # of the peak
    assert sum(made.shares.values()) == pytest.approx(1)
    assert made.gpu_hours == pytest.approx(1000 * made.update_seconds * 8 / 3600)
    assert (made.updates, made.tokens, made.epochs) == (1000, 1000 * 2**19, None)
    assert (made.micro_batch, made.accumulation) == (16, 4)
    assert (made.measured, made.cannot, made.notes) == (False, "", [])
    assert made.disk_bytes == 4 * PARAMS


def test_a_branch_costs_a_fifth_of_its_share_and_a_checkpoint_of_16_bytes_a_parameter(gpt2):
    made = forecast(replace(gpt2, budget="24 hours", keep=(0.25, 0.5, 1.0)))
    assert made.gpu_hours == pytest.approx(24 * 8)
    assert made.branch_gpu_hours == pytest.approx(24 * 8 * 0.2 * 1.75)
    assert forecast(replace(gpt2, keep=(0.5, 1.0))).disk_bytes == (4 + 2 * 16) * PARAMS


@pytest.mark.parametrize(("budget", "updates"), [
    ("7 updates", 7), ("6.2 updates", 7), ("1e6 tokens", 2), ("1048576 tokens", 2),
    ("10 seconds", 4), ("1 minutes", 24), ("1 hours", 1440),
])  # fmt: skip
def test_updates_of_a_budget_are_rounded_up_and_those_of_a_time_down(gpt2, budget, updates):
    known = measured(micro_batch=4, peak_memory_bytes=7)
    made = forecast(replace(gpt2, budget=budget), None, known)
    assert (made.updates, made.tokens) == (updates, updates * 2**19)
    assert (made.memory_bytes, made.measured, made.update_seconds) == (7, True, 2.5)


TINY = next(iter(grid.expand(STUDY).cells.values()))
UNITS = {"hours": 2.5 / 3600, "seconds": 2.5, "updates": 1, "tokens": 2048}
"""What an update takes of a budget."""


@given(st.floats(1, 1e4), st.floats(1, 10), st.sampled_from(list(UNITS)))
def test_a_larger_budget_never_has_fewer_updates_and_a_whole_one_is_spent(amount, factor, unit):
    cell = replace(TINY, model=GPT2, context=1024, update_tokens=2048)
    less, more = (
        forecast(replace(cell, budget=f"{x!r} {unit}"), None, measured()).updates
        for x in (amount, amount * factor)
    )
    assert less <= more
    assert abs(less * UNITS[unit] - amount) <= UNITS[unit] * (1 + 1e-9)


@pytest.mark.parametrize(("data", "epochs", "share", "has_note"), [
    (2.0, 1, 1.0, False), (1.0, 1, 1.0, False), (0.5, 1, 0.5, True), (0.5, 2, 1.0, False),
    (0.25, 2, 0.5, True),
])  # fmt: skip
def test_a_run_ends_where_its_data_end_and_costs_no_more(gpt2, data, epochs, share, has_note):
    """``data`` is the training text as a share of what the budget would read."""
    complete = replace(gpt2, epochs=epochs)
    wanted = 1000 * 2**19
    unlimited, made = (forecast(complete, tokens=n) for n in (None, data * wanted))
    assert made.epochs == pytest.approx(1 / data)
    assert made.tokens == int(share * wanted)
    assert made.gpu_hours == pytest.approx(share * unlimited.gpu_hours)
    assert bool(made.notes) is has_note


@pytest.mark.parametrize(("updates", "early"), [(1000, False), (999, True)])
def test_a_branch_that_starts_within_the_warm_up_is_noted(gpt2, updates, early):
    """A branch of half the budget starts at 0.4 of it: 400 of 1000 updates."""
    warm = replace(gpt2.optimizer, warmup_updates=400)
    kept = replace(gpt2, optimizer=warm, budget=f"{updates} updates", keep=(0.5, 1.0))
    made = forecast(kept)
    assert bool(made.notes) is early
    assert not early or "0.5" in made.notes[0]


def test_a_cell_that_does_not_fit_has_a_reason_and_no_numbers(gpt2):
    least = estimate.memory_bytes(gpt2, PARAMS, 1, recompute=True)
    fits, refused = (
        forecast(gpt2, replace(ROOMY, memory_bytes=least / 0.9 * x)) for x in (1.001, 0.999)
    )
    assert (fits.micro_batch, fits.recompute, fits.cannot) == (1, True, "")
    assert refused.cannot
    assert (refused.micro_batch, refused.updates, refused.gpu_hours) == (None, None, None)
    assert (refused.gpus, refused.disk_bytes) == (8, 0)
