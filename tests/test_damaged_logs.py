"""Logs become rows: none is invented, and none is lost."""

import copy
import errno
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Any

import collecting
import pytest
import test_store
from conftest import ROOT, STUDY
from test_store import end, exported, header, live, log, record, runs, study, update, validation

from lmscaling import files
from lmscaling.records import run as records
from lmscaling.store import EXPORTS, FITTED, logs
from lmscaling.store import build as store

__all__ = ["runs", "study"]


def attempts() -> list[list[records.Row]]:
    """The log of a run that was killed twice and trained some updates again."""
    first = [header("r"), *(update(n) for n in range(1, 8)), validation(4)]
    second = [header("r", 2, 4), *(update(n, 2, 2.5) for n in range(5, 11)), validation(8, 2)]
    third = [header("r", 3, 8), *(update(n, 3, 2.0) for n in range(9, 13)), validation(12, 3)]
    return [first, second, [*third, end(12, 3)]]


def mutate(rows: list[records.Row], rng: random.Random) -> list[records.Row]:
    """The same with lines lost, repeated, changed and reordered, each in half of the logs."""
    if rng.random() < 0.5:
        rows = [row for row in rows if rng.random() < 0.8]
    if rng.random() < 0.5:
        rows = [row for row in rows for _ in range(rng.choice((1, 1, 2, 4)))]
    if rng.random() < 0.5:
        rows = [*rows, *(changed(row) for row in rows if rng.random() < 0.1)]
    if rng.random() < 0.5:
        rng.shuffle(rows)
    return rows


def changed(row: Any) -> Any:
    other = {
        "header": {"start_update": getattr(row, "start_update", 0) + 1},
        "update": {"train_loss": 9.0}, "validation": {"val_loss": 9.0},
        "end": {"status": "interrupted"},
    }  # fmt: skip
    return replace(row, **other[row.record])


def expected(rows: list[Any]) -> tuple[dict, dict, int]:
    """The versions of each line by its key, possible starts of each attempt, and conflicts."""
    versions: dict[tuple, list[Any]] = {}
    for row in rows:
        at = row.update if row.record in ("update", "validation") else 0
        found = versions.setdefault((row.record, row.attempt, at), [])
        if row not in found:
            found.append(row)
    starts: dict[int, set[int]] = {}
    for n in {row.attempt for row in rows}:
        headers = {row.start_update for row in versions.get(("header", n, 0), [])}
        updates = {place - 1 for kind, a, place in versions if (kind, a) == ("update", n)}
        others = {row.update for row in rows if row.attempt == n and row.record != "header"}
        starts[n] = headers or {min(updates or others)}
    return versions, starts, sum(len(found) - 1 for found in versions.values())


def by_run(folder, query):
    found: dict[str, list[tuple]] = {}
    for run, *row in exported(folder, query):
        found.setdefault(run, []).append(tuple(row))
    return found


def test_each_row_and_attempt_is_there_once_whatever_became_of_its_lines(study):
    """What an attempt lost does not survive; lines that contradict each other count as damaged."""
    folder, made = study, {}
    for seed in range(200):
        rng, run = random.Random(seed), f"run-{seed:03d}"
        rows = [row for part in attempts() for row in mutate(part, rng)]
        if rng.random() < 0.3:  # a permutation across attempts, as in a log that was joined wrongly
            rng.shuffle(rows)
        if rows:
            made[run] = rows
        if rows and seed % 2:
            record(folder, run, log(*rows), updates=12)
        for n in (1, 2, 3) if rows and not seed % 2 else ():
            live(folder, run, log(*(row for row in rows if row.attempt == n)), n)
    store.build(folder)
    losses = {"update": "train_loss", "validation": "val_loss"}
    found = {
        kind: by_run(folder, f"SELECT run, attempt, update, {loss} FROM {kind}s")
        for kind, loss in losses.items()
    }
    starts = by_run(folder, "SELECT run, attempt, start_update FROM attempts")
    surviving = by_run(folder, "SELECT run, attempt, update FROM updates WHERE surviving")
    counted = by_run(folder, "SELECT run, damaged_lines, lines FROM runs")
    assert counted.keys() == made.keys()
    for run, rows in made.items():
        versions, possible, conflicts = expected(rows)
        for kind, loss in losses.items():
            ours = found[kind].get(run, [])
            keys = [(a, u) for k, a, u in versions if k == kind]
            assert sorted(row[:2] for row in ours) == sorted(keys), run
            for a, u, value in ours:
                assert value in [getattr(row, loss) for row in versions[kind, a, u]], run
        begun = dict(starts[run])
        assert sorted(n for n, _ in starts[run]) == sorted(possible), run
        assert all(begun[n] in possible[n] for n in possible), run
        updates = [(a, u) for kind, a, u in versions if kind == "update"]
        kept = [(a, u) for a, u in updates if all(u <= s for n, s in begun.items() if n > a)]
        assert sorted(surviving.get(run, [])) == sorted(kept), run
        assert counted[run] == [(conflicts, len(rows))]


