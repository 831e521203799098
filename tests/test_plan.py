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
from lmscaling.model import gpt
from lmscaling.plan import estimate, jobs, study_plan
from lmscaling.plan.estimate import Shape
from lmscaling.plan.jobs import productive_seconds as left

H100 = devices.DEVICES["NVIDIA H100"]


@pytest.fixture(scope="module")
def real():
    """Plan of the real study on H100, nothing measured yet."""
    made = grid.expand(study_file.read_study([ROOT / "config" / "study.yaml"]))
    shapes = {run: gpt.shape(cell) for run, cell in made.cells.items()}
    return study_plan.make(made, shapes, "NVIDIA H100", Path("nowhere"))


def test_the_real_study_plans_completely(real):
    sums = real.totals()
    assert (sums["cells"], sums["skipped"], sums["cannot"], sums["unknown"]) == (72, 8, 0, 0)
    full = [f for f in real.forecasts if f.epochs <= 1]
    assert {round(f.gpu_hours) for f in full} == {192}
    assert {round(f.branch_gpu_hours / f.gpu_hours, 4) for f in full} == {0.3875}
    assert len(real.table().splitlines()) >= 1 + 72 + 8


def test_the_smallest_models_would_pass_c4_and_are_told_so(real):
    told = {f.name: f for f in real.forecasts if f.epochs > 1}
    assert {name.split("-")[1] for name in told} == {"124M"}
    assert "softmax-124M-ctx1024-s0" in told
    one = told["softmax-124M-ctx1024-s0"]
    assert one.tokens == pytest.approx(173.5e9)
    assert one.gpu_hours == pytest.approx(192 / one.epochs)
    sentence("plan", one.notes[0])
    assert [value for value in ("174B", "69%", "epochs: 2") if value not in one.notes[0]] == []


def test_a_second_epoch_in_the_study_silences_it(cell):
    shape = Shape(100, 600.0)
    short = replace(cell, budget="100 updates")
    once = estimate.forecast(short, shape, None, None, tokens=4000)
    assert (once.tokens, once.notes != []) == (4000, True)
    twice = estimate.forecast(replace(short, epochs=2), shape, None, None, tokens=4000)
    assert (twice.tokens, twice.notes) == (6400, [])


def test_a_measured_cell_is_planned_by_what_was_measured(cell, tmp_path):
    path = calibration(tmp_path, cell, measured=True, micro_batch=2, update_seconds=0.5)
    measured = checked(Calibration, json.loads(path.read_text()), "calibration")
    made = estimate.forecast(
        replace(cell, budget="1 hours"), Shape(100, 600.0), None, measured, None
    )
    assert (made.micro_batch, made.accumulation, made.updates) == (2, 2, 7200)
    assert made.tokens == 7200 * 64
    assert made.measured


def test_nobody_knows_the_speed_of_a_cpu(cell):
    made = estimate.forecast(replace(cell, budget="1 hours"), Shape(100, 600.0), None, None, 1e9)
    assert (made.updates, made.tokens, made.epochs) == (None, None, None)


def test_blocks_are_recomputed_where_one_sequence_would_not_fit_and_refused_where_none_does(real):
    cells = grid.expand(study_file.read_study([ROOT / "config" / "study.yaml"])).cells.values()
    cell = next(c for c in cells if (c.size, c.context) == ("1558M", 16384))
    shape = gpt.shape(cell)
    wide, narrow, too_narrow = (
        estimate.guess(cell, shape.params_total, memory) for memory in (141e9, 80e9, 24e9)
    )
    assert wide
    assert narrow
    assert (wide.recompute, narrow.recompute, too_narrow) == (False, True, None)
    small = devices.Device(312e12, 24e9, 3e12)
    made = estimate.forecast(cell, shape, small, None, None)
    sentence("plan", made.cannot)
    assert re.findall(r"\d+", made.cannot) == ["36", "24", "90"]


def test_a_guess_keeps_to_the_memory_and_divides_the_update(real):
    for made in real.forecasts:
        assert made.memory_bytes <= 0.9 * H100.memory_bytes
        context = int(made.name.split("ctx")[1].split("-")[0])
        assert made.micro_batch * made.accumulation * context * 8 == 2**19


