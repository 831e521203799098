"""The plan of a study: memory, time and tokens by hand, totals, the table, and text to fetch."""

import re
from dataclasses import asdict, replace
from math import exp
from pathlib import Path
from typing import Any

import pytest
from conftest import write_tokens

from lmscaling.config import grid
from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Model
from lmscaling.config.devices import Device
from lmscaling.files import write_json
from lmscaling.plan import estimate, footprint, study_plan
from lmscaling.plan.estimate import Forecast
from lmscaling.plan.footprint import Shape
from lmscaling.workflow.study import say_changes

DEVICE = "NVIDIA H100"
FOUR = [f"{i}.jsonl" for i in range(4)]
LONG = "its 174B tokens end at 48% of the budget (out_of_tokens); write epochs: 3 to use all"


def make(values, folder=Path("nowhere")):
    """The plan of a study, all cells of which have one shape."""
    laid_out = grid.expand(values)
    shapes = dict.fromkeys(laid_out.cells, Shape(100, 600.0))
    return study_plan.make(laid_out, shapes, DEVICE, folder)


def costs(name, **values):
    return Forecast(name=name, gpus=2, **values)


@pytest.fixture
def plan(values):
    """Forecasts of four cells: measured, estimated, of unknown time, and one that cannot run."""
    known = {"micro_batch": 2, "accumulation": 4, "memory_bytes": 3e9}
    forecasts = [
        costs("a", **known, measured=True, update_seconds=0.5, updates=10, tokens=640,
                 epochs=0.5, gpu_hours=3.0, branch_gpu_hours=1.0, disk_bytes=1000.0),
        costs("b", **known, update_seconds=0.25, update_sd=0.2, updates=20, tokens=1280,
                 epochs=1.5, gpu_hours=5.0, branch_gpu_hours=2.0, disk_bytes=500.0, notes=["long"]),
        costs("c", micro_batch=8, accumulation=1),
        costs("d", cannot="too large"),
    ]  # fmt: skip
    return replace(make(values), device=DEVICE, forecasts=forecasts, skipped=[("e", "not wanted")])


def test_totals_are_sums_of_what_can_run_and_is_known_and_a_plan_survives_its_json(plan, tmp_path):
    assert plan.totals() == {
        "cells": 3, "gpu_hours": 8.0, "branch_gpu_hours": 3.0, "tokens": 1920,
        "disk_bytes": 1500.0, "unknown": 1, "measured": 1, "cannot": 1, "skipped": 1,
        "jobs": 13, "speed_points": 0, "out_of_tokens": 0,
    }  # fmt: skip
    saved = plan.to_json()
    assert saved["totals"] == plan.totals()
    assert saved["forecasts"][1] == asdict(plan.forecasts[1])
    write_json(tmp_path / "plan.json", saved)
    again = study_plan.read(tmp_path / "plan.json")
    assert (again.forecasts, again.text) == (plan.forecasts, plan.text)
    assert again.totals() == plan.totals()


def test_all_jobs_are_counted_and_those_of_the_speed_study_are_named(values):
    step = {"sizes": ["s"], "contexts": [16, 32], "implementations": ["softmax"]}
    speed = {"timeout_seconds": 9, "repeats": 3, "target_seconds": 1, "time_step": [step]}
    parts = {"branches": {"shares": [0.5, 1.0]}, "evaluate": {"datasets": ["lines"], "size": "s"}}
    made = make(values | parts | {"speed": speed})
    cells = {"calibrate": 2, "train": 2, "branch": 2, "evaluate": 2}
    once = dict.fromkeys(("study", "plan", "collect", "draw", "report", "manifest", "verify"), 1)
    assert made.jobs == once | cells | {"tokenize": 2, "time_step": 1}
    told = ", ".join(f"{n} {rule}" for rule, n in made.jobs.items())
    assert told in " ".join(made.table().split())
    assert made.totals()["jobs"] == 18
    assert made.device == ""  # a CPU has no hours
    assert "GPU-hours and" not in made.table().splitlines()[-2]
    assert make(values | {"gpus": 1}).device == DEVICE