def rows_of(db, run):
    """What the tables say of a run, whose name is left out."""
    known = f"FROM {{}} WHERE run = '{run}' ORDER BY ALL"
    columns = "status, updates, tokens, train_seconds, damaged_lines, superseded_rows"
    tables = ("updates", "validations", "gradients", "attempts")
    queries = [f"SELECT * EXCLUDE (run) {known.format(name)}" for name in tables]
    queries.append(f"SELECT {columns} {known.format('runs')}")
    return [db.sql(query).fetchall() for query in queries]


def test_the_order_of_lines_and_repeated_lines_change_no_row(study):
    """A log whose lines contradict each other, too: the choice among them has no order either."""
    whole = [row for part in attempts() for row in part] + [test_store.gradients(10)]
    damaged = [*whole, *(changed(row) for row in whole[::3] if row.record != "gradients")]
    for name, rows in (("whole", whole), ("damaged", damaged)):
        for i in range(20):
            rng = random.Random(i)
            times = rng.choices((1, 2, 3), k=len(rows)) if i % 2 else [1] * len(rows)
            made = [row for row, n in zip(rows, times, strict=True) for _ in range(n)]
            rng.shuffle(made)
            record(study, f"{name}-{i}", log(*(made if i else rows)), updates=12)
    store.build(study)
    with store.connect(study / "store") as db:
        for name in ("whole", "damaged"):
            first = rows_of(db, f"{name}-0")
            assert [len(part) for part in first] == [17, 3, 1, 3, 1]
            assert all(rows_of(db, f"{name}-{i}") == first for i in range(1, 20))


HEADER, LINE, LAST = records.line(header("r")), records.line(update(1)), records.line(update(2))
NOISE = random.Random(0).randbytes(999).replace(b"\n", b"")
DAMAGE = {
    "nothing": (HEADER + LINE + LAST, [1, 2], 0),
    "no newline": (HEADER + LINE + LAST[:-1], [1, 2], 0),
    **{f"torn at {n}": (HEADER + LINE + LAST[:n], [1], 1) for n in range(1, len(LAST) - 1, 7)},
    "torn by a bracket": (HEADER + LINE + LAST[:-2], [1], 1),
    "torn and zeros": (HEADER + LINE + LAST[:30] + bytes(100), [1], 1),
    "torn and a line": (HEADER + LINE + LINE[:30] + b"\n" + LAST, [1, 2], 1),
    "no number": (HEADER + LINE + LAST.replace(b'"tokens": 128', b'"tokens": "x"'), [1], 1),
    "no records": (HEADER + LINE + b"[1]\n17\n" + LAST, [1, 2], 2),
    "zeros at the end": (HEADER + LINE + LAST + bytes(17 << 20), [1, 2], 1),
    "zeros in the middle": (HEADER + LINE + bytes(17 << 20) + b"\n" + LAST, [1, 2], 1),
    "zeros at the beginning": (bytes(17 << 20) + HEADER + LINE + LAST, [1, 2], 1),
    "only zeros": (bytes(33 << 20), [], 1),
    "a line of 20 MB": (HEADER + LINE + b'{"x": "' + b"x" * (20 << 20) + b'"}\n' + LAST, [1, 2], 1),
    "two of them": (HEADER + (b"x" * (2 << 20) + b"\n") * 2 + LINE + LAST, [1, 2], 2),
    "carriage returns": ((HEADER + LINE + LAST).replace(b"\n", b"\r\n"), [1, 2], 0),
    "noise": (HEADER + LINE + NOISE + b"\n" + LAST, [1, 2], 1),
    "invalid UTF-8": (HEADER + LINE + LAST[:40] + b"\xff\xfe" + LAST[40:] + LAST, [1, 2], 1),
    "UTF-16": ((HEADER + LINE).decode().encode("utf-16"), [], 3),
    "an empty file": (b"", [], 0),
    "brackets": (HEADER + LINE + b"[" * 100_000 + b"\n" + LAST, [1, 2], 1),
}  # fmt: skip