def test_early_branches_are_told(real):
    notes = {note for f in real.forecasts for note in f.notes if "warm-up" in note}
    assert [n for n in notes if "0.0625" in n and "700" in n]
    for note in notes:
        sentence("plan", note)


def test_an_exception_is_carried_out_and_shown(values):
    values["exceptions"] = [{"context": 16, "update_tokens": 128, "reason": "to try it"}]
    made = grid.expand(values)
    assert {cell.update_tokens for cell in made.cells.values()} == {128}
    shapes = dict.fromkeys(made.cells, Shape(100, 600.0))
    table = study_plan.make(made, shapes, "NVIDIA H100", Path("nowhere")).table()
    (line,) = [each for each in table.splitlines() if "to try it" in each]
    assert re.findall(r"\w+: \d+", line) == ["context: 16", "update_tokens: 128"]


def test_an_unknown_device_lists_the_known(values):
    made = grid.expand(values)
    with refused(UserError, "'H100'", "'NVIDIA H100'"):
        study_plan.make(made, {}, "H100", Path("nowhere"))


def test_the_verb_writes_the_plan_and_prints_it(values, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(values)))
    monkeypatch.setattr("sys.argv", ["lmscaling", "plan", "-", "--out", "plan.json"])
    cli.main()
    assert "2 cells: " in capsys.readouterr().out
    made = json.loads((tmp_path / "plan.json").read_text())
    assert made["totals"]["cells"] == 2
    assert made["forecasts"][0]["tokens"] == 256


@pytest.mark.parametrize(
    ("device", "peak"),
    [("NVIDIA H200", 989e12), ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 NVL", 835e12),
     ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA A100 80GB PCIe", 312e12),
     ("NVIDIA A100-PCIE-40GB", 312e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA L40S", 362e12),
     ("NVIDIA B200", 2250e12), ("NVIDIA GH200 480GB", 989e12),
     ("NVIDIA GH200 144G HBM3e", 989e12)],
)  # fmt: skip
def test_the_peak_of_a_device_is_the_dense_one(device, peak):
    found = devices.find(device)
    assert found
    assert found.peak_flops == peak
    assert devices.find("Some CPU") is None


@pytest.mark.parametrize(("device", "gigabytes"), [("480GB", 96), ("144G HBM3e", 144)])
def test_the_memory_of_a_grace_hopper_is_that_of_its_gpu(device, gigabytes):
    """Its names give the CPU's memory, or the GPU's."""
    found = devices.find(f"NVIDIA GH200 {device}")
    assert found
    assert found.memory_bytes == gigabytes * 1e9


@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"])
def test_a_share_of_a_card_has_neither_its_peak_nor_its_memory(device):
    assert devices.find(device)
    assert devices.find(f"{device} MIG 1g.10gb") is None


def test_a_job_has_time_for_its_cell_or_its_branch(cell):
    day = replace(cell, budget="24 hours")
    assert jobs.job_minutes(left(day), 48.0) == 1860
    assert jobs.job_minutes(left(replace(day, branch=0.5)), 24.0) == 240
    assert jobs.job_minutes(left(cell), 24.0) == 24 * 60


def test_a_budget_longer_than_a_job_is_planned_for_several_that_stop_in_time(cell):
    day = replace(cell, budget="24 hours")
    assert jobs.job_count(left(day), 48.0) == 1
    assert jobs.job_count(left(day), 24.0) == 2
    assert jobs.job_count(left(day), 12.0) == 3
    assert jobs.job_count(left(replace(day, branch=0.5)), 12.0) == 1
    assert jobs.stop_seconds(left(day), 12.0) == 12 * 3600 - 600
    assert jobs.stop_seconds(left(replace(cell, budget="1 hours")), 12.0) == 135 * 60 - 600
    seconds = replace(cell, budget="30 seconds")
    assert jobs.stop_seconds(left(seconds), 20 / 3600) == pytest.approx(18)
    assert jobs.job_count(left(seconds), 20 / 3600) == 4
    assert jobs.job_minutes(left(seconds), 20 / 3600) == 1
