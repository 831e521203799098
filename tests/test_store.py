"""Logs become tables: whatever a log went through, no row is invented and none is lost."""

import gzip
import hashlib
import json
import math
import shutil
from dataclasses import replace

import duckdb
import pytest

from lmscaling import files
from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.records import run as records
from lmscaling.store import EXPORTS
from lmscaling.store import build as store

ENVIRONMENT = {
    "host": "h", "device": "cpu", "devices": 1, "python": "3.11.0",
    "versions": {"lmscaling": "0.1.0"}, "git_commit": "abc",
}  # fmt: skip


def header(run, attempt=1, start=0):
    return records.Header(
        attempt=attempt, start_update=start, run=run, cell={}, started="2026-01-01T00:00:00",
        environment=ENVIRONMENT, calibration={},
        params=100, params_total=200, flops_per_token=600.0,
    )  # fmt: skip


def update(n: int, attempt: int = 1, loss: float | None = 3.0) -> records.Update:
    return records.Update(
        attempt=attempt, update=n, epoch=1, tokens=64 * n, train_seconds=float(n),
        train_loss=loss, lr=0.1, budget_fraction=0.5, grad_norm=1.0,
        tokens_per_second=64.0, mfu=None, peak_memory_bytes=None,
    )  # fmt: skip


def gradients(n, attempt=1):
    return records.Gradients(
        attempt=attempt, update=n, tokens=64 * n,
        layer_grad_norms=[1.0, 2.0, None], layer_weight_norms=[1.0, 2.0, 3.0],
    )  # fmt: skip


def validation(n, attempt=1, loss=3.0):
    return records.Validation(
        attempt=attempt, update=n, epoch=1, tokens=64 * n, train_seconds=float(n), lr=0.1,
        budget_fraction=0.5, val_loss=loss, val_tokens=9,
    )  # fmt: skip


def end(n, attempt=1, status="done"):
    return records.End(
        attempt=attempt, update=n, status=status, message="", ended="2026-01-01T01:00:00"
    )


def log(*rows):
    return b"".join(map(records.line, rows))


def write_study(folder, values):
    values["axes"]["context"] = [16, 32]
    values["skip"] = [{"context": 32, "attention": "linear", "reason": "not wanted"}]
    (folder / "study.json").write_text(json.dumps({"command": "snakemake", "study": values}))
    return folder


@pytest.fixture
def study(tmp_path, values):
    return write_study(tmp_path, values)


def runs_of(study):
    return list(study_file.read_record(study / "study.json").grid.cells)


@pytest.fixture
def runs(study):
    return runs_of(study)


def record(study, run, data, status="done", updates=2, **values):
    folder = study / "runs" / run
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_bytes(data)
    made = {
        "run": run, "name": run.rpartition("-")[0], "cell": {}, "status": status, "message": "",
        "attempts": 1, "updates": updates, "tokens": 64 * updates, "train_seconds": 2.0,
        "attempt_seconds": 2.5, "lost_seconds": 0.0, "gpu_hours": 0.0,
        "params": 100, "params_total": 200, "flops_per_token": 600.0, "data": {}, "calibration": {},
        "environment": ENVIRONMENT, "started": "a", "ended": "b",
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(made | values))


def live(study, run, data, attempt=1):
    folder = study / "scratch" / run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"attempt-{attempt:03d}.jsonl").write_bytes(data)


def evaluation(run, context=16, axis="sequence", start=0, loss: float | None = 3.0, **values):
    return records.Evaluation(**{
        "run": run, "dataset": "lines", "context": context, "axis": axis,
        "start": start, "stop": max(1, 2 * start), "tokens": 64, "loss": loss, "loss_se": 0.1,
    } | values)  # fmt: skip


def evaluated(study, run, data, text="lines-bytes-0"):
    path = study / "evaluations" / run / f"{text}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def exported(study, query):
    """The answer of the database for people, which need not read the exports and is sooner open."""
    with duckdb.connect(study / "store" / "store.duckdb", read_only=True) as db:
        return db.sql(query).fetchall()


def ask(study, query):
    store.build(study)
    return exported(study, query)


def test_a_whole_log_is_its_rows(study, runs):
    rows = update(1), update(2, loss=2.5), validation(2), end(2)
    record(study, runs[0], log(header(runs[0]), *rows))
    made = {"cells": 4, "runs": 1, "attempts": 1, "updates": 2, "validations": 1}
    assert store.build(study) == dict.fromkeys(EXPORTS, 0) | made
    query = "SELECT update, tokens, train_loss, surviving FROM updates"
    assert exported(study, query) == [(1, 64, 3.0, True), (2, 128, 2.5, True)]
    query = "SELECT status, lines, damaged_lines, superseded_rows FROM runs"
    assert exported(study, query) == [("done", 5, 0, 0)]
    with store.connect(study / "store") as db:  # the exports
        assert db.sql("SELECT count(*) FROM training").fetchall() == [(2,)]
    with pytest.raises(UserError, match=f"nearest is '{study.name}'"):  # those that are there
        store.build(study.parent / (study.name + "x"))


