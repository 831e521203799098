"""Predictions are sealed before runs begin, nobody moves them, and the report scores them."""

import argparse
import json
import re
import shutil
from typing import Any

import law_study
import numpy as np
import pytest
from conftest import refused, sentence
from pandas import DataFrame

from lmscaling.cli import studies
from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_record
from lmscaling.fits import forecast_scores
from lmscaling.fits.points import Group, Point
from lmscaling.plan.estimate import Forecast as Cost
from lmscaling.plan.footprint import Shape
from lmscaling.records import forecast
from lmscaling.report import forecasts as report
from lmscaling.runtime import environment
from lmscaling.status import sealing
from lmscaling.store import build as store

LATER = "2100-01-01T00:00:00+00:00"
EARLIER = "2001-01-01T00:00:00+00:00"


def lay_out(folder, values, **changes):
    """A study without branches, whose finished runs are recorded, and its grid."""
    values = law_study.values_of(values) | {"branches": None} | changes
    law_study.write(folder, values, branches=False)
    return study_file.read_record(folder / "study.json").grid


@pytest.fixture
def finished(tmp_path, values):
    """A study whose runs of the second size of three have been put aside, and its grid."""
    grid = lay_out(tmp_path, values, gpus=1)
    for run in of_size_m(grid):
        shutil.move(tmp_path / "runs" / run, tmp_path / "aside" / run)
    with_losses(tmp_path)
    return tmp_path, grid


def of_size_m(grid):
    return {run for run, cell in grid.cells.items() if cell.size == "m"}


def predict(study, grid, **changes):
    """Predictions as dictionaries; of sizes and tokens as ``law_study`` has them."""
    costs, shapes = {}, {}
    for run, cell in grid.cells.items():
        known = {"update_seconds": 0.5, "update_sd": 0.1, "memory_bytes": 1e9, "memory_sd": 0.1,
                 "tokens": int(law_study.per_day(cell))} | changes  # fmt: skip
        costs[run] = Cost(name=cell.name, gpus=cell.gpus, **known)
        n = int(law_study.N[cell.size])
        shapes[run] = Shape(params=n, params_total=2 * n, flops_per_token=6e8)
    return sealing.predict(study, grid, costs, shapes)


def losses_of(found):
    return [one for one in found if one["quantity"] == "loss"]


def last_loss(log):
    return [json.loads(line) for line in log if '"validation"' in line][-1]["val_loss"]


def begin(study, grid, when=LATER):
    """Let the runs that were put aside come back, as if they had begun at another time."""
    for folder in sorted((study / "aside").iterdir()):
        log = (folder / "log.jsonl").read_text().splitlines()
        first = json.loads(log[0]) | {"started": when}
        (folder / "log.jsonl").write_text("\n".join([json.dumps(first), *log[1:]]) + "\n")
        record = json.loads((folder / "run.json").read_text())
        record |= {"started": when, "train_seconds": 86400.0, "last_val_loss": last_loss(log)}
        (folder / "run.json").write_text(json.dumps(record))
        shutil.move(folder, study / "runs" / folder.name)


def with_losses(study):
    """Give records the loss of their last validation, as the present version writes it."""
    for path in study.glob("runs/*/run.json"):
        log = (path.parent / "log.jsonl").read_text().splitlines()
        now = {"last_val_loss": last_loss(log), "calibration": {"micro_batch": 1}}
        path.write_text(json.dumps(json.loads(path.read_text()) | now))


def read(study):
    """Rows of the view, and the tables of the report."""
    store.build(study)
    with store.connect(study / "store") as db:
        rows = db.sql("SELECT quantity, state, median, measured FROM forecast_scores").fetchall()
        return rows, {table.name: table for table in report.tables(db)}


def seal(study, found):
    return forecast.write(study, found, study="tiny")


def test_the_end_of_a_branch_is_predicted_from_those_of_other_sizes(tmp_path, values):
    grid = law_study.write(tmp_path, law_study.values_of(values, context=[1024]))
    ends = {run: cell for run, cell in grid.branches.items() if cell.size == "m"}
    for run in of_size_m(grid) | {*ends}:
        shutil.rmtree(tmp_path / "runs" / run)
    with_losses(tmp_path)
    found = {one["run"]: one["median"] for one in losses_of(predict(tmp_path, grid))}
    assert {*found} == of_size_m(grid) | {*ends}
    for run, cell in ends.items():
        assert found[run] == pytest.approx(law_study.loss(cell, cell.branch or 1.0), abs=0.01)


