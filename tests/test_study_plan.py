"""The plan of a study: totals by hand, marks of the table, and how much text is there."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import write_tokens

from lmscaling.config import grid
from lmscaling.plan import study_plan
from lmscaling.plan.estimate import Forecast, Shape

DEVICE = "NVIDIA H100"
ROOT_OF_NOTHING = Path("nowhere")


def forecast(name, **values):
    return Forecast(name=name, gpus=2, **values)


@pytest.fixture
def plan(values):
    """Forecasts of four cells: measured, estimated, of unknown time, and one that cannot run."""
    laid_out = grid.expand(values)
    made = study_plan.make(laid_out, shapes(laid_out), DEVICE, ROOT_OF_NOTHING)
    known = {"micro_batch": 2, "accumulation": 4, "memory_bytes": 3e9}
    forecasts = [
        forecast("a", **known, measured=True, update_seconds=0.5, updates=10, tokens=640,
                 epochs=0.5, gpu_hours=3.0, branch_gpu_hours=1.0, disk_bytes=1000.0),
        forecast("b", **known, update_seconds=0.25, update_sd=0.2, updates=20, tokens=1280,
                 epochs=1.5, gpu_hours=5.0, branch_gpu_hours=2.0, disk_bytes=500.0, notes=["long"]),
        forecast("c", micro_batch=8, accumulation=1),
        forecast("d", cannot="too large"),
    ]  # fmt: skip
    return replace(made, device=DEVICE, forecasts=forecasts, skipped=[("e", "not wanted")])


def shapes(laid_out):
    return dict.fromkeys(laid_out.cells, Shape(100, 600.0))


def test_totals_are_sums_of_what_can_run_and_is_known(plan):
    assert plan.totals() == {
        "cells": 3, "gpu_hours": 8.0, "branch_gpu_hours": 3.0, "tokens": 1920,
        "disk_bytes": 1500.0, "unknown": 1, "measured": 1, "cannot": 1, "skipped": 1,
        "jobs": 13, "speed_points": 0,
    }  # fmt: skip
    assert plan.to_json()["totals"] == plan.totals()
    assert plan.to_json()["forecasts"][1] == asdict(plan.forecasts[1])


def test_all_jobs_are_counted_and_those_of_the_speed_study_are_named(values):
    speed = {
        "timeout_seconds": 9,
        "repeats": 3,
        "target_seconds": 1,
        "time_step": {"sizes": ["s"], "contexts": [16, 32], "implementations": ["softmax"]},
    }
    parts = {"branches": {"shares": [0.5, 1.0]}, "evaluate": {"datasets": ["lines"], "size": "s"}}
    laid_out = grid.expand(values | parts | {"speed": speed})
    made = study_plan.make(laid_out, shapes(laid_out), DEVICE, ROOT_OF_NOTHING)
    cells = {"calibrate": 2, "train": 2, "branch": 2, "evaluate": 2}
    once = dict.fromkeys(("study", "plan", "collect", "draw", "report", "manifest", "verify"), 1)
    assert made.jobs == once | cells | {"tokenize": 2, "time_step": 1}
    assert " ".join(made.table().split()).endswith(
        "speed study, on one device: 2 points: 2 time_step 18 jobs in all: "
        + ", ".join(f"{n} {rule}" for rule, n in made.jobs.items())
    )
    assert made.totals()["jobs"] == 18


def test_the_table_marks_estimates_and_unknown_numbers(plan):
    _, a, b, c, d = plan.lines()
    assert a[:9] == ["a", "2", "2 x 4", "3 GB", "0.5", "", "640", "0.5", "3"]
    assert b[:9] == ["b", "2", "~2 x 4", "~3 GB", "~0.25", "x 1.29", "~1.28k", "~1.5", "5"]
    assert c[:9] == ["c", "2", "~8 x 1", "", "", "", "", "", ""]
    assert (b[9], c[9]) == ("long", "")
    assert d[0] == "d"
    assert d[2:9] == [""] * 7
    assert "too large" in d[9]
    assert len({len(row) for row in plan.lines()}) == 1
    assert plan.table().splitlines()[1].startswith("a  ")


def test_a_note_that_many_cells_share_is_told_once(plan):
    shared, own = "an update is neighbouring text", "its tokens end early"
    cells = [replace(plan.forecasts[2], name=f"c{i}", notes=[shared]) for i in range(4)]
    cells[0] = replace(cells[0], notes=[shared, own])
    text = replace(plan, forecasts=cells).table()
    assert text.count(shared) == 1
    assert f"4 cells: {shared}" in text
    assert own in text.splitlines()[1]
    assert "cells: " + shared not in replace(plan, forecasts=cells[:3]).table()


def test_the_table_fits_100_columns_and_shows_no_column_without_a_value(plan):
    long = "its 174B tokens end at 48% of the budget (out_of_tokens); write epochs: 3 to use all"
    forecasts = [replace(plan.forecasts[2], name="a" * 40, notes=[long, long]), plan.forecasts[2]]
    skipped = [(f"softmax-124M-ctx1024-s{i}", "not wanted at all") for i in range(9)]
    text = replace(plan, forecasts=forecasts, skipped=skipped).table()
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[0].split() == ["cell", "GPUs", "micro-batch", "notes"]
    assert "?" not in text
    assert " ".join(text.split()).count(long) == 2
    assert "the time of 2 cells is unknown until they are calibrated" in text


def test_the_summary_names_how_many_cells_are_estimates(plan):
    text = plan.table()
    assert "3 cells: 8 GPU-hours and 3 for branches" in text
    assert "2 cells are" in text
    assert "1 skipped: not wanted: e" in text
    many = replace(plan, skipped=[(f"e{i}", "not wanted") for i in range(8)])
    assert "8 skipped: not wanted: e0, e1, e2, e3, e4, e5 and 2 more" in many.summary()
    everything = replace(plan, forecasts=plan.forecasts[:1])
    assert "0 cells are" not in everything.table()
    assert "1 cells: 3 GPU-hours" in everything.table()


def test_a_plan_without_devices_has_no_hours(values, plan):
    on_cpu = study_plan.make(grid.expand(values), shapes(grid.expand(values)), DEVICE,
                             ROOT_OF_NOTHING)  # fmt: skip
    assert on_cpu.device == ""
    assert "GPU-hours and" not in on_cpu.table().splitlines()[-2]
    values["gpus"] = 1
    laid_out = grid.expand(values)
    assert study_plan.make(laid_out, shapes(laid_out), DEVICE, ROOT_OF_NOTHING).device == DEVICE


def test_a_plan_survives_its_json(plan, tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    again = study_plan.read(tmp_path / "plan.json")
    assert again.forecasts == plan.forecasts
    assert again.totals() == plan.totals()
    assert again.text == plan.text


def test_a_forecast_says_nothing_that_is_not_known():
    plain = Forecast(name="x", gpus=1)
    assert not plain.measured
    assert not plain.recompute
    assert (plain.disk_bytes, plain.notes, plain.cannot) == (0, [], "")


def test_shards_that_are_there_are_not_missing(values, tmp_path):
    values["datasets"]["lines"]["train"] = [f"{i}.jsonl" for i in range(4)]
    laid_out = grid.expand(values)
    before = study_plan.make(laid_out, shapes(laid_out), DEVICE, tmp_path).text
    assert (before.shards, before.missing) == (4, 4)
    row = laid_out.corpora[laid_out.tokens].source
    write_tokens(tmp_path / "tokens" / laid_out.tokens, [100, 300, 50, 50], [64], row)
    there = study_plan.make(laid_out, shapes(laid_out), DEVICE, tmp_path).text
    assert (there.shards, there.missing, there.shard_tokens) == (4, 0, 125)
    assert there.write_bytes is None
    for name in ("train-00001.bin", "train-00003.json"):
        (tmp_path / "tokens" / laid_out.tokens / name).unlink()
    some = study_plan.make(laid_out, shapes(laid_out), DEVICE, tmp_path).text
    assert (some.missing, some.fetch_files, some.fetch_bytes) == (2, 0, None)
    assert some.write_bytes == 2 * 125 * 2
    sentences = study_plan.make(laid_out, shapes(laid_out), DEVICE, tmp_path).table()
    assert "4 shards of lines, 2 " in sentences
    assert "of about 500" in sentences
