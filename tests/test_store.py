"""Logs become tables: whatever a log went through, no row is invented and none is lost."""

import json

import duckdb
import pytest

from lmscaling import grid, records, store
from lmscaling.errors import UserError

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


def validation(n, attempt=1, loss=3.0):
    return records.Validation(
        attempt=attempt,
        update=n,
        epoch=1,
        tokens=64 * n,
        train_seconds=float(n),
        lr=0.1,
        budget_fraction=0.5,
        val_loss=loss,
        val_tokens=9,
    )


def end(n, attempt=1, status="done"):
    return records.End(
        attempt=attempt, update=n, status=status, message="", ended="2026-01-01T01:00:00"
    )


def log(*rows):
    return b"".join(map(records.line, rows))


@pytest.fixture
def study(tmp_path, values):
    values["axes"]["context"] = [16, 32]
    values["skip"] = [{"context": 32, "attention": "linear", "reason": "not wanted"}]
    (tmp_path / "study.json").write_text(json.dumps({"command": "snakemake", "study": values}))
    return tmp_path


@pytest.fixture
def runs(study):
    return list(grid.read_record(study / "study.json").grid.cells)


def record(study, run, data, status="done", updates=2):
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
    (folder / "run.json").write_text(json.dumps(made))


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


def ask(study, query):
    store.build(study)
    with store.connect(study / "store") as db:
        return db.sql(query).fetchall()


def test_a_whole_log_is_its_rows(study, runs):
    record(
        study, runs[0], log(header(runs[0]), update(1), update(2, loss=2.5), validation(2), end(2))
    )
    assert store.build(study) == {
        "cells": 4, "runs": 1, "attempts": 1, "updates": 2, "validations": 1,
        "evaluations": 0,
    }  # fmt: skip
    assert ask(study, "SELECT update, tokens, train_loss, surviving FROM updates") == [
        (1, 64, 3.0, True), (2, 128, 2.5, True),
    ]  # fmt: skip
    assert ask(study, "SELECT status, lines, damaged_lines, superseded_rows FROM runs") == [
        ("done", 5, 0, 0)
    ]


WHOLE = log(header("r"), update(1), update(2))
LAST = records.line(update(3))