def test_runs_that_have_not_begun_are_predicted_sealed_and_scored(finished):
    study, grid = finished
    found = predict(study, grid)
    assert {one["run"] for one in found} == of_size_m(grid)
    assert len(losses_of(found)) == 6
    for one in losses_of(found):
        cell = grid.cells[one["run"]]
        assert one["median"] == pytest.approx(law_study.loss(cell, 1) + 0.05, abs=0.01)
        assert "sd" not in one
        low, high = sorted([one["near"], one["far"]])
        assert low < one["baseline_median"] < high
    path, sha256 = seal(study, found)
    assert path.name == f"{environment.now()[:10]}-{sha256[:8]}.json"
    assert path.stat().st_mode & 0o222 == 0
    values = read_json(path, "seal")
    assert values["study"] == "tiny"
    assert sealing.verify(study).startswith(f"{path}: sealed {values['sealed']}, 18")
    begin(study, grid)
    rows, tables = read(study)
    assert [(q, s) for q, s, *_ in rows if q == "loss"] == [("loss", "scored")] * 6
    scores = tables["forecast_scores"].rows
    loss, time = (
        [row for row in scores if row[2] == forecast.QUANTITIES[q]]
        for q in ("loss", "update_seconds")
    )
    assert [row[3] for row in loss] == ["softmax", "linear"]
    for row in loss:
        assert re.findall(r"\d+", row[4]) == ["3", "3"]
        assert row[5:7] == ("", "")  # without intervals
        assert 0 < float(row[7]) < float(row[8]) < 0.1
        assert row[9].startswith("closer than")
    assert [re.findall(r"\d+", row[5])[1] for row in time] == ["3", "3"]
    assert {row[8] for row in time} == {""}
    for row in tables["forecast_cells"].rows:
        assert (row[4] == "") == (row[2] == "final loss")


def test_sizes_beyond_the_trained_ones_are_forecast_with_the_doubt_of_the_form(tmp_path, values):
    axes = {"seed": [0, 1, 2, 3], "context": [1024], "attention": ["softmax"]}
    grid = lay_out(tmp_path, values, axes=law_study.values_of(values, **axes)["axes"])
    with_losses(tmp_path)
    for run, cell in grid.cells.items():
        if cell.size == "xl":
            shutil.rmtree(tmp_path / "runs" / run)
    found = losses_of(predict(tmp_path, grid))
    assert len(found) == 4
    for one in found:
        truth = law_study.loss(grid.cells[one["run"]], 1) + 0.05
        assert one["sd"] * one["median"] > law_study.NOISE
        assert abs(np.log(truth / one["median"])) < 2 * one["sd"] < 0.05
        assert one["degrees"] > 1
        assert (one["baseline"], one["near"] < one["far"]) == ("a ruler", True)


def test_a_ruler_goes_through_the_nearest_sizes_or_lengths():
    """Losses are ``2 (N / 1e6)^-0.1 (D / 1e8)^-0.2``, but of the size that is farthest."""
    blank: dict[str, Any] = dict.fromkeys(Point._fields, 0)
    made = [
        Point(**blank | {"size": str(n), "params": n, "tokens": d, "loss": loss * luck})
        for n in (1e6, 4e6, 8e6, 1e9) for d in (1e8, 2e8, 4e8) for luck in (0.99, 1 / 0.99)
        for loss in [2 * (n / 1e6) ** -0.1 * (d / 1e8) ** -0.2 if n < 1e9 else 1.0]
    ]  # fmt: skip
    group = Group(tuple(made))
    for n, d, near, far in (
        (6e6, 2e8, (8e6, 2e8), (4e6, 2e8)),  # between sizes
        (3.2e6, 2e8, (4e6, 2e8), (1e6, 2e8)),  # the two nearest are both larger
        (0.5e6, 1e8, (1e6, 1e8), (4e6, 1e8)),  # below the smallest
        (2e6, 3.9e8, (1e6, 4e8), (4e6, 4e8)),  # about as many tokens
        (4e6, 8e8, (4e6, 4e8), (4e6, 2e8)),  # a longer run of a size
    ):
        found = forecast_scores.ruler(group, n, d)
        expected = (2 * (n / 1e6) ** -0.1 * (d / 1e8) ** -0.2 for n, d in ((n, d), near, far))
        for name, value in zip(("baseline_median", "near", "far"), expected, strict=True):
            assert found[name] == pytest.approx(value, rel=0.01), (n, d, name)