WHOLE = log(header("r"), update(1), update(2))
BIN = records.line(evaluation("r", start=2))
BINS = {
    "nothing": (b"", 2, 0),
    "torn-whole": (BIN[:-1], 3, 0),  # but for its newline
    **{f"torn-{cut}": (BIN[:cut], 2, 1) for cut in range(1, len(BIN) - 1, 7)},
    "many-zeros": (bytes(17 << 20), 2, 1),
    "other-record": (BIN.replace(b"evaluation", b"update"), 2, 1),
    "no-number": (BIN.replace(b'"tokens": 64', b'"tokens": "x"'), 2, 1),
    "no-record": (b"[1]\n17\n", 2, 2),
    "twice": (BIN + BIN, 3, 0),
    "contradicted": (BIN + BIN.replace(b'"loss": 3.0', b'"loss": 9.0'), 3, 1),
}


def test_a_damaged_evaluation_is_counted_and_costs_only_its_own_line(study):
    whole = log(evaluation("r"), evaluation("r", start=1))
    for name, (tail, _, _) in BINS.items():
        record(study, name, log(header(name), update(1), end(1)))
        evaluated(study, name, (whole + tail).replace(b'"run": "r"', f'"run": "{name}"'.encode()))
    found = dict(ask(study, "SELECT run, count(*) FROM evaluations GROUP BY run"))
    assert found == {name: bins for name, (_, bins, _) in BINS.items()}
    found = dict(exported(study, "SELECT run, damaged_lines FROM runs"))
    assert found == {name: damaged for name, (_, _, damaged) in BINS.items()}


def test_later_attempts_supersede_what_they_trained_again(study, runs):
    live(study, runs[0], log(header(runs[0]), *(update(n) for n in (1, 2, 3, 4))))
    later = [update(n, attempt=2, loss=2.0) for n in (3, 4, 5)]
    live(study, runs[0], log(header(runs[0], 2, start=2), *later), attempt=2)
    for attempt, start, rows in ((1, 0, (1, 2, 3)), (2, 2, (3, 4)), (3, 0, (1,))):
        made = [update(n, attempt) for n in rows]
        live(study, runs[1], log(header(runs[1], attempt, start), *made), attempt)
    columns = "list((update, train_loss) ORDER BY update)"
    query = f"SELECT {columns} FROM training JOIN cells USING (run) GROUP BY place ORDER BY place"
    trained = [(1, 3.0), (2, 3.0), (3, 2.0), (4, 2.0), (5, 2.0)]
    assert ask(study, query) == [(trained,), ([(1, 3.0)],)]
    query = "SELECT attempts, superseded_rows FROM runs JOIN cells USING (run) ORDER BY place"
    assert exported(study, query) == [(2, 2), (3, 5)]
    query = f"SELECT attempt FROM updates WHERE surviving AND run = '{runs[1]}'"
    assert exported(study, query) == [(3,)]


def test_every_cell_has_a_status(study, runs):
    query = "SELECT status, skipped FROM status ORDER BY place"
    assert ask(study, query) == [*[("pending", None)] * 3, ("skipped", "not wanted")]
    record(study, runs[0], log(header(runs[0]), update(1), end(1, status="diverged")), "diverged")
    live(study, runs[1], log(header(runs[1]), update(1)))
    live(study, runs[2], log(header(runs[2]), update(1), end(1, status="interrupted")))
    assert [status for status, _ in ask(study, query)] == [
        "diverged", "running", "interrupted", "skipped"
    ]  # fmt: skip
    live(study, runs[2], log(header(runs[2]), update(1), end(1, status="held")))
    assert ask(study, query)[2] == ("held", None)


def test_evaluations_join_their_cells_in_tokens_that_the_model_was_given(study, runs):
    record(study, runs[0], log(header(runs[0]), update(1), end(1)))
    lines = [evaluation(runs[0], start=start, loss=4.0 - start) for start in (0, 1, 2)]
    evaluated(study, runs[0], log(*lines))
    evaluated(study, runs[0], log(evaluation(runs[0], dataset="b", loss=None)), "b-bytes-0")
    evaluated(study, runs[1], b"")
    columns = 'dataset, size, context, eval_context, "start", stop, round(position, 3), loss'
    assert ask(study, f"SELECT {columns} FROM by_position ORDER BY ALL") == [
        ("b", "s", 16, 16, 0, 1, 1.0, None),
        ("lines", "s", 16, 16, 0, 1, 1.0, 4.0),
        ("lines", "s", 16, 16, 1, 2, 2.0, 3.0),
        ("lines", "s", 16, 16, 2, 4, 3.464, 2.0),
    ]  # fmt: skip


