"""Predictions are sealed before runs begin, nobody moves them, and the report scores them."""

import argparse
import json
import re
import shutil
from dataclasses import replace
from typing import Any

import law_study
import numpy as np
import pytest
from conftest import sentence

from lmscaling.cli import studies
from lmscaling.config import devices, study_file
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_record
from lmscaling.fits import forecast_scores
from lmscaling.plan.estimate import Forecast as Cost
from lmscaling.plan.estimate import Shape
from lmscaling.records import forecast
from lmscaling.records.forecast import Seal
from lmscaling.report import forecasts as report
from lmscaling.runtime import environment
from lmscaling.status import sealing
from lmscaling.store import build as store

LATER = "2100-01-01T00:00:00+00:00"
EARLIER = "2001-01-01T00:00:00+00:00"
H100 = devices.find("NVIDIA H100")


def lay_out(folder, values, **changes):
    """A study without branches, whose finished runs are recorded, and its grid."""
    values = law_study.values_of(values) | {"branches": None} | changes
    law_study.write(folder, values, branches=False)
    return study_file.read_record(folder / "study.json").grid


@pytest.fixture
def finished(tmp_path, values):
    """A study whose runs of the second size of three have been put aside, and its grid."""
    grid = lay_out(tmp_path, values)
    for run in of_size_m(grid):
        shutil.move(tmp_path / "runs" / run, tmp_path / "aside" / run)
    with_losses(tmp_path)
    return tmp_path, grid


def of_size_m(grid):
    return {run for run, cell in grid.cells.items() if cell.size == "m"}


def predict(study, grid):
    shapes = dict.fromkeys(grid.cells, Shape(params_total=100, flops_per_token=6e8))
    costs = {
        run: Cost(name=cell.name, gpus=cell.gpus, update_seconds=0.5, update_sd=0.1,
                  memory_bytes=1e9, memory_sd=0.1)
        for run, cell in grid.cells.items()
    }  # fmt: skip
    if not (study / "runs").is_dir():
        return sealing.predict(study, grid, costs, shapes, H100, None)
    store.build(study)
    with store.connect(study / "store") as db:
        return sealing.predict(study, grid, costs, shapes, H100, db)


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
    assert {one.run for one in found} == of_size_m(grid)
    losses = [one for one in found if one.quantity == "loss"]
    assert len(losses) == 6
    assert all(one.median and one.baseline for one in losses)
    path, sha256 = sealing.seal(study, grid, found)
    assert path.name == f"{environment.now()[:10]}-{sha256[:8]}.json"
    assert path.stat().st_mode & 0o222 == 0
    values = read_json(path, "seal")
    assert (values["study"], len(values["study_sha256"])) == ("tiny", 64)
    assert values["version"]
    said, intact = sealing.verify(study)
    assert said.startswith(f"{path}: sealed {values['sealed']}, 18")
    assert intact
    begin(study, grid)
    rows, tables = read(study)
    assert [(q, s) for q, s, *_ in rows if q == "loss"] == [("loss", "scored")] * 6
    (line,) = (row for row in tables["forecast_scores"].rows if row[2] == "final loss")
    assert re.findall(r"\d+", line[3]) == ["6", "6"]
    assert re.findall(r"\d+", line[5]) == ["6", "6", "54", "100"]  # hold, with an interval
    plain = line[8].rstrip(")").rpartition("(")[2]
    assert float(line[7]) > float(plain)  # better than the plain guess
    cells = [row for row in tables["forecast_cells"].rows if row[2] == "final loss"]
    assert all(0 <= float(row[7]) <= 1 for row in cells)