def test_nothing_is_called_good_that_could_not_fail_missed_or_lost_to_a_ruler():
    one = {"measured": 1.70, "median": 1.69, "sd": 0.004, "degrees": None, "near": 1.63,
           "far": 1.78, "baseline": "a ruler", "baseline_median": 1.67}  # fmt: skip

    def said(**changes):
        return forecast_scores.worth(DataFrame([one | changes]))

    assert said().startswith("good")
    for changes, words in (
        ({"sd": 0.04}, "both neighbours"),
        ({"sd": 0.001}, "1 outside"),
        ({"baseline_median": 1.705}, "not twice"),
        ({"near": None}, "closer than"),
        ({"sd": None}, "closer than"),
    ):
        assert words in said(**changes), changes
        assert "good" not in said(**changes), changes
    assert said(baseline="") == ""


def test_numbers_of_ones_own_are_sealed_with_the_guesses_that_they_have_to_beat(finished):
    study, grid = finished
    found, path = predict(study, grid), study / "stated.csv"
    name = "softmax-m-ctx4096-s0"
    path.write_text(
        "name,median,baseline,baseline_median,sd\n"
        f"{name},{{0}},last value,9.0,\n{name},{{0}},power law,2.0,0.01\n".replace("{0}", "3.0")
    )
    told = sealing.stated(path, found)
    own = [one for one in losses_of(told) if one["name"] == name]
    assert [(o["median"], o["baseline"], o.get("sd")) for o in own] == [
        (3.0, "last value", None), (3.0, "power law", 0.01),
    ]  # fmt: skip
    assert len(told) == len(found) + 1
    assert "power law" not in sealing.table(found)
    seal(study, told)
    begin(study, grid)
    _, tables = read(study)
    worth = [
        row[9] for row in tables["forecast_scores"].rows if row[2:4] == ("final loss", "softmax")
    ]
    assert len(worth) == 3
    path.write_text("name,median\nsoftmax-n-ctx4096-s0,3.0\n")
    with refused(UserError, "softmax-n-ctx4096-s0", name):
        sealing.stated(path, found)
    path.write_text("name,loss\n")
    with refused(UserError, "column median"):
        sealing.stated(path, found)


@pytest.mark.parametrize("change", ["value", "value and hash", "no JSON"])
def test_a_seal_that_was_changed_is_named_and_not_scored(finished, change):
    study, grid = finished
    path, _ = seal(study, predict(study, grid))
    values = read_json(path, "seal")
    values["forecasts"][2]["median"] += 0.01
    path.chmod(0o644)
    if change == "value and hash":
        write_record(path, values)
    else:
        stored = json.loads(path.read_text())
        path.write_text(json.dumps(stored | values) if change == "value" else change)
    with pytest.raises(UserError, match=path.name):
        sealing.verify(study)
    begin(study, grid)
    rows, tables = read(study)
    assert {state for _, state, *_ in rows} == {"changed"}
    ((*_, scored, why),) = (row[4:5] + row[-1:] for row in tables["forecast_scores"].rows)
    assert scored.startswith("0 ")
    assert why.startswith(path.name)
    assert not tables["forecast_cells"].rows


def test_a_run_that_began_before_the_seal_is_not_scored_and_after_its_begin_not_predicted(finished):
    study, grid = finished
    seal(study, predict(study, grid))
    begin(study, grid, EARLIER)
    rows, tables = read(study)
    assert {state for _, state, *_ in rows} == {"begun"}
    assert tables["forecast_scores"].rows[-1][-1].startswith("3: ")
    run = min(of_size_m(grid))
    shutil.rmtree(study / "runs" / run)
    assert {one["run"] for one in predict(study, grid)} == {run}
    (study / "scratch" / run).mkdir(parents=True)
    (study / "scratch" / run / "attempt-001.jsonl").write_bytes(b"")
    assert predict(study, grid) == []