def test_a_plan_counts_the_cells_with_fewer_gpus_for_the_same_time(values):
    values |= {"gpus": 2, "update_tokens": 128, "budget": "1 hour"}
    few = [{"attention": "linear", "gpus": 1, "reason": "long"}]

    def said(**others):
        return [s for s in make(values | others).summary() if "1 of 2 GPUs" in s]

    assert said() == said(exceptions=few, budget="4 updates") == []
    (sentence,) = said(exceptions=few)
    assert sentence.split()[:3] == ["1", "of", "2"]


def test_a_note_that_many_cells_share_is_told_once(plan):
    shared, own = "an update is neighbouring text", "its tokens end early"
    cells = [replace(plan.forecasts[2], name=f"c{i}", notes=[shared]) for i in range(4)]
    cells[0] = replace(cells[0], notes=[shared, own])
    text = replace(plan, forecasts=cells).table()
    assert text.count(shared) == text.count(f"4 cells: {shared}") == 1
    assert own in text.splitlines()[1]
    assert "cells: " + shared not in replace(plan, forecasts=cells[:3]).table()


def test_the_table_fits_100_columns_and_shows_no_column_without_a_value(plan):
    forecasts = [replace(plan.forecasts[2], name="a" * 40, notes=[LONG, LONG]), plan.forecasts[2]]
    skipped = [(f"softmax-124M-ctx1024-s{i}", "not wanted at all") for i in range(9)]
    text = replace(plan, forecasts=forecasts, skipped=skipped).table()
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[0].split() == ["cell", "GPUs", "micro-batch", "notes"]
    assert "?" not in text
    assert " ".join(text.split()).count(LONG) == 2


def test_the_page_of_a_plan(plan, golden):
    """The table and the summary: totals, how many cells are estimates, and which are skipped."""
    many = replace(plan, skipped=[(f"e{i}", "not wanted") for i in range(8)])
    known = replace(plan, forecasts=plan.forecasts[:1])
    pages = [plan.table(), "\n".join(many.summary()), known.table()]
    golden("plan.txt", "\n\n".join(pages) + "\n")


def test_shards_that_are_there_are_not_missing(values, tmp_path):
    values["datasets"]["lines"]["train"] = FOUR
    before = make(values, tmp_path).text
    assert (before.shards, before.missing) == (4, 4)
    laid_out = grid.expand(values)
    folder, row = tmp_path / "tokens" / laid_out.tokens, laid_out.corpora[laid_out.tokens].source
    write_tokens(folder, [100, 300, 50, 50], [64], row)
    there = make(values, tmp_path).text
    assert (there.shards, there.missing, there.shard_tokens) == (4, 0, 125)
    assert there.write_bytes is None
    for name in ("train-00001.bin", "train-00003.json"):
        (folder / name).unlink()
    made = make(values, tmp_path)
    assert (made.text.missing, made.text.fetch_files, made.text.fetch_bytes) == (2, 0, None)
    assert made.text.write_bytes == 2 * 125 * 2
    assert "of about 500" in made.table()


def text_of(values, folder, tokenized=0):
    """What the plan says of the text of a study, of which so many shards are tokenized."""
    tokens = folder / "tokens" / grid.expand(values).tokens
    tokens.mkdir(parents=True, exist_ok=True)
    for i in range(tokenized):
        for end in ("bin", "json"):
            (tokens / f"train-{i:05d}.{end}").touch()
    return make(values, folder).text


@pytest.mark.parametrize(("shard_tokens", "shards"), [
    (10_000, 1), (256, 1), (255, 2), (128, 2), (100, 3), (64, 4), (63, 4), (10, 4),
])  # fmt: skip
def test_as_many_shards_suffice_as_the_longest_run_reads(values, tmp_path, shard_tokens, shards):
    """A run reads 256 tokens of a text in four shards; one that is longer reads all of them."""
    values["datasets"]["lines"]["train"] = FOUR
    manifest = {"train": [{"tokens": shard_tokens}] * 4, "validation": []}
    write_json(tmp_path / "tokens" / grid.expand(values).tokens / "manifest.json", manifest)
    assert text_of(values, tmp_path).suffice == {"s": shards}