@pytest.mark.parametrize("change", ["value", "value and hash", "no JSON"])
def test_a_seal_that_was_changed_is_named_and_not_scored(finished, change):
    study, grid = finished
    path, _ = sealing.seal(study, grid, predict(study, grid))
    values, is_intact = forecast.read(path)
    assert is_intact
    values["forecasts"][2]["median"] += 0.01
    path.chmod(0o644)
    if change == "value and hash":
        write_record(path, values)
    else:
        stored = json.loads(path.read_text())
        path.write_text(json.dumps(stored | values) if change == "value" else change)
    if change == "no JSON":
        with pytest.raises(UserError, match=path.name):
            sealing.verify(study)
    else:
        told, is_intact = sealing.verify(study)
        assert not is_intact
        assert told.startswith(f"{path}: was changed")
    begin(study, grid)
    rows, tables = read(study)
    assert {state for _, state, *_ in rows} == {"changed"}
    assert all(row[3].startswith("0 ") for row in tables["forecast_scores"].rows)
    assert tables["forecast_scores"].rows[0][-1].startswith(path.name)
    assert bool(tables["forecast_cells"].rows) is (change != "no JSON")


def test_a_run_that_began_before_the_seal_is_not_scored_and_after_its_begin_not_predicted(finished):
    study, grid = finished
    sealing.seal(study, grid, predict(study, grid))
    begin(study, grid, EARLIER)
    rows, tables = read(study)
    assert {state for _, state, *_ in rows} == {"begun"}
    assert tables["forecast_scores"].rows[-1][-1].startswith("6: ")
    run = min(of_size_m(grid))
    shutil.rmtree(study / "runs" / run)
    assert {one.run for one in predict(study, grid)} == {run}
    (study / "scratch" / run).mkdir(parents=True)
    (study / "scratch" / run / "attempt-001.jsonl").write_bytes(b"")
    assert predict(study, grid) == []


def test_what_is_not_predicted_has_its_reason(finished):
    study, grid = finished
    shutil.rmtree(study / "runs")
    found = predict(study, grid)
    (reason,) = {one.reason for one in found if one.quantity == "loss"}
    told = sealing.table(found)
    assert re.search(rf"24 cells: {reason}", told)
    sentence("forecast", reason)
    assert max(map(len, told.splitlines())) <= 100


def test_equal_predictions_are_one_seal_and_later_ones_another(tmp_path):
    first = Seal(study="a", study_sha256="", version="1", commit=None, sealed=EARLIER, forecasts=[])
    assert forecast.write(tmp_path, first) == forecast.write(tmp_path, first)
    forecast.write(tmp_path, replace(first, sealed=LATER))
    assert len(list((tmp_path / "forecasts").iterdir())) == 2


def test_times_and_memory_on_a_cpu_are_not_predicted(tmp_path, values):
    grid = lay_out(tmp_path, values, gpus=0, budget="300 updates")
    with_losses(tmp_path)
    for run in of_size_m(grid):
        shutil.rmtree(tmp_path / "runs" / run)
    found = {(one.run, one.quantity): one for one in predict(tmp_path, grid)}
    for run in of_size_m(grid):
        assert found[run, "loss"].median
        for quantity in ("update_seconds", "memory_bytes"):
            assert found[run, quantity].median is None
            assert "CPU" in found[run, quantity].reason


def row(measured, **values):
    unknown = dict.fromkeys(("degrees", "baseline_median", "baseline_sd"))
    return {"measured": measured, "median": 1.0, "sd": 0.1} | unknown | values


def test_scores_of_a_known_distribution():
    rng = np.random.default_rng(0)
    rows = [row(float(np.exp(0.1 * z))) for z in rng.standard_normal(2000)]
    found: Any = forecast_scores.score(rows)
    assert found.held[0.8] / 2000 == pytest.approx(0.8, abs=0.03)
    assert found.held[0.95] / 2000 == pytest.approx(0.95, abs=0.02)
    assert found.log_score == pytest.approx(-np.log(0.1) - 0.5 * np.log(2 * np.pi) - 0.5, abs=0.1)
    assert found.baseline_log_score is None
    assert found.factor == pytest.approx(np.exp(0.0674), abs=0.005)
    assert forecast_scores.transform([row(1.0)]) == pytest.approx([0.5])
    off: Any = forecast_scores.score([row(1.02, baseline_median=2.0, baseline_sd=0.4)])
    assert off.baseline_log_score < off.log_score


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
