"""What a plan says of cost, of data that end too early, and of what cannot run."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, calibration, refused, sentence

from lmscaling import cli
from lmscaling.config import devices, grid, study_file
from lmscaling.config.calibration import Calibration
from lmscaling.config.validation import checked
from lmscaling.errors import UserError
from lmscaling.model import sizing
from lmscaling.plan import estimate, footprint, jobs, study_plan
from lmscaling.plan.footprint import Shape
from lmscaling.plan.jobs import productive_seconds as left

H100 = devices.DEVICES["NVIDIA H100"]
SMALL = Shape(100, 600.0)


@pytest.fixture(scope="module")
def made():
    return grid.expand(study_file.read_study([ROOT / "config" / "study.yaml"]))


@pytest.fixture(scope="module")
def real(made):
    """Plan of the real study on H100, nothing measured yet."""
    shapes = {run: sizing.shape(cell) for run, cell in made.cells.items()}
    return study_plan.make(made, shapes, "NVIDIA H100", Path("nowhere"))


def test_each_cell_of_the_real_study_gets_its_day_and_its_smallest_models_read_c4_twice(real):
    sums = real.totals()
    assert (sums["cells"], sums["skipped"], sums["cannot"], sums["unknown"]) == (72, 8, 0, 0)
    assert {round(f.gpu_hours) for f in real.forecasts} == {192}
    assert {round(f.branch_gpu_hours / f.gpu_hours, 4) for f in real.forecasts} == {0.3875}
    assert len(real.table().splitlines()) >= 1 + 72 + 8
    assert {f.name.split("-")[1] for f in real.forecasts if f.epochs > 1} == {"124M"}
    assert "72 of 72" in real.table()


def test_a_second_epoch_in_the_study_silences_it(cell):
    short = replace(cell, budget="100 updates")
    once = estimate.forecast(short, SMALL, None, None, tokens=4000)
    assert (once.tokens, once.lasts) == (4000, 0.625)
    twice = estimate.forecast(replace(short, epochs=2), SMALL, None, None, tokens=4000)
    assert (twice.tokens, twice.lasts) == (6400, 1.0)


def test_a_cell_is_planned_by_what_was_measured_and_nobody_knows_the_speed_of_a_cpu(cell, tmp_path):
    path = calibration(tmp_path, cell, measured=True, micro_batch=2, update_seconds=0.5)
    measured = checked(Calibration, json.loads(path.read_text()), "calibration")
    hour = replace(cell, budget="1 hours")
    told = estimate.forecast(hour, SMALL, None, measured, None)
    assert (told.micro_batch, told.accumulation, told.updates) == (2, 2, 7200)
    assert (told.tokens, told.measured) == (7200 * 64, True)
    told = estimate.forecast(hour, SMALL, None, None, 1e9)
    assert (told.updates, told.tokens, told.epochs) == (None, None, None)


def test_blocks_are_recomputed_where_one_sequence_would_not_fit_and_refused_where_none_does(made):
    cell = next(c for c in made.cells.values() if (c.size, c.context) == ("1558M", 16384))
    shape = sizing.shape(cell)
    *ways, too_narrow = (footprint.guess(cell, shape.params_total, m) for m in (141e9, 80e9, 24e9))
    assert [way and way.recompute for way in ways] == [False, True]
    assert too_narrow is None
    cannot = estimate.forecast(cell, shape, devices.Device(312e12, 24e9, 3e12), None, None).cannot
    sentence("plan", cannot)
    assert re.findall(r"\d+", cannot) == ["36", "24", "90"]


def test_a_guess_keeps_to_the_memory_and_divides_the_update_and_early_branches_are_told(real):
    notes = set()  # of branches before the end of the warm-up
    for told in real.forecasts:
        assert told.memory_bytes <= 0.9 * H100.memory_bytes
        context = int(told.name.split("ctx")[1].split("-")[0])
        assert told.micro_batch * told.accumulation * context * 8 == 2**19
        notes |= {note for note in told.notes if "warm-up" in note}
    assert [note for note in notes if "0.0625" in note and "700" in note]
    for note in notes:
        sentence("plan", note)


def test_an_exception_is_carried_out_and_shown_and_an_unknown_device_lists_the_known(values):
    values["exceptions"] = [{"context": 16, "update_tokens": 128, "reason": "to try it"}]
    made = grid.expand(values)
    assert {cell.update_tokens for cell in made.cells.values()} == {128}
    shapes = dict.fromkeys(made.cells, SMALL)
    table = study_plan.make(made, shapes, "NVIDIA H100", Path("nowhere")).table()
    (line,) = [each for each in table.splitlines() if "to try it" in each]
    assert re.findall(r"\w+: \d+", line) == ["context: 16", "update_tokens: 128"]
    with refused(UserError, "'H100'", "'NVIDIA H100'"):
        study_plan.make(made, {}, "H100", Path("nowhere"))


def test_the_verb_writes_the_plan_and_prints_it(values, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(values)))
    monkeypatch.setattr("sys.argv", ["lmscaling", "plan", "-", "--out", "plan.json"])
    cli.main()
    assert "2 cells: " in capsys.readouterr().out
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["totals"]["cells"], plan["forecasts"][0]["tokens"]) == (2, 256)


# A longer name is another device; those of Grace Hopper give the CPU's memory, or the GPU's.
DEVICES = {
    "A100-PCIE-40GB": (312, 40), "A100-SXM4-80GB": (312, 80), "A100 80GB PCIe": (312, 80),
    "H100 80GB HBM3": (989, 80), "H100 NVL": (835, 94), "H100 PCIe": (756, 80), "H200": (989, 141),
    "GH200 480GB": (989, 96), "GH200 144G HBM3e": (989, 144), "L40S": (362, 48),
    "B200": (2250, 180),
}  # fmt: skip


def test_a_device_has_its_dense_peak_and_its_memory_and_a_share_of_it_neither():
    for name, (teraflops, gigabytes) in DEVICES.items():
        found = devices.find(f"NVIDIA {name}")
        assert found
        assert (found.peak_flops, found.memory_bytes) == (teraflops * 1e12, gigabytes * 1e9)
        assert devices.find(f"NVIDIA {name} MIG 1g.10gb") is None
    assert devices.find("Some CPU") is None


DAY = 86_400.0
JOBS = [
    # Seconds that are left, None for a budget that is no time, and hours of the longest job; its
    # minutes are a quarter more and an hour, then seconds until one stops.
    (None, 100, 48 * 60, 48 * 3600 - 600), (None, 24, 1440, DAY - 600),
    (None, 10, 600, 36_000 - 600), (None, 2, 120, 7200 - 600),
    (None, 1, 60, 3600 - 360), (None, 0.1, 6, 360 - 36),
    (DAY, 48, 1860, 1860 * 60 - 600), (DAY, 24, 1440, DAY - 600),
    (DAY, 12, 720, DAY / 2 - 600), (8640, 24, 240, 240 * 60 - 600),
    (3600, 24, 135, 135 * 60 - 600), (1800, 48, 98, 98 * 60 - 600),
    (10, 48, 61, 61 * 60 - 600), (0, 24, 60, 3600 - 600), (30, 20 / 3600, 1, 18),
    (400, 1000 / 3600, 17, 900), (401, 1000 / 3600, 17, 900),  # 100 spare, 400 to start
]  # fmt: skip


@pytest.mark.parametrize(("seconds", "hours", "minutes", "stop"), JOBS)
def test_a_job_lasts_for_what_is_left_or_as_long_as_the_cluster_allows(
    seconds, hours, minutes, stop
):
    assert jobs.job_minutes(seconds, hours) == minutes
    assert jobs.stop_seconds(seconds, hours) == pytest.approx(stop)


def test_a_run_needs_what_its_last_checkpoint_has_left_of_its_budget(cell):
    day = replace(cell, budget="24 hours")
    assert [left(day, 3600.0 * hours) for hours in (0, 23, 24, 25)] == [DAY, 3600, 0, 0]
    half = replace(cell, budget="10 hours", branch=0.5)  # the last fifth: from 4 to 5 hours
    assert [left(half, 3600 * hours) for hours in (0, 4.5)] == pytest.approx([3600, 1800])
    assert left(cell) is None