HUB = {
    "kind": "hub", "repository": "a/b", "revision": "0" * 40, "train": "t-{00..99}.json",
    "validation": "v-00.json", "shards": 10, "expected_tokens": 5000.0,
    "expected_bytes": 9000.0,
}  # fmt: skip


@pytest.mark.parametrize(("tokenized", "fetched_bytes"), [(0, 9000), (4, 5400), (10, None)])
def test_what_is_fetched_is_what_is_not_yet_tokenized(values, tmp_path, tokenized, fetched_bytes):
    values["datasets"]["lines"] = HUB
    text = text_of(values, tmp_path, tokenized)
    assert (text.shards, text.missing, text.fetch_files) == (10, 10 - tokenized, 10 - tokenized)
    assert (text.fetch_bytes, text.shard_tokens) == (fetched_bytes, 500)
    assert text.write_bytes == ((10 - tokenized) * 500 * 2 or None)
    assert text.suffice == {"s": 1}


def test_a_hub_row_without_sizes_plans_no_bytes_and_a_large_vocabulary_four_a_token(
    values, tmp_path
):
    bare = {k: v for k, v in HUB.items() if not k.startswith("expected")}
    text = text_of(values | {"datasets": {"lines": bare}}, tmp_path)
    assert (text.fetch_files, text.fetch_bytes, text.write_bytes) == (10, None, None)
    assert (text.shard_tokens, text.suffice) == (None, {})
    file = {"file": "t.json", "sha256": "0" * 64, "vocab_size": 100_000}
    wide = {"datasets": {"lines": HUB}, "tokenizers": {"bytes": file}}
    assert text_of(values | wide, tmp_path).write_bytes == 10 * 500 * 4


def test_the_longest_run_of_a_size_counts(values, tmp_path):
    """A run of update_tokens 128 reads twice as much as one of 64."""
    values["axes"] |= {"size": ["s", "m"], "context": [16, 32]}
    values["exceptions"] = [{"size": "m", "context": 16, "update_tokens": 128, "reason": "x"}]
    values["datasets"]["lines"] = HUB | {"expected_tokens": 2560.0}
    assert text_of(values, tmp_path).suffice == {"s": 1, "m": 2}


GPT2 = Model(n_layer=12, n_head=12, d_model=768, vocab_size=50257)
PARAMS = 124_000_000
ROOMY = Device(peak_flops=1e15, bandwidth=3e12, memory_bytes=1e12)
SHAPE = Shape(PARAMS, 8e8)


def forecast(cell, device: Any = ROOMY, measured=None, tokens=None) -> Any:
    return estimate.forecast(cell, SHAPE, device, measured, tokens)


def guess(cell, memory) -> Any:
    return footprint.guess(cell, PARAMS, memory)


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
    small = footprint.memory_bytes(gpt2, PARAMS, 2, recompute=False)
    assert small == state + head + 2 * width * 12 * 37 + logits
    large = footprint.memory_bytes(gpt2, PARAMS, 16, recompute=False)
    assert large == state + head + 16 * width * 12 * 37 + 2 * 2**28
    recomputed = footprint.memory_bytes(gpt2, PARAMS, 2, recompute=True)
    assert recomputed == state + head + 2 * width * (12 * 4 + 37) + logits


def test_a_micro_batch_has_at_most_16384_tokens_and_divides_the_update(gpt2):
    layout = guess(gpt2, 1e12)
    assert (layout.micro_batch, layout.recompute) == (16, False)
    thirds = guess(replace(gpt2, update_tokens=8 * 24 * 1024), None)
    assert thirds.micro_batch == 12  # the largest divisor of 24 up to 16
    assert guess(replace(gpt2, context=2**17, update_tokens=2**20), None).micro_batch == 1


