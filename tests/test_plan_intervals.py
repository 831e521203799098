"""Intervals of the plan: of cells, of their sums, and what measurements make of them."""

import csv
import json
import math
from dataclasses import replace
from typing import Any

import fit_throughput
import numpy as np
import pytest
from conftest import ROOT, refused

from lmscaling.config import devices, grid, study_file
from lmscaling.config.calibration import Calibration
from lmscaling.errors import UserError
from lmscaling.plan import calibrations, estimate, study_plan
from lmscaling.plan.throughput.model import NAMES, SPREAD, TRAINED, Timing, shipped, vector
from lmscaling.types import dump

NAME = "NVIDIA H100"
H100 = devices.DEVICES[NAME]
OWN = {"NVIDIA X": {"peak_flops": 989e12, "bandwidth": 3.35e12, "memory_bytes": 80e9}}


def laid_out(**changes):
    """Cells of 355M at three contexts on eight GPUs."""
    values = study_file.read_study([ROOT / "config" / "study.yaml"])
    off = dict.fromkeys(("branches", "evaluate", "speed"))
    values |= off | {"exceptions": [], "skip": []} | changes
    values["axes"] = values["axes"] | {"size": ["355M"], "context": [1024, 8192, 65536]}
    return grid.expand(values)


def shape(cell):
    return calibrations.shape(cell, calibrations.ways(cell))


def planned(made, results, device=NAME) -> Any:
    shapes = {run: shape(cell) for run, cell in made.cells.items()}
    return study_plan.make(made, shapes, device, results)


def by_name(plan) -> dict[str, Any]:
    return {made.name: made for made in plan.forecasts}


def test_hours_of_a_budget_in_hours_are_fixed_and_its_tokens_are_not(tmp_path):
    plan = planned(laid_out(budget="24 hours"), tmp_path)
    for made in plan.forecasts:
        assert made.range_80["gpu_hours"] == (192, 192)
        low, high = made.range_80["tokens"]
        fast, slow = made.range_80["update_seconds"]
        assert low < made.tokens < high
        assert high / low == pytest.approx(slow / fast, rel=1e-4)
        assert made.range_80["epochs"] == pytest.approx((low / 173.5e9, high / 173.5e9))
        assert made.range_95["tokens"][0] < low < high < made.range_95["tokens"][1]
    cell = replace(next(iter(laid_out(budget="24 hours").cells.values())), epochs=1)
    tokens = plan.forecasts[0].tokens  # a run that may end with its data has no more hours
    one = estimate.forecast(cell, shape(cell), H100, None, float(tokens))
    low, high = one.range_80["gpu_hours"]
    assert low < 192 * 0.95
    assert high == 192
    assert one.range_80["tokens"][1] == pytest.approx(tokens, rel=1e-6)


@pytest.mark.parametrize("budget", ["1e10 tokens", "20000 updates"])
def test_tokens_of_a_budget_in_tokens_or_updates_are_fixed_and_its_hours_are_not(tmp_path, budget):
    for made in planned(laid_out(budget=budget), tmp_path).forecasts:
        low, high = made.range_80["gpu_hours"]
        assert low < made.gpu_hours < high
        assert made.range_80["tokens"] == (made.tokens, made.tokens)
        assert made.range_80["updates"] == (made.updates, made.updates)
        assert math.log(high / low) == pytest.approx(2 * 1.2816 * made.update_sd)


def test_the_interval_of_a_sum_covers_what_common_coefficients_make_of_it(tmp_path):
    """Coefficients, what training adds and the noise of each cell are drawn 4,000 times."""
    plan = planned(laid_out(budget="1e10 tokens", price_per_gpu_hour=2.5), tmp_path)
    rng = np.random.default_rng(1)
    hours = np.array([f.gpu_hours for f in plan.forecasts])
    slopes = np.array([[*(f.shares.get(n, 0) for n in NAMES), 1.0] for f in plan.forecasts])
    draws = rng.multivariate_normal(np.zeros(len(NAMES) + 1), shipped().cov_KK, 4000) @ slopes.T
    draws += math.sqrt(TRAINED**2 - SPREAD**2) * rng.standard_normal((4000, 1))
    draws += SPREAD * rng.standard_normal(draws.shape)
    sums = (hours * np.exp(draws)).sum(1)
    for level, ranges in ((0.8, plan.range_80), (0.95, plan.range_95)):
        low, high = ranges["gpu_hours"]
        assert np.mean((low < sums) & (sums < high)) == pytest.approx(level, abs=0.05)
    high = plan.range_80["gpu_hours"][1]
    alone = [np.log(f.range_80["gpu_hours"][1] / f.gpu_hours) for f in plan.forecasts]
    independent = math.sqrt(((hours / hours.sum() * alone) ** 2).sum())  # would be too narrow
    assert math.log(high / hours.sum()) > 1.2 * independent
    assert plan.range_80["dollars"][1] == pytest.approx(2.5 * high)


