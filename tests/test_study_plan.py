"""The plan of a study: totals by hand, the table, and the text that is there and needed."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import write_tokens

from lmscaling.config import grid
from lmscaling.files import write_json
from lmscaling.plan import study_plan
from lmscaling.plan.estimate import Forecast, Shape

DEVICE = "NVIDIA H100"
FOUR = [f"{i}.jsonl" for i in range(4)]
LONG = "its 174B tokens end at 48% of the budget (out_of_tokens); write epochs: 3 to use all"


def make(values, folder=Path("nowhere")):
    """The plan of a study, all cells of which have one shape."""
    laid_out = grid.expand(values)
    shapes = dict.fromkeys(laid_out.cells, Shape(100, 600.0))
    return study_plan.make(laid_out, shapes, DEVICE, folder)


def forecast(name, **values):
    return Forecast(name=name, gpus=2, **values)


@pytest.fixture
def plan(values):
    """Forecasts of four cells: measured, estimated, of unknown time, and one that cannot run."""
    known = {"micro_batch": 2, "accumulation": 4, "memory_bytes": 3e9}
    forecasts = [
        forecast("a", **known, measured=True, update_seconds=0.5, updates=10, tokens=640,
                 epochs=0.5, gpu_hours=3.0, branch_gpu_hours=1.0, disk_bytes=1000.0),
        forecast("b", **known, update_seconds=0.25, update_sd=0.2, updates=20, tokens=1280,
                 epochs=1.5, gpu_hours=5.0, branch_gpu_hours=2.0, disk_bytes=500.0, notes=["long"]),
        forecast("c", micro_batch=8, accumulation=1),
        forecast("d", cannot="too large"),
    ]  # fmt: skip
    return replace(make(values), device=DEVICE, forecasts=forecasts, skipped=[("e", "not wanted")])


def test_totals_are_sums_of_what_can_run_and_is_known_and_a_plan_survives_its_json(plan, tmp_path):
    assert plan.totals() == {
        "cells": 3, "gpu_hours": 8.0, "branch_gpu_hours": 3.0, "tokens": 1920,
        "disk_bytes": 1500.0, "unknown": 1, "measured": 1, "cannot": 1, "skipped": 1,
        "jobs": 13, "speed_points": 0,
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
    speed = {"timeout_seconds": 9, "repeats": 3, "target_seconds": 1, "time_step": step}
    parts = {"branches": {"shares": [0.5, 1.0]}, "evaluate": {"datasets": ["lines"], "size": "s"}}
    made = make(values | parts | {"speed": speed})
    cells = {"calibrate": 2, "train": 2, "branch": 2, "evaluate": 2}
    once = dict.fromkeys(("study", "plan", "collect", "draw", "report", "manifest", "verify"), 1)
    assert made.jobs == once | cells | {"tokenize": 2, "time_step": 1}
    told = ", ".join(f"{n} {rule}" for rule, n in made.jobs.items())
    assert told in " ".join(made.table().split())
    assert made.totals()["jobs"] == 18


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


def test_a_plan_without_devices_has_no_hours(values):
    on_cpu = make(values)
    assert on_cpu.device == ""
    assert "GPU-hours and" not in on_cpu.table().splitlines()[-2]
    assert make(values | {"gpus": 1}).device == DEVICE


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
    "kind": "hub", "repository": "a/b", "revision": "0" * 40, "train": "t-{shard:02d}.json",
    "validation": "v-{shard:02d}.json", "shards": 10, "expected_tokens": 5000.0,
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
    wide = {"datasets": {"lines": HUB}, "tokenizers": {"bytes": {"encoding": "o200k_base"}}}
    assert text_of(values | wide, tmp_path).write_bytes == 10 * 500 * 4


def test_the_longest_run_of_a_size_counts(values, tmp_path):
    """A run of update_tokens 128 reads twice as much as one of 64."""
    values["axes"] |= {"size": ["s", "m"], "context": [16, 32]}
    values["exceptions"] = [{"size": "m", "context": 16, "update_tokens": 128, "reason": "x"}]
    values["datasets"]["lines"] = HUB | {"expected_tokens": 2560.0}
    assert text_of(values, tmp_path).suffice == {"s": 1, "m": 2}