def test_an_estimate_fills_nine_tenths_of_a_device_for_sure_or_is_the_smallest_layout(gpt2):
    """With a probability of 90 % it takes less than the upper end of its interval of 80 %."""
    needed = footprint.memory_bytes(gpt2, PARAMS, 16, recompute=False)
    most = needed * exp(1.2816 * 0.1 * (1 - 18 * PARAMS / needed))
    enough, short = (guess(gpt2, most / 0.9 * x) for x in (1.0001, 0.9999))
    assert (enough.micro_batch, enough.memory_bytes) == (16, needed)
    assert short.micro_batch == 8
    least = footprint.memory_bytes(gpt2, PARAMS, 1, recompute=True)  # is taken if it likely fits
    likely, none = (guess(gpt2, least / 0.9 * x) for x in (1.0001, 0.9999))
    assert (likely.micro_batch, likely.recompute, none) == (1, True, None)
    words = [likely.fits(least / 0.9 * x) for x in (0.9999, 1.0001, 1.1)]
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
    warm = replace(gpt2, optimizer=replace(gpt2.optimizer, warmup_updates=400), keep=(0.5, 1.0))
    assert not forecast(warm).notes  # half of 1000 updates begins at 0.4 of them
    assert "0.5" in forecast(replace(warm, budget="999 updates")).notes[0]  # within the warm-up


@pytest.mark.parametrize(("budget", "updates"), [
    ("7 updates", 7), ("6.2 updates", 7), ("1e6 tokens", 2), ("1048576 tokens", 2),
    ("10 seconds", 4), ("1 minutes", 24), ("1 hours", 1440),
])  # fmt: skip
def test_updates_of_a_budget_are_rounded_up_and_those_of_a_time_down(gpt2, budget, updates):
    known = measured(micro_batch=4, peak_memory_bytes=7)
    made = forecast(replace(gpt2, budget=budget), None, known)
    assert (made.updates, made.tokens) == (updates, updates * 2**19)
    assert (made.memory_bytes, made.measured, made.update_seconds) == (7, True, 2.5)


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
    assert (made.lasts == share, made.lasts < 1) == (True, has_note)


def test_cells_whose_text_ends_are_counted_and_not_their_shares(plan):
    """One line says how many cells do not get their budget; before, each share had its own."""
    shares = (0.64, 0.7, 0.9, 1.0)
    ends = [costs(f"a{x}", epochs=1 / x, lasts=x, tokens=1, gpu_hours=1.0) for x in shares]
    told = replace(plan, forecasts=ends).table()
    (line,) = re.findall(
        r"(\d of \d) cells .* (\d+%) to (\d+%) .*epochs: (\d)", " ".join(told.split())
    )
    assert line == ("3 of 4", "64%", "90%", "2")
    assert "4 of 4" in replace(plan, forecasts=ends[3:] * 4).table()


def test_a_dry_run_says_how_many_cells_do_not_get_their_budget(
    plan, values, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    laid_out = grid.expand(values)
    for share, told in ((1.0, ""), (0.5, "1 of 1 cells")):
        planned = replace(plan, forecasts=[costs("a", epochs=1 / share, lasts=share)])
        write_json(Path(laid_out.results, "plan.json"), planned.to_json())
        say_changes(laid_out, values)
        said = capsys.readouterr().err
        assert (said[: len(told)], bool(said)) == (told, bool(told))
    Path(laid_out.results, "plan.json").write_text("{")
    say_changes(laid_out, values)
    assert not capsys.readouterr().err


def test_what_no_cell_knows_is_unknown_and_not_zero(plan):
    unknown = replace(plan, forecasts=[costs("a"), costs("b")])
    assert "unknown" in unknown.summary()[0]


def test_a_cell_that_does_not_fit_has_a_reason_and_no_numbers(gpt2):
    least = footprint.memory_bytes(gpt2, PARAMS, 1, recompute=True)
    fits, refused = (
        forecast(gpt2, replace(ROOMY, memory_bytes=least / 0.9 * x)) for x in (1.001, 0.999)
    )
    assert (fits.micro_batch, fits.recompute, fits.cannot) == (1, True, "")
    assert refused.cannot
    assert (refused.micro_batch, refused.updates, refused.gpu_hours) == (None, None, None)
    assert (refused.gpus, refused.disk_bytes) == (8, 0)