def test_price_and_energy_are_those_of_runs_and_branches(tmp_path):
    branched = laid_out(price_per_gpu_hour=2.0, branches={"shares": [1.0]})
    plan = planned(branched, tmp_path)
    sums = plan.totals()
    hours = sums["gpu_hours"] + sums["branch_gpu_hours"]
    assert sums["dollars"] == pytest.approx(2 * hours)
    assert sums["kwh"] == pytest.approx(0.7 * hours)
    text = " ".join(plan.table().split())
    assert f"with branches: {2 * hours:,.0f} dollars" in text
    assert f"; at most {0.7 * hours:,.0f} kWh" in text
    plain = planned(laid_out(), tmp_path)
    assert "dollars" not in plain.totals()
    assert "dollars" not in plain.table()
    assert [*branched.cells] == [*laid_out(branches={"shares": [1.0]}).cells]


def calibrated(folder, cell, seconds, device=NAME, **values):
    folder.mkdir(parents=True, exist_ok=True)
    made = Calibration(
        of=cell.calibration, device=device, versions={}, measured=True, micro_batch=1,
        update_seconds=seconds, **values,
    )  # fmt: skip
    (folder / f"{cell.calibration}.json").write_text(json.dumps(dump(made)))


def test_a_calibration_replaces_its_prediction_and_refits_the_others(tmp_path):
    made = laid_out(calibrate="auto")
    before = by_name(planned(made, tmp_path))
    cell = next(c for c in made.cells.values() if (c.attention, c.context) == ("softmax", 65536))
    seconds = 1.5 * before[cell.name].update_seconds
    calibrated(tmp_path / "calibrations", cell, seconds)
    plan = planned(made, tmp_path)
    assert plan.updates_measured == 1
    own = by_name(plan)[cell.name]
    assert (own.source, own.measured) == ("calibrated", True)
    # The reduction among eight GPUs is added, of which an eighth of a percent is known.
    added = own.update_seconds / seconds
    assert 1.0005 < added < 1.05
    assert own.shares == {"reduction": pytest.approx(1 - 1 / added)}
    assert own.update_sd > 0.1
    near = by_name(plan)[cell.name.replace("65536", "8192")]
    assert near.source == "predicted"
    assert near.update_seconds > 1.1 * before[near.name].update_seconds
    assert near.update_sd < before[near.name].update_sd


def test_a_calibration_of_another_device_is_not_used_for_a_plan_that_names_one(tmp_path):
    made = laid_out(calibrate="auto")
    cell = next(iter(made.cells.values()))
    calibrated(tmp_path / "calibrations", cell, 9.0, device="NVIDIA A100-SXM4-80GB")
    assert {f.source for f in planned(made, tmp_path).forecasts} == {"published"}
    there = planned(made, tmp_path, device="")
    assert there.device == "NVIDIA A100-SXM4-80GB"
    assert [f.source for f in there.forecasts].count("calibrated") == 1
    calibrated(tmp_path / "calibrations", cell, 9.0, device="NVIDIA RTX 6000")
    odd = planned(made, tmp_path, device="")
    assert (odd.device, odd.updates_measured) == (NAME, 0)
    assert "NVIDIA RTX 6000" in odd.table()
    assert {f.source for f in odd.forecasts} == {"calibrated", "published"}


def finished(results, cell, seconds, updates=1000):
    known = next((ROOT / "results" / "measured" / "law").glob("runs/*/run.json"))
    record = json.loads(known.read_text()) | {
        "run": cell.run, "updates": updates, "tokens": updates * cell.update_tokens,
        "train_seconds": seconds * updates, "status": "done", "cell": dump(cell),
        "environment": {"device": NAME}, "calibration": {"micro_batch": 1, "recompute": False},
    }  # fmt: skip
    for stated in ("record_sha256", "log_sha256", "last_val_loss"):  # it has no log
        record.pop(stated, None)
    path = results / "runs" / cell.run / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))


def test_a_finished_run_has_its_own_numbers_and_refits_the_others(tmp_path):
    made = laid_out()
    cell = next(c for c in made.cells.values() if c.context == 65536)
    before = by_name(planned(made, tmp_path))
    seconds = 2 * before[cell.name].update_seconds
    finished(tmp_path, cell, seconds)
    after = by_name(planned(made, tmp_path))
    own = after[cell.name]
    assert (own.source, own.measured, own.update_sd) == ("run", True, 0.0)
    assert own.update_seconds == pytest.approx(seconds)
    assert (own.tokens, own.gpu_hours) == (1000 * 2**19, pytest.approx(seconds * 1000 * 8 / 3600))
    other = cell.name.replace("65536", "8192")
    assert after[other].update_seconds > before[other].update_seconds
    assert after[other].source == "predicted"