def test_the_final_loss_is_the_last_validation_at_the_best_rate(study, values):
    values["axes"] |= {"lr_scale": [0.5, 1.0], "attention": ["linear"], "context": [16]}
    made = {"command": "", "study": values | {"skip": []}}
    cells = study_file.write_record(study / "study.json", made).cells
    gone = "softmax-x-ctx16-s0-00000000"  # kept and not shown, for its cell has left the study
    for run, loss, n_bytes in zip((*cells, gone), (2.0, 3.0, 0.5), (4.0, None, 1.0), strict=True):
        known = replace(header(run), bytes_per_token=n_bytes)
        rows = log(known, validation(1, loss=1.0), validation(2, loss=loss), end(2))
        record(study, run, rows, bytes_per_token=n_bytes)
    assert ask(study, "SELECT lr_scale, update, val_loss FROM final") == [(0.5, 2, 2.0)]
    assert exported(study, "SELECT run FROM runs WHERE NOT in_study") == [(gone,)]
    query = "SELECT bits_per_byte FROM last_validation ORDER BY lr_scale"
    # Bits compare tokenizers; without counted bytes there are none.
    assert exported(study, query) == [(pytest.approx(2 / math.log(2) / 4),), (None,)]


def test_a_log_that_is_not_the_one_of_its_record_is_named(study, runs, capsys):
    data = log(header(runs[0]), update(1), update(2))
    digest = hashlib.sha256(data).hexdigest()
    record(study, runs[0], data, log_sha256=digest, log_lines=3)
    record(study, runs[1], data[:-5], log_sha256=digest, log_lines=3)
    query = "SELECT run, status FROM runs WHERE run IN (SELECT unnest(?::VARCHAR[])) ORDER BY run"
    found = dict(ask(study, query.replace("?", str(sorted(runs[:2])))))
    assert found == {runs[0]: "done", runs[1]: "damaged"}
    assert f"{runs[1]}/log.jsonl is not the log" in capsys.readouterr().err


def test_logs_may_be_compressed_with_gzip_and_one_that_was_cut_is_named(study, runs, capsys):
    data = log(header(runs[0]), update(1), update(2))
    digest = hashlib.sha256(data).hexdigest()
    packed = gzip.compress(data)
    for run, written in zip(runs, (packed, packed[:-9]), strict=False):
        record(study, run, data, log_sha256=digest, log_lines=3)
        path = study / "runs" / run / "log.jsonl"
        path.unlink()
        path.with_name("log.jsonl.gz").write_bytes(written)
    found = ask(
        study, "SELECT run, update FROM updates JOIN runs USING (run) WHERE status = 'done'"
    )
    assert found == [(runs[0], 1), (runs[0], 2)]
    assert f"{runs[1]}/log.jsonl.gz" in capsys.readouterr().err


def test_the_record_of_a_run_that_was_copied_into_the_folder_of_another_is_no_second_run(
    study, runs, capsys
):
    record(study, runs[0], log(header(runs[0]), update(1), end(1)))
    shutil.copytree(study / "runs" / runs[0], study / "runs" / runs[1])
    found = dict(ask(study, "SELECT run, status FROM runs"))
    assert found == {runs[0]: "done", runs[1]: "damaged"}
    assert runs[0] in capsys.readouterr().err


def test_a_damaged_record_is_shown_and_keeps_nobody_from_reading_the_others(study, capsys):
    texts = {"empty": "", "cut": '{"run": "x"', "poor": '{"run": "x"}', "list": "[]", "done": None}
    for run, text in texts.items():
        record(study, run, log(header(run), update(1), update(2), end(2)))
        if text is not None:
            (study / "runs" / run / "run.json").write_text(text)
    found = {run: said for run, *said in ask(study, "SELECT run, status, message FROM runs")}
    assert found.pop("done") == ["done", ""]
    told = capsys.readouterr().err
    for run, (status, message) in found.items():
        path = str(study / "runs" / run / "run.json")
        assert status == "damaged"
        assert path in message
        assert f"lmscaling reset {run}" in message
        assert path in told


def test_a_record_with_a_flipped_bit_is_named_and_its_copy_used(study, runs, capsys):
    record(study, runs[0], log(header(runs[0]), update(1), update(2), end(2)))
    path, spare = study / "runs" / runs[0] / "run.json", study / "runs" / f"{runs[0]}.json"
    values = json.loads(path.read_text())
    for each in (path, spare):
        files.write_record(each, values)
    path.write_text(path.read_text().replace('"updates": 2', '"updates": 3'))
    query = f"SELECT status, updates FROM runs WHERE run = '{runs[0]}'"
    assert ask(study, query) == [("done", 2)]
    told = capsys.readouterr().err
    assert "record_sha256" in told
    assert str(spare) in told
    spare.unlink()
    assert [status for status, _ in ask(study, query)] == ["damaged"]
