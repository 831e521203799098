"""Logs become tables: whatever a log went through, no row is invented and none is lost."""

import json
import math
from dataclasses import replace

import duckdb
import numpy as np
import pytest

from lmscaling import files
from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.records import run as records
from lmscaling.records import timing
from lmscaling.records.exports import EXPORTS
from lmscaling.store import build as store
from lmscaling.store import spikes

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


def gradients(n, small: float | None, attempt=1, small_tokens: int | None = 16):
    return records.Gradients(
        attempt=attempt, update=n, tokens=64 * n, small_tokens=small_tokens, small_grad_norm=small,
        layer_grad_norms=[1.0, 2.0, None], layer_weight_norms=[1.0, 2.0, 3.0],
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
    return list(study_file.read_record(study / "study.json").grid.cells)


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
        "cells": 4, "runs": 1, "attempts": 1, "updates": 2, "gradients": 0, "validations": 1,
        "spikes": 0, "evaluations": 0, "measurements": 0, "numerics": 0,
        "forecasts": 0, "designs": 0, "samples": 0,
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


@pytest.mark.ci
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
        study_file.read_record(study / "study.json").grid.cells.values(), (2.0, 3.0), strict=True
    ):
        rows = [header(cell.run), validation(1, loss=1.0), validation(2, loss=loss), end(2)]
        record(study, cell.run, log(*rows))
    assert ask(study, "SELECT lr_scale, update, val_loss FROM final") == [(0.5, 2, 2.0)]


def test_bits_per_byte_compare_tokenizers_and_are_absent_where_no_bytes_were_counted(study, runs):
    for run, n_bytes in zip(runs, (4.0, None), strict=False):
        known = replace(header(run), bytes_per_token=n_bytes)
        live(study, run, log(known, validation(1, loss=math.log(16))))
    found = ask(
        study,
        "SELECT val_loss / ln(2), bits_per_byte FROM validation JOIN cells USING (run) "
        "ORDER BY place",
    )
    assert found == [(pytest.approx(4), pytest.approx(1)), (pytest.approx(4), None)]


def test_equal_logs_make_equal_exports(study, runs):
    for run in runs[:2]:
        record(study, run, log(header(run), *(update(n) for n in range(1, 500)), end(499)))
    store.build(study)
    before = {p.name: p.read_bytes() for p in (study / "store").glob("*.parquet")}
    store.build(study)
    assert {p.name: p.read_bytes() for p in (study / "store").glob("*.parquet")} == before
    assert sorted(before) == sorted(f"{name}.parquet" for name in EXPORTS)
    assert not list((study / "store").glob(".build-*"))


def test_the_database_for_people_has_tables_and_views(study, runs):
    live(study, runs[0], WHOLE)
    store.build(study)
    with duckdb.connect(study / "store" / "store.duckdb", read_only=True) as db:
        assert db.sql("SELECT count(*) FROM training").fetchall() == [(2,)]


def test_no_run_at_all_is_an_empty_store(study):
    assert ask(study, "SELECT count(*) FILTER (status = 'pending') FROM status") == [(3,)]


@pytest.mark.parametrize("text", ["", '{"run": "x"', '{"run": "x"}', "[]"])
def test_a_damaged_record_is_shown_and_keeps_nobody_from_reading_the_others(
    study, runs, text, capsys
):
    for run in runs[:2]:
        record(study, run, log(header(run), update(1), update(2), end(2)))
    path = study / "runs" / runs[0] / "run.json"
    path.write_text(text)
    store.build(study)
    statuses = f"SELECT status, message FROM status WHERE run IN {tuple(runs[:2])} ORDER BY status"
    (damaged, done) = ask(study, statuses)
    assert (damaged[0], done[0]) == ("damaged", "done")
    assert str(path) in damaged[1]
    assert f"lmscaling reset {runs[0]}" in damaged[1]
    assert str(path) in capsys.readouterr().err


def test_a_record_with_a_flipped_bit_is_named_and_its_copy_used(study, runs, capsys):
    record(study, runs[0], log(header(runs[0]), update(1), update(2), end(2)))
    path = study / "runs" / runs[0] / "run.json"
    values = json.loads(path.read_text())
    copy = study / "scratch" / runs[0] / "run.json"
    for place in (path, copy):
        files.write_record(place, values)
    path.write_text(path.read_text().replace('"updates": 2', '"updates": 3'))
    store.build(study)
    assert ask(study, f"SELECT updates FROM runs WHERE run = '{runs[0]}'") == [(2,)]
    said = capsys.readouterr().err
    assert "is damaged: its values differ from its record_sha256" in said
    assert f"{copy} is used in its place" in said
    copy.unlink()
    store.build(study)
    assert ask(study, f"SELECT status FROM runs WHERE run = '{runs[0]}'") == [("damaged",)]