@pytest.mark.parametrize(
    ("tail", "updates", "damaged"),
    [
        (b"", [1, 2], 0),
        (LAST[:-1], [1, 2, 3], 0),  # whole but for its newline
        *((LAST[:cut], [1, 2], 1) for cut in (1, 20, len(LAST) // 2, len(LAST) - 2)),
        (bytes(300), [1, 2], 1),
        (LAST[:30] + bytes(100), [1, 2], 1),
        (bytes(300) + b"\n" + LAST, [1, 2, 3], 1),
        (LAST[:30] + b"\n" + LAST, [1, 2, 3], 1),
        (b'{"record": "update", "attempt": 1, "update": "x", "tokens": 1}\n', [1, 2], 1),
        (b"[1]\n17\n", [1, 2], 2),
    ],
)
def test_damage_is_counted_and_costs_only_its_own_line(study, runs, tail, updates, damaged):
    live(study, runs[0], WHOLE + tail)
    assert ask(study, "SELECT update FROM updates ORDER BY update") == [(u,) for u in updates]
    assert ask(study, "SELECT status, damaged_lines FROM runs") == [("running", damaged)]


def test_a_second_attempt_supersedes_what_it_trained_again(study, runs):
    live(study, runs[0], log(header(runs[0]), *(update(n) for n in (1, 2, 3, 4))))
    later = [update(n, attempt=2, loss=2.0) for n in (3, 4, 5)]
    live(study, runs[0], log(header(runs[0], 2, start=2), *later), attempt=2)
    assert ask(study, "SELECT update, train_loss FROM training ORDER BY update") == [
        (1, 3.0), (2, 3.0), (3, 2.0), (4, 2.0), (5, 2.0),
    ]  # fmt: skip
    assert ask(study, "SELECT count(*) FROM updates") == [(7,)]
    assert ask(study, "SELECT superseded_rows, attempts FROM runs") == [(2, 2)]


def test_a_third_attempt_from_the_start_supersedes_both(study, runs):
    for attempt, start, rows in ((1, 0, (1, 2, 3)), (2, 2, (3, 4)), (3, 0, (1,))):
        made = [update(n, attempt) for n in rows]
        live(study, runs[0], log(header(runs[0], attempt, start), *made), attempt)
    assert ask(study, "SELECT attempt, update FROM updates WHERE surviving") == [(3, 1)]


def test_joined_attempts_in_one_log_read_like_separate_ones(study, runs):
    first = log(header(runs[0]), update(1), update(2), update(3))[:-20] + b"\n"
    second = log(header(runs[0], 2, 1), update(2, 2, 2.0), validation(2, 2), end(2, 2))
    record(study, runs[0], first + second)
    assert ask(study, "SELECT update, train_loss FROM training ORDER BY update") == [
        (1, 3.0), (2, 2.0),
    ]  # fmt: skip
    assert ask(study, "SELECT damaged_lines, superseded_rows FROM runs") == [(1, 1)]


def test_every_cell_has_a_status(study, runs):
    record(study, runs[0], log(header(runs[0]), update(1), end(1, status="diverged")), "diverged")
    live(study, runs[1], log(header(runs[1]), update(1)))
    live(study, runs[2], log(header(runs[2]), update(1), end(1, status="interrupted")))
    assert ask(study, "SELECT status, skipped FROM status ORDER BY place") == [
        ("diverged", None), ("running", None), ("interrupted", None), ("skipped", "not wanted"),
    ]  # fmt: skip


def test_evaluations_join_their_cells_in_tokens_that_the_model_was_given(study, runs):
    record(study, runs[0], log(header(runs[0]), update(1), end(1)))
    lines = [evaluation(runs[0], start=start, loss=4.0 - start) for start in (0, 1, 2)]
    evaluated(study, runs[0], log(*lines))
    evaluated(study, runs[0], log(evaluation(runs[0], dataset="b", loss=None)), "b-bytes-0")
    evaluated(study, runs[1], b"")
    assert ask(study, """
        SELECT dataset, size, context, eval_context, "start", stop, round(position, 3), loss
        FROM by_position ORDER BY ALL
    """) == [
        ("b", "s", 16, 16, 0, 1, 1.0, None),
        ("lines", "s", 16, 16, 0, 1, 1.0, 4.0),
        ("lines", "s", 16, 16, 1, 2, 2.0, 3.0),
        ("lines", "s", 16, 16, 2, 4, 3.464, 2.0),
    ]  # fmt: skip


BIN = records.line(evaluation("r", start=2))


@pytest.mark.parametrize(
    ("tail", "bins", "damaged"),
    [
        (b"", 2, 0),
        (BIN[:-1], 3, 0),  # whole but for its newline
        *((BIN[:cut], 2, 1) for cut in (1, 20, len(BIN) // 2, len(BIN) - 2)),
        (bytes(300), 2, 1),
        (bytes(300) + b"\n" + BIN, 3, 1),
        (BIN.replace(b"evaluation", b"update"), 2, 1),
        (BIN.replace(b'"tokens": 64', b'"tokens": "x"'), 2, 1),
        (b"[1]\n17\n", 2, 2),
    ],
)
def test_a_damaged_evaluation_is_counted_and_costs_only_its_own_line(
    study, runs, tail, bins, damaged
):
    record(study, runs[0], log(header(runs[0]), update(1), end(1)))
    whole = log(evaluation(runs[0]), evaluation(runs[0], start=1))
    evaluated(study, runs[0], whole + tail)
    assert ask(study, "SELECT count(*) FROM evaluations") == [(bins,)]
    assert ask(study, "SELECT damaged_lines FROM runs") == [(damaged,)]


def test_runs_of_cells_that_left_the_study_are_kept_but_not_shown(study, runs):
    record(study, "softmax-x-ctx16-s0-00000000", log(header("x"), update(1), validation(1), end(1)))
    assert ask(study, "SELECT in_study FROM runs") == [(False,)]
    assert ask(study, "SELECT count(*) FROM final") == [(0,)]


def test_the_final_loss_is_the_last_validation_at_the_best_rate(study, values):
    values["axes"] |= {"lr_scale": [0.5, 1.0], "attention": ["linear"], "context": [16]}
    text = json.dumps({"command": "", "study": values | {"skip": []}})
    (study / "study.json").write_text(text)
    for cell, loss in zip(
        grid.read_record(study / "study.json").grid.cells.values(), (2.0, 3.0), strict=True
    ):
        rows = [header(cell.run), validation(1, loss=1.0), validation(2, loss=loss), end(2)]
        record(study, cell.run, log(*rows))
    assert ask(study, "SELECT lr_scale, update, val_loss FROM final") == [(0.5, 2, 2.0)]


def test_equal_logs_make_equal_exports(study, runs):
    for run in runs[:2]:
        record(study, run, log(header(run), *(update(n) for n in range(1, 500)), end(499)))
    store.build(study)
    before = {p.name: p.read_bytes() for p in (study / "store").glob("*.parquet")}
    store.build(study)
    assert {p.name: p.read_bytes() for p in (study / "store").glob("*.parquet")} == before
    assert sorted(before) == sorted(f"{name}.parquet" for name in records.EXPORTS)
    assert not list((study / "store").glob(".build-*"))


def test_the_database_for_people_has_tables_and_views(study, runs):
    live(study, runs[0], WHOLE)
    store.build(study)
    with duckdb.connect(study / "store" / "store.duckdb", read_only=True) as db:
        assert db.sql("SELECT count(*) FROM training").fetchall() == [(2,)]


def test_no_run_at_all_is_an_empty_store(study):
    assert ask(study, "SELECT count(*) FILTER (status = 'pending') FROM status") == [(3,)]


@pytest.mark.parametrize("text", ['{"run": "x"', '{"run": "x"}', "[]"])
def test_a_record_that_is_not_whole_is_named_with_its_remedy(study, runs, text):
    record(study, runs[0], b"")
    path = study / "runs" / runs[0] / "run.json"
    path.write_text(text)
    with pytest.raises(UserError, match=f"run record {path}"):
        store.build(study)
    assert not list((study / "store").glob("*.parquet"))


def test_a_study_that_is_not_there_names_those_that_are(study):
    with pytest.raises(UserError, match="does not exist; studies: nearest is"):
        store.build(study.parent / (study.name + "x"))