def test_damage_of_any_kind_costs_only_its_own_lines(study):
    for name, (data, _, _) in DAMAGE.items():
        (live if name.startswith("torn") else record)(study, name, data)
    store.build(study)
    query = "SELECT run, list(update ORDER BY update) FROM updates GROUP BY run"
    found = dict(exported(study, query))
    assert found == {name: updates for name, (_, updates, _) in DAMAGE.items() if updates}
    found = dict(exported(study, "SELECT run, damaged_lines FROM runs"))
    assert found == {name: lines for name, (_, _, lines) in DAMAGE.items()}
    assert not list((study / "store").glob(".build*"))


def parquet(study):
    return {path.name: path.read_bytes() for path in (study / "store").glob("*.parquet")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A study of two finished runs and one that is being trained, after a build."""
    folder = test_store.write_study(tmp_path_factory.mktemp("built"), copy.deepcopy(STUDY))
    runs = test_store.runs_of(folder)
    for i, run in enumerate(runs[:2]):
        rows = [update(n, loss=3.0 + i + n % 7 / 10) for n in range(1, 300)]
        record(folder, run, log(header(run), *rows, validation(200), end(299)))
    live(folder, runs[2], log(header(runs[2]), update(1)))
    store.build(folder)
    return folder


@pytest.fixture
def finished(built, study):
    """A copy that a test may change."""
    return shutil.copytree(built, study, dirs_exist_ok=True)


def test_a_build_reads_every_log_again_and_equal_logs_make_equal_exports(finished, runs):
    before = parquet(finished)
    assert before.keys() == {f"{name}.parquet" for name in (*EXPORTS, *FITTED)}
    store.build(finished)
    assert parquet(finished) == before
    path = finished / "runs" / runs[0] / "log.jsonl"
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"train_loss": 3.1', b'"train_loss": 4.1', 1))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    store.build(finished)
    query = f"SELECT max(train_loss) FROM updates WHERE run = '{runs[0]}'"
    assert exported(finished, query) == [(4.1,)]
    for run in runs[:2]:
        shutil.rmtree(finished / "runs" / run)
    store.build(finished)
    assert exported(finished, "SELECT DISTINCT run FROM updates") == [(runs[2],)]


def test_a_run_may_end_while_its_log_is_read(finished, runs, monkeypatch):
    readable = logs.readable

    def end_first(path, work):
        for log_of_attempt in finished.glob("scratch/*/attempt-*.jsonl"):
            log_of_attempt.unlink()
        return readable(path, work)

    monkeypatch.setattr(logs, "readable", end_first)
    store.build(finished)
    query = f"SELECT update FROM updates WHERE run = '{runs[2]}'"
    assert exported(finished, query) == [(1,)]


FULL = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
from lmscaling.errors import UserError
from lmscaling.store.build import build
try:
    build(Path(sys.argv[1]))
except UserError as error:
    print(error)
"""
"""A build whose files cannot grow beyond some bytes, as on a full disk."""


@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_a_full_disk_is_one_sentence_and_the_store_before_is_unchanged(finished, size):
    before = parquet(finished)
    (finished / "store" / store.CONTENTS).unlink()  # or it would not be built again
    command = [sys.executable, "-c", FULL, str(finished), str(size)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert said.returncode == 0, said.stderr
    assert str(finished) in said.stdout
    assert os.strerror(errno.EFBIG) in said.stdout
    assert parquet(finished) == before
    assert not list((finished / "store").glob(".*"))


def test_what_a_killed_build_has_left_is_removed_and_what_another_machine_writes_is_not(finished):
    writers = f"{files.HOST}.99999999.00", "elsewhere.1.00"
    killed, elsewhere = (finished / "store" / f".build.{writer}.tmp" for writer in writers)
    for path in (killed / "store.duckdb", elsewhere / "store.duckdb"):
        path.parent.mkdir()
        path.touch()
    (finished / "store" / store.CONTENTS).unlink()
    store.build(finished)
    assert not killed.exists()
    assert elsewhere.exists()


@pytest.mark.ci
def test_a_build_grows_with_its_rows_but_its_memory_does_not(tmp_path):
    """64 and 256 runs of 5,000 updates."""
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    small = collecting.build(collecting.study(tmp_path / "small", 64, 5000))
    large = collecting.build(collecting.study(tmp_path / "large", 256, 5000))
    assert large.seconds < 4 * small.seconds
    # A batch of logs is 400,000 rows; without batches a million rows more took 0.5 GB more.
    assert large.megabytes - small.megabytes < 300