def test_a_failed_attempt_shows_as_held_with_its_reason(study, runs):
    live(study, runs[0], log(header(runs[0]), update(1), end(1, status="held")))
    query = f"SELECT status FROM status WHERE run = '{runs[0]}'"
    assert ask(study, query) == [("held",)]


def test_a_study_that_is_not_there_names_those_that_are(study):
    with pytest.raises(UserError, match="does not exist; studies: nearest is"):
        store.build(study.parent / (study.name + "x"))


def noisy(n: int, sigma: float = 0.02, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 3 + 7 * np.exp(-np.arange(n) / 15) + rng.normal(0, sigma, n)


def train(study, run, losses):
    rows = [update(i + 1, loss=loss) for i, loss in enumerate(losses)]
    record(study, run, log(header(run), *rows, end(len(rows))), updates=len(rows))


STABILITY = (
    "SELECT spikes, spikes_per_10000_updates, highest_spike, nonfinite_losses FROM stability"
)


def test_planted_spikes_are_counted_each_once(study, runs):
    losses = noisy(2000)
    planted = [200, 201, 700, 1500, 1999]
    losses[planted] += [1.0, 0.8, 0.5, 2.0, 0.4]
    train(study, runs[0], losses.tolist())
    ((spikes, rate, highest, lost),) = ask(study, STABILITY)
    assert ask(study, "SELECT update FROM spikes ORDER BY update") == [(u + 1,) for u in planted]
    assert (spikes, rate, lost) == (5, 25.0, 0)
    assert highest == pytest.approx(2.0, abs=0.1)


def test_spikes_are_those_of_the_definition_computed_plainly(study, runs):
    losses = np.random.default_rng(5).standard_cauchy(600)
    train(study, runs[0], losses.tolist())
    expected = []
    for i in range(32, len(losses)):
        before = losses[max(0, i - 128) : i]
        height = losses[i] - np.median(before)
        spread = 1.4826 * np.median(np.abs(before - np.median(before)))
        if height > 0.05 and height > 7 * spread:
            expected.append((i + 1, pytest.approx(height)))
    assert len(expected) > 10
    assert ask(study, "SELECT update, height FROM spikes ORDER BY update") == expected


def test_recoveries_are_those_of_the_function_and_have_a_median(study, runs):
    losses = noisy(1500)
    losses[[200, 203, 700, 1000]] += [1.0, 0.8, 0.5, 0.7]
    losses[701:720] += 0.5
    train(study, runs[0], losses.tolist())
    found, _ = spikes.find(losses)
    first, lasted = spikes.recoveries(losses, found)
    assert len(first) == 3 < len(found)
    query = "SELECT update, recovery FROM spikes WHERE recovery IS NOT NULL ORDER BY update"
    assert ask(study, query) == list(zip((first + 1).tolist(), lasted.tolist(), strict=True))
    assert ask(study, "SELECT median_recovery FROM stability") == [(sorted(lasted)[1],)]


def test_an_upset_at_the_end_is_never_over(study, runs):
    losses = noisy(300)
    losses[298:] += 1.0
    train(study, runs[0], losses.tolist())
    assert ask(study, "SELECT isinf(median_recovery) FROM stability") == [(True,)]


@pytest.mark.parametrize("sigma", [0.002, 0.02, 0.2])
def test_noise_a_rising_loss_and_a_step_down_are_no_spikes(study, runs, sigma):
    losses = noisy(3000, sigma)
    losses[1000:] += np.linspace(0, 20 * sigma, 2000)
    losses[2000:] -= 1.0
    train(study, runs[0], losses.tolist())
    assert ask(study, STABILITY) == [(0, 0.0, None, 0)]


def test_a_step_up_is_a_spike_until_half_of_what_came_before_is_as_high(study, runs):
    losses = np.where(np.arange(1000) < 500, 3.0, 4.0) + noisy(1000, 0.02) - noisy(1000, 0)
    train(study, runs[0], losses.tolist())
    first, last, n = ask(study, "SELECT min(update), max(update), count(*) FROM spikes")[0]
    assert first == 501
    assert last - first + 1 == n <= 64


def test_what_is_high_but_within_a_twentieth_of_a_nat_is_no_spike(study, runs):
    flat = [3.0] * 200
    flat[100], flat[150] = 3.049, 3.051
    train(study, runs[0], flat)
    assert ask(study, "SELECT update FROM spikes") == [(151,)]


def test_fewer_than_32_updates_are_too_few_to_call_a_spike(study, runs):
    losses = [3.0] * 40
    losses[31], losses[32] = 9.0, 9.0
    train(study, runs[0], losses)
    assert ask(study, "SELECT update FROM spikes") == [(33,)]


def test_losses_that_are_no_number_are_counted_and_not_compared(study, runs):
    losses: list[float | None] = noisy(300).tolist()
    losses[100] = losses[101] = None
    losses[102] = 9.0
    train(study, runs[0], losses)
    assert ask(study, "SELECT update FROM spikes") == [(103,)]
    assert ask(study, "SELECT spikes, nonfinite_losses FROM stability") == [(1, 2)]


def test_what_was_trained_again_has_no_spikes(study, runs):
    first = noisy(300)
    first[250] += 1
    rows = [update(i + 1, loss=loss) for i, loss in enumerate(first)]
    live(study, runs[0], log(header(runs[0]), *rows))
    again = [update(i + 1, attempt=2, loss=loss) for i, loss in enumerate(noisy(300)) if i >= 200]
    live(study, runs[0], log(header(runs[0], 2, start=200), *again), attempt=2)
    assert ask(study, STABILITY) == [(0, 0.0, None, 0)]


@pytest.fixture
def branched(study, values):
    """Both trunks done at update 4, of each two planned branches that of the first's half done."""
    values |= {"branches": {"shares": [0.5, 1.0]}, "skip": []}
    (study / "study.json").write_text(json.dumps({"command": "", "study": values}))
    laid_out = study_file.read_record(study / "study.json").grid
    for run in laid_out.cells:
        rows = [row for n in (1, 2, 3, 4) for row in (update(n), validation(n, loss=4 - n / 10))]
        record(study, run, log(header(run), *rows, end(4)), updates=4)
    run = next(iter(laid_out.branches))
    rows = [update(2), validation(2, loss=3.5)]
    record(study, run, log(header(run, start=1), *rows, end(2)))
    return study, laid_out, run


def test_branches_are_in_no_view_of_trunks(branched):
    study, _, run = branched
    assert ask(study, "SELECT count(*), count(DISTINCT run) FROM status") == [(4, 4)]
    for view, rows in (("validation", 16), ("training", 16), ("final", 4), ("last_validation", 4)):
        branches = "run IN (SELECT run FROM cells WHERE branch IS NOT NULL)"
        counts = f"SELECT count(*), count(*) FILTER ({branches}) FROM {view}"
        assert ask(study, counts) == [(rows, 0)]
    assert ask(study, f"SELECT in_study FROM runs WHERE run = '{run}'") == [(True,)]


def test_an_endpoint_counts_its_whole_trajectory_beside_its_trunk_at_that_time(branched):
    study, laid_out, run = branched
    columns = "run, trunk, share, update, tokens, val_loss, trunk_val_loss, params"
    assert ask(study, f"SELECT {columns} FROM endpoints") == [
        (run, laid_out.branches[run].trunk, 0.5, 2, 128, 3.5, 3.8, 100)
    ]
    assert ask(study, "SELECT hours * 3600, trunk_hours * 3600, flops FROM endpoints") == [
        (pytest.approx(2), pytest.approx(2), 128 * 600.0)
    ]


def test_a_branch_that_is_not_done_or_has_no_loss_is_no_endpoint(branched):
    study, laid_out, run = branched
    _, other, third, *_ = laid_out.branches
    live(study, other, log(header(other, start=3), update(4), validation(4)))
    record(study, third, log(header(third, start=1), end(1)), "no_trunk", updates=1)
    assert ask(study, "SELECT run FROM endpoints") == [(run,)]
    assert ask(study, "SELECT status FROM planned WHERE branch IS NOT NULL ORDER BY place")[:3] == [
        ("done",), ("running",), ("no_trunk",),
    ]  # fmt: skip


def test_an_endpoint_whose_trunk_has_no_validation_yet_stands_alone(branched):
    study, laid_out, run = branched
    (study / "runs" / laid_out.branches[run].trunk / "log.jsonl").write_bytes(b"")
    assert ask(study, "SELECT run, trunk_val_loss FROM endpoints") == [(run, None)]


def timed(study, method, seconds, size="s", device="gpu", **values):
    """One series of the speed study: its times by context, None where memory did not suffice."""
    attention, _, implementation = method.partition(" ")
    folder = study / "speed" / "time_step" / f"{size}-0"
    folder.mkdir(parents=True, exist_ok=True)
    for context, time in seconds.items():
        made = {
            "kind": "time_step", "sweep": f"{size}-0", "size": size, "attention": attention,
            "implementation": implementation, "n_layer": 1, "n_head": 1, "d_head": 8,
            "params": 100, "context": context, "batch": 1, "chunk": None, "passes": "",
            "dtype": "float32", "compiled": False, "captured": False, "warm_up": 1, "repeats": 3,
            "updates": 0, "loss": None, "accuracy": None, "peak_memory_bytes": None,
            "status": "done" if time else "oom", "message": "", "started": "a", "device": device,
            "environment": ENVIRONMENT | {"device": device},
        } | {
            f"{part}_seconds": time
            for part in ("least", "lower", "median", "upper", "most", "mean", "sd")
        } | values  # fmt: skip
        line = timing.Measurement(**made)
        text = json.dumps({"record": line.record, **vars(line)})
        (folder / f"{method}-{device}-{context}.json").write_text(text)


CROSSINGS = [
    ("always", {16: 1.0, 32: 1.0}, {16: 2.0, 32: 4.0}, (None, None, None, 16, 32)),
    ("never", {16: 3.0, 32: 5.0}, {16: 2.0, 32: 4.0}, (None, None, None, 16, 32)),
    ("never", {16: 1.0, 32: 1.0}, {16: 1.0, 32: 1.0}, (None, None, None, 16, 32)),  # ties
    ("always", {16: 1.0}, {16: 2.0, 32: 2.0}, (None, None, None, 16, 16)),  # one point only
    ("from", {16: 2.0, 64: 2.0}, {16: 1.0, 64: 4.0}, (32, 16, 64, 16, 64)),
    ("from", {16: 2.0, 32: 2.0, 64: 2.0}, {16: 1.0, 32: 2.0, 64: 4.0}, (32, 32, 64, 16, 64)),
    ("from", {16: 2.0, 32: None, 64: 2.0}, {16: 1.0, 32: 2.0, 64: 4.0}, (32, 16, 64, 16, 64)),
    ("until", {16: 1.0, 64: 4.0}, {16: 2.0, 64: 2.0}, (32, 16, 64, 16, 64)),
    ("until", {16: 1.0, 64: 2.0}, {16: 2.0, 64: 2.0}, (64, 16, 64, 16, 64)),  # ends in a tie
    ("several", {16: 1.0, 32: 3.0, 128: 1.0}, {16: 3.0, 32: 1.0, 128: 3.0}, (64, 32, 128, 16, 128)),
]  # fmt: skip


@pytest.mark.parametrize(("status", "challenger", "baseline", "expected"), CROSSINGS)
def test_a_crossing_is_where_both_take_the_same_time(study, status, challenger, baseline, expected):
    timed(study, "linear chunked", challenger)
    timed(study, "softmax flash", baseline)
    ((found, *rest),) = ask(
        study, "SELECT status, context, low, high, shortest, longest FROM crossings"
    )
    assert found == status
    assert rest == [pytest.approx(e) if e else None for e in expected]


def test_a_crossing_is_that_of_one_setup_one_size_and_one_pair(study):
    timed(study, "linear chunked", {16: 1.0, 32: 1.0})
    timed(study, "softmax flash", {16: 0.5}, device="another gpu")
    timed(study, "softmax flash", {16: 0.5}, size="m")
    timed(study, "softmax no_flash", {16: 0.5, 32: 0.5})
    timed(study, "linear state", {16: 0.5, 32: 0.5})
    assert ask(study, "FROM crossings") == []
    timed(study, "softmax flash", {16: 2.0, 32: 0.1})
    query = (
        "SELECT size, challenger, baseline, fused, status, least_ratio, most_ratio FROM crossings"
    )
    pair = ("s", "linear chunked", "softmax fused")
    assert ask(study, query) == [(*pair, "softmax flash", "until", 0.1, 2.0)]
    timed(study, "softmax cudnn", {16: 1.5, 32: 0.5})  # the fastest of each context counts
    assert ask(study, query) == [(*pair, "softmax cudnn or softmax flash", "until", 0.1, 1.5)]


def test_steps_of_constant_tokens_are_one_series_and_batches_of_sampling_are_several(study):
    for context, batch, seconds in ((16, 4, 1.0), (32, 2, 3.0)):
        timed(study, "linear chunked", {context: 2.0}, batch=batch)
        timed(study, "softmax flash", {context: seconds}, batch=batch)
    assert ask(study, "SELECT status, batch, most_batch, low, high FROM crossings") == [
        ("from", 2, 4, 16, 32)
    ]
    for batch, contexts in ((1, (16, 32)), (3, (64, 128))):
        for method in ("linear", "softmax"):
            times = dict.fromkeys(contexts, 1.0)
            timed(study, method, times, kind="time_decode", batch=batch)
    query = "SELECT batch, most_batch, longest FROM crossings WHERE kind = 'time_decode' ORDER BY 1"
    assert ask(study, query) == [(1, 1, 32), (3, 3, 128)]
