"""The reviewer's checklist is answered from the study, not from prose that could be false."""

import json

import pytest
from test_figures import finish, write_study

from lmscaling import figures, report
from lmscaling.config import study_file
from lmscaling.fits import loss_surface
from lmscaling.report import checklist
from lmscaling.store import build as store


@pytest.fixture
def study(tmp_path, values):
    folder = tmp_path / "tiny"
    folder.mkdir()
    values["budget"] = "50 updates"
    return write_study(folder, values)


def answers(study):
    record = study_file.read_record(study / "study.json").grid
    store.build(study)
    with store.connect(study / "store") as db:
        made = checklist.table(db, record.study, study, [])
    return {question: answer for _, question, answer in made.rows}


def cells(study):
    return list(study_file.read_record(study / "study.json").grid.cells.values())


def test_a_finished_study_answers_every_question_but_those_of_fits(study):
    finish(study, cells(study))
    found = answers(study)
    unknown = {question for question, answer in found.items() if answer == "not stated"}
    assert all(question.startswith(("objective", "starts")) for question in unknown)
    assert found["models with softmax"].startswith("16 of 16 done, N 100, ")
    assert found["optimizer"].startswith("AdamW, betas 0.9 and 0.95, eps 1e-08, weight_decay 0.1")
    assert found["learning-rate schedule"] == "constant"
    assert found["learning rates"] == "s 0.01; m 0.005"
    assert found["learning rates tuned"] == "softmax: over 2 rates; linear: over 2 rates"
    assert found["batch"] == "64 tokens an update at every size"
    assert found["failed runs"] == "Failures: none of 32 runs."
    assert found["seeds"].startswith("8 of 8 finished sizes")
    assert found["code"].endswith("runs by commit abc")


def test_before_the_first_run_nothing_is_claimed(study):
    found = answers(study)
    assert found["models with linear"] == "0 of 16 done; 4 sizes and contexts, 2 seeds"
    assert found["failed runs"] == "none has ended"
    assert found["points that laws are fitted to"] == "none"
    assert found["runs without a point"] == "32 runs pending"
    no = "no, one rate a size"
    assert found["learning rates tuned"] == f"softmax: {no}; linear: {no}"
    assert found["seeds"].startswith("0 of 0")
    assert found["code"].endswith("runs by commit none")


def test_an_exception_and_a_law_of_rates_are_said(study):
    record = json.loads((study / "study.json").read_text())
    part = {"size": "m", "update_tokens": 128, "reason": "large"}
    record["study"] |= {"exceptions": [part], "lr_law": "lr_law.json"}
    record["study"]["sizes"]["s"]["lr"] = {"softmax": 1e-3, "linear": 2e-3}
    (study / "study.json").write_text(json.dumps(record))
    found = answers(study)
    assert found["batch"].endswith("; size: m: update_tokens 128 (large)")
    assert found["learning rates"] == (
        "s softmax 0.001, linear 0.002; m 0.005; fitted sizes by lr_law.json"
    )


def test_a_fit_that_states_how_it_was_made_is_quoted(study, monkeypatch):
    monkeypatch.setattr(loss_surface, "OBJECTIVE", "multivariate t of runs", raising=False)
    assert answers(study)["objective of the loss surface"] == "multivariate t of runs"


def test_it_is_in_the_report(study):
    store.build(study)
    for name in figures.registry.figures():
        (study / "figures").mkdir(exist_ok=True)
        for kind in ("svg", "csv"):
            (study / "figures" / f"{name}.{kind}").touch()
    page = report.write(study).read_text()
    assert 'id="checklist"' in page
    assert "AdamW, betas 0.9 and 0.95" in page
