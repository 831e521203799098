"""Records of a study are copied for git, with shorter logs, and back."""

import json

import pytest
from conftest import script

ROWS = [
    {"record": "header", "attempt": 1, "flops_per_token": 884736.123456789},
    *(
        {"record": "update", "update": n, "train_loss": 5.050753593444824, "mfu": None}
        for n in range(1, 5)
    ),
    {"record": "validation", "update": 4, "val_loss": 5.050753593444824},
]


@pytest.fixture(scope="module")
def keep():
    return script("benchmarks", "keep_records.py")


@pytest.fixture
def study(tmp_path):
    """One finished run, one that trains, and what the study makes again."""
    folder = tmp_path / "results"
    texts = {
        "study.json": "{}",
        "runs/done-1/log.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
        "runs/done-1/run.json": "{}",
        "runs/done-1/model.safetensors": "",
        "runs/halfway-1/log.jsonl": "",
        "evaluations/done-1/python.jsonl": "{}\n",
        "tokens/python/train-00000.bin": "",
        "store/store.duckdb": "",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("every", "kept"), [(1, [1, 2, 3, 4]), (2, [2, 4])])
def test_records_of_finished_runs_are_kept_and_put_back(keep, study, tmp_path, every, kept):
    """Updates are shortened and validations stay exact; what is made again is not kept."""
    assert keep.copy(study, tmp_path / "kept", every=every) == 1
    names = {
        "study.json", "runs/done-1/run.json", "runs/done-1/log.jsonl",
        "evaluations/done-1/python.jsonl",
    }  # fmt: skip
    assert files(tmp_path / "kept") == names | {"thinned.json"}
    lines = (tmp_path / "kept/runs/done-1/log.jsonl").read_text().splitlines()
    header, *updates, validation = map(json.loads, lines)
    assert (header, validation) == (ROWS[0], ROWS[-1])
    assert [row["update"] for row in updates] == kept
    assert {row["train_loss"] for row in updates} == {5.050754}
    said = json.loads((tmp_path / "kept/thinned.json").read_text())
    assert said["updates_kept"] == ("all" if every == 1 else "every 2")
    keep.copy(tmp_path / "kept", tmp_path / "again", every=None)
    assert files(tmp_path / "again") == names
    run, evaluation = (
        (tmp_path / "again" / name).stat().st_mtime_ns
        for name in ("runs/done-1/run.json", "evaluations/done-1/python.jsonl")
    )
    assert evaluation >= run
