"""Predictions are sealed before runs begin, nobody moves them, and the report scores them."""

import argparse
import json
import re
import shutil

import law_study
import numpy as np
import pytest
from conftest import ROOT, sentence
from pandas import DataFrame

from lmscaling.cli import studies
from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_record
from lmscaling.fits import forecast_scores
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


def test_runs_that_have_not_begun_are_predicted_sealed_and_scored(finished):
    study, grid = finished
    found = predict(study, grid)
    assert {one["run"] for one in found} == of_size_m(grid)
    assert len(losses_of(found)) == 6
    for one in losses_of(found):
        cell = grid.cells[one["run"]]
        assert one["median"] == pytest.approx(law_study.loss(cell, 1) + 0.05, abs=0.01)
        assert "sd" not in one
    path, sha256 = sealing.seal(study, grid, found)
    assert path.name == f"{environment.now()[:10]}-{sha256[:8]}.json"
    assert path.stat().st_mode & 0o222 == 0
    values = read_json(path, "seal")
    assert (values["study"], len(values["study_sha256"])) == ("tiny", 64)
    assert values["version"]
    assert sealing.verify(study).startswith(f"{path}: sealed {values['sealed']}, 18")
    begin(study, grid)
    rows, tables = read(study)
    assert [(q, s) for q, s, *_ in rows if q == "loss"] == [("loss", "scored")] * 6
    names = (forecast.QUANTITIES[q] for q in ("loss", "update_seconds"))
    loss, time = ({row[2]: row for row in tables["forecast_scores"].rows}[q] for q in names)
    assert re.findall(r"\d+", loss[3]) == ["6", "6"]
    assert 1 <= float(loss[6]) < 1.01
    assert loss[4:6] == loss[7:9] == ("", "")  # without intervals
    assert re.findall(r"\d+", time[4])[1] == "6"
    assert float(time[7])
    for row in tables["forecast_cells"].rows:
        assert (row[4] == "") == (row[2] == "final loss")


def test_the_shipped_seal_is_scored_with_its_intervals_and_its_plain_guess(tmp_path):
    shipped = ROOT / "results/measured/cpu-python"
    (tmp_path / "study.json").write_bytes((shipped / "study.json").read_bytes())
    shutil.copytree(shipped / "forecasts", tmp_path / "forecasts")
    for run in shipped.glob("runs/*-300k-*"):
        shutil.copytree(run, tmp_path / "runs" / run.name)
    assert sealing.verify(tmp_path)
    _, tables = read(tmp_path)
    (line,) = (row for row in tables["forecast_scores"].rows if row[2] == "final loss")
    assert re.findall(r"\d+", line[3]) == ["6", "15"]
    assert re.findall(r"\d+", line[5])[:2] == ["6", "6"]
    told = (ROOT / "docs/cpu_study.md").read_text()
    own, plain = re.findall(r"Log score (\S+), that of the plain guess (\S+):", told)[0]
    assert line[7] == own
    assert line[8].endswith(f"({plain})")
    (*_, place) = (row[7] for row in tables["forecast_cells"].rows if row[6])
    assert 0 < float(place) < 1


@pytest.mark.parametrize("change", ["value", "value and hash", "no JSON"])
def test_a_seal_that_was_changed_is_named_and_not_scored(finished, change):
    study, grid = finished
    path, _ = sealing.seal(study, grid, predict(study, grid))
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
    ((*_, scored, why),) = (row[3:4] + row[-1:] for row in tables["forecast_scores"].rows)
    assert scored.startswith("0 ")
    assert why.startswith(path.name)
    assert not tables["forecast_cells"].rows


def test_a_run_that_began_before_the_seal_is_not_scored_and_after_its_begin_not_predicted(finished):
    study, grid = finished
    sealing.seal(study, grid, predict(study, grid))
    begin(study, grid, EARLIER)
    rows, tables = read(study)
    assert {state for _, state, *_ in rows} == {"begun"}
    assert tables["forecast_scores"].rows[-1][-1].startswith("6: ")
    run = min(of_size_m(grid))
    shutil.rmtree(study / "runs" / run)
    assert {one["run"] for one in predict(study, grid)} == {run}
    (study / "scratch" / run).mkdir(parents=True)
    (study / "scratch" / run / "attempt-001.jsonl").write_bytes(b"")
    assert predict(study, grid) == []


def test_what_is_not_predicted_has_its_reason(finished):
    study, grid = finished
    for tokens in (None, 10**20):
        (reason,) = {one["reason"] for one in losses_of(predict(study, grid, tokens=tokens))}
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
        assert re.search(rf"4 cells: {reason}", told)
    assert max(map(len, told.splitlines())) <= 100


def test_times_and_memory_on_a_cpu_are_not_predicted(tmp_path, values):
    grid = lay_out(tmp_path, values, gpus=0, budget="300 updates")
    with_losses(tmp_path)
    for run in of_size_m(grid):
        shutil.rmtree(tmp_path / "runs" / run)
    found = {(one["run"], one["quantity"]): one for one in predict(tmp_path, grid)}
    for run in of_size_m(grid):
        assert found[run, "loss"]["median"]
        for quantity in ("update_seconds", "memory_bytes"):
            assert "median" not in found[run, quantity]
            assert "CPU" in found[run, quantity]["reason"]


def test_scores_of_a_known_distribution():
    rng = np.random.default_rng(0)
    unknown = dict.fromkeys(("degrees", "baseline_median", "baseline_sd"))
    rows = DataFrame(
        {"measured": np.exp(0.1 * rng.standard_normal(2000)), "median": 1.0, "sd": 0.1}
    )
    rows = rows.assign(**unknown).astype(float)
    away = abs(forecast_scores.places(rows) - 0.5)
    assert (away <= 0.4).mean() == pytest.approx(0.8, abs=0.03)
    assert (away <= 0.475).mean() == pytest.approx(0.95, abs=0.02)
    own, plain = forecast_scores.log_scores(rows)
    assert own == pytest.approx(-np.log(0.1) - 0.5 * np.log(2 * np.pi) - 0.5, abs=0.1)
    assert np.isnan(plain)
    lows, highs = zip(*(forecast_scores.interval(rows, p) for p in (0.8, 0.95)), strict=True)
    assert lows[1][0] == pytest.approx(np.exp(-0.196), rel=1e-3)
    assert highs[1][0] == pytest.approx(np.exp(0.196), rel=1e-3)
    assert lows[1][0] < lows[0][0] < 1.0 < highs[0][0] < highs[1][0]
    own, plain = forecast_scores.log_scores(rows.assign(baseline_median=2.0, baseline_sd=0.4))
    assert plain < own


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
        given = {"study": [folder / "own.json"], "set": [], "device": "NVIDIA H100", "seal": False,
                 "verify": False, "results": folder / "results"} | flags  # fmt: skip
        return studies.forecast(argparse.Namespace(**given))

    return run, results, grid


def test_the_verb_prints_seals_and_verifies_until_all_cells_have_begun(verb):
    run, results, grid = verb
    told = run()
    assert "softmax-m-ctx1024-s0" in told
    assert re.search(r"\b6 cells", told)
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