@pytest.mark.parametrize("place", ["c4", "measured/nvidia-h100"])
def test_steps_of_the_speed_study_or_of_a_measured_device_refit_predictions(tmp_path, place):
    step = {"sizes": ["355M"], "contexts": [8192], "implementations": ["softmax/flash"]}
    speed = {"timeout_seconds": 60, "repeats": 3, "target_seconds": 1, "time_step": [step]}
    made = laid_out(speed=speed)
    name, results = "softmax-355M-ctx8192-s0", tmp_path / "c4"
    before = by_name(planned(made, results))[name]
    (folder,) = study_plan.sweeps.expand(made.study)
    path = tmp_path / place / "speed" / folder / "softmax.flash-b1-ctx8192.json"
    path.parent.mkdir(parents=True)
    row = {"device": NAME, "batch": 1, "median_seconds": 1.0}
    path.write_text(json.dumps(row))
    plan = planned(made, results)
    assert plan.updates_measured == 1
    assert by_name(plan)[name].update_seconds > 1.2 * before.update_seconds
    path.write_text(json.dumps(row | {"device": "NVIDIA A100-SXM4-80GB"}))
    assert planned(made, results).updates_measured == 0


def test_masked_documents_take_the_time_of_their_own_length(tmp_path):
    mixed, masked = (planned(laid_out(documents=d), tmp_path) for d in ("mixed", "masked"))
    for one, other in zip(mixed.forecasts, masked.forecasts, strict=True):
        is_shorter = other.update_seconds < one.update_seconds
        assert is_shorter == ("softmax" in one.name)
        assert is_shorter or other.update_seconds == one.update_seconds


def test_a_device_of_known_rates_has_wider_intervals_and_one_without_is_refused(tmp_path):
    plan = planned(laid_out(devices=OWN), tmp_path, device="NVIDIA X")
    same = planned(laid_out(), tmp_path)
    for one, listed in zip(plan.forecasts, same.forecasts, strict=True):
        assert one.update_seconds == pytest.approx(listed.update_seconds)
        assert one.update_sd == pytest.approx(math.hypot(listed.update_sd, 0.25))
    assert ("NVIDIA X" in plan.table(), "NVIDIA X" in same.table()) == (True, False)
    assert "kwh" not in plan.totals()
    assert [*laid_out(devices=OWN).cells] == [*laid_out().cells]
    typed = "--set 'devices.NVIDIA Y={peak_flops: "
    with refused(UserError, "'NVIDIA Y'", "FLOP/s", typed):
        planned(laid_out(), tmp_path, device="NVIDIA Y")
    with refused(UserError, "NVIDIA X MIG 1g.10gb"):
        planned(laid_out(devices=OWN), tmp_path, device="NVIDIA X MIG 1g.10gb")


@pytest.mark.parametrize("device", ["NVIDIA B200", "NVIDIA L40S"])
def test_so_is_a_listed_one_of_another_architecture_than_published_times(tmp_path, device):
    plan, usual = (planned(laid_out(), tmp_path, device=name) for name in (device, "NVIDIA H200"))
    assert f"time is of an {device}" in plan.table()
    assert "time is of an NVIDIA H200" not in usual.table()
    assert all(one.update_sd > 0.25 for one in plan.forecasts if one.update_sd)


@pytest.mark.parametrize(("source", "target"), [("H100", "A100"), ("A100", "H100")])
def test_the_wider_interval_covers_one_class_of_devices_predicted_from_the_other(source, target):
    """As if of the target only peak, memory and bandwidth were known; 13 and 29 updates."""
    rows = list(csv.DictReader(fit_throughput.FACTS.open()))
    stacks, errors = {}, []
    if source == "H100":
        steps = fit_throughput.read_post()
        stacks["post"] = [timing for _, timing in steps]
    for row in rows:
        if source in row["device"]:
            x_K = vector(fit_throughput.read_work(row), devices.DEVICES[row["device"]])
            stacks.setdefault(row["stack"], []).append(Timing(x_K, float(row["seconds"])))
    known = fit_throughput.pooled(stacks.values()).of_unpublished()
    for row in rows:
        if target in row["device"]:
            kind = devices.DEVICES[row["device"]]
            bare = devices.Device(kind.peak_flops, kind.memory_bytes, kind.bandwidth)
            made = known.predict(vector(fit_throughput.read_work(row), bare))
            errors.append(abs(math.log(made.seconds / float(row["seconds"]))) / made.sd)
    assert 0.7 <= np.mean(np.array(errors) < 1.2816) <= 1
    assert np.mean(np.array(errors) < 1.96) >= 0.95