def test_what_is_not_predicted_has_its_reason(finished):
    study, grid = finished
    (reason,) = {one["reason"] for one in losses_of(predict(study, grid, tokens=None))}
    sentence("forecast", reason)
    for run, cell in grid.cells.items():
        if cell.size in {"s", "m", "l"}:
            shutil.rmtree(study / "runs" / run, ignore_errors=True)
    for reason in {one["reason"] for one in losses_of(predict(study, grid))}:
        sentence("forecast", reason)
    shutil.rmtree(study / "runs")
    found = predict(study, grid)
    told = sealing.table(found)
    for reason in {one["reason"] for one in losses_of(found)}:
        sentence("forecast", reason)
        assert reason in told
    assert max(map(len, told.splitlines())) <= 100


def test_times_and_memory_on_a_cpu_are_not_predicted(tmp_path, values):
    grid = lay_out(tmp_path, values, gpus=0, budget="300 updates")
    with_losses(tmp_path)
    for run in of_size_m(grid):
        shutil.rmtree(tmp_path / "runs" / run)
    found = {(one["run"], one["quantity"]): one for one in predict(tmp_path, grid)}
    for run in of_size_m(grid):
        assert found[run, "loss"]["median"]
    assert {quantity for _, quantity in found} == {"loss"}


def test_intervals_hold_what_was_measured_as_often_as_they_say():
    rng = np.random.default_rng(0)
    rows = DataFrame(
        {"measured": np.exp(0.1 * rng.standard_normal(2000)), "median": 1.0, "sd": 0.1}
    ).assign(degrees=None)
    for level in forecast_scores.LEVELS:
        assert forecast_scores.holds(rows, level).mean() == pytest.approx(level, abs=0.03)
    assert forecast_scores.error(rows) == pytest.approx(0.1, abs=0.01)
    lows, highs = zip(*(forecast_scores.interval(rows, p) for p in (0.8, 0.95)), strict=True)
    assert lows[1][0] == pytest.approx(np.exp(-0.196), rel=1e-3)
    assert highs[1][0] == pytest.approx(np.exp(0.196), rel=1e-3)
    assert lows[1][0] < lows[0][0] < 1.0 < highs[0][0] < highs[1][0]


@pytest.fixture
def verb(finished, monkeypatch):
    """``lmscaling forecast`` of the study, with other flags each time."""
    folder, grid = finished
    results = folder / "results" / grid.study.study
    shutil.copytree(folder, results, ignore=shutil.ignore_patterns("results", "aside"))
    values = json.loads((folder / "study.json").read_text())["study"]
    (folder / "own.json").write_text(json.dumps(values))
    monkeypatch.chdir(folder)
    for name in ("a.jsonl", "v.jsonl"):
        (folder / name).write_bytes(bytes(2**20))

    def run(**flags):
        given = {"study": [folder / "own.json"], "set": [], "device": "NVIDIA H100",
                 "seal": False, "stated": None, "verify": False,
                 "results": folder / "results"} | flags  # fmt: skip
        return studies.forecast(argparse.Namespace(**given))

    return run, results, grid


@pytest.mark.filterwarnings("error::UserWarning")
def test_the_verb_prints_seals_and_verifies_until_all_cells_have_begun(verb):
    run, results, grid = verb
    told = run()
    assert "softmax-m-ctx1024-s0" in told
    assert re.search(r"\b6 runs", told)
    assert not (results / "forecasts").exists()
    *_, sealed, sha256 = run(seal=True).splitlines()
    (path,) = (results / "forecasts").iterdir()
    assert sealed.endswith(f": {path}")
    assert sha256.split()[-1][:8] == path.stem[-8:]
    assert f"{path}: sealed " in run(verify=True)
    path.chmod(0o644)
    path.write_text(path.read_text().replace("softmax", "linear"))
    with pytest.raises(UserError) as caught:
        run(verify=True)
    assert path.name in str(caught.value)
    path.unlink()
    for cell in grid.cells:
        (results / "scratch" / cell).mkdir(parents=True)
        (results / "scratch" / cell / "attempt-001.jsonl").touch()
    assert str(results) in run(seal=True)
    assert [*(results / "forecasts").iterdir()] == []
