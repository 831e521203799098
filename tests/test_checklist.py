"""The reviewer's checklist is answered from the study, not from prose that could be false."""

import json

import pytest
from conftest import sentence
from test_figures import cells_of, finish, write_study

from lmscaling.config import study_file
from lmscaling.report import checklist
from lmscaling.store import build as store


@pytest.fixture
def study(tmp_path, values):
    values["budget"] = "50 updates"
    return write_study(tmp_path, values)


def answers(study):
    record = study_file.read_record(study / "study.json").grid
    store.build(study)
    with store.connect(study / "store") as db:
        made = checklist.table(db, record.study, study, [])
    for _, question, answer in made.rows:
        sentence("checklist", f"{question}: {answer}")
    return {question: answer for _, question, answer in made.rows}


def test_a_finished_study_answers_every_question_but_those_of_fits(study):
    finish(study, cells_of(study))
    found = answers(study)
    unknown = {question for question, answer in found.items() if answer == checklist.NOT_STATED}
    assert all(question.startswith(("objective", "starts")) for question in unknown)
    assert found["models with softmax"].startswith("16 of 16 done, N 100, ")
    assert {"AdamW", "0.9", "0.95", "1e-08", "0.1"} <= {
        *found["optimizer"].replace(",", "").split()
    }
    assert found["learning-rate schedule"] == "constant"
    assert found["batch"].startswith("64 tokens")
    assert (found["seeds"].split()[:3], found["code"].split()[-1]) == (["8", "of", "8"], "abc")


def test_before_the_first_run_nothing_is_claimed_and_exceptions_are_said(study):
    record = json.loads((study / "study.json").read_text())
    part = {"size": "m", "update_tokens": 128, "reason": "large"}
    record["study"] |= {"exceptions": [part], "lr_law": "lr_law.json"}
    record["study"]["sizes"]["s"]["lr"] = {"softmax": 1e-3, "linear": 2e-3}
    (study / "study.json").write_text(json.dumps(record))
    found = answers(study)
    assert found["models with linear"].startswith("0 of 16")
    assert found["points that laws are fitted to"] == "none"
    assert found["runs without a point"] == "32 runs pending"
    assert (found["seeds"].split()[:3], found["code"].split()[-1]) == (["0", "of", "0"], "none")
    assert found["batch"].endswith("update_tokens 128 (large)")
    assert {"0.001", "0.002", "0.005", "lr_law.json"} <= {
        *found["learning rates"].replace(",", " ").replace(";", " ").split()
    }
