"""The ledger of a run: entries survive kills, and add up to what all attempts have spent."""

import json

import pytest

from lmscaling.records.ledger import Entry, Kind, account, entries, hold, sick_nodes
from lmscaling.train import ledger
from lmscaling.train.ledger import Ledger


@pytest.fixture
def time(monkeypatch):
    """A time that passes when a test says so."""
    now = [100.0]
    monkeypatch.setattr(ledger.time, "monotonic", lambda: now[0])

    def passes(seconds):
        now[0] += seconds

    return passes


def test_entries_say_how_long_the_attempt_runs(tmp_path, time):
    with Ledger(tmp_path, 3) as book:
        time(2)
        book.write("begin", 40, 7.5)
        time(5)
        book.write("checkpoint", 50, 9.5)
        time(1)
        book.write("branch", 50, 9.5, end=80)
        assert book.branch_end() == 80
    first, second, third = entries(tmp_path / "ledger.jsonl")
    assert (first.kind, first.attempt, first.update, first.train_seconds) == ("begin", 3, 40, 7.5)
    assert [e.attempt_seconds for e in (first, second, third)] == [2, 7, 8]
    assert [e.end for e in (first, second, third)] == [None, None, 80]


def test_a_beat_is_written_ten_seconds_after_the_last_entry_and_not_before(tmp_path, time):
    with Ledger(tmp_path, 1) as book:
        time(9.9)
        book.beat(1, 1.0)
        assert entries(book.path) == []
        time(0.1)
        book.beat(2, 2.0)
        time(9.9)
        book.beat(3, 3.0)
        book.write("checkpoint", 3, 3.0)
        time(9.9)
        book.beat(4, 4.0)
        assert [(e.kind, e.update) for e in entries(book.path)] == [("beat", 2), ("checkpoint", 3)]
        time(0.1)
        book.beat(5, 5.0)
        assert len(entries(book.path)) == 3


def test_an_entry_is_on_the_disk_before_the_ledger_is_closed(tmp_path, time):
    book = Ledger(tmp_path, 1)
    book.write("begin", 0, 0.0)
    assert len(entries(tmp_path / "ledger.jsonl")) == 1
    with book:
        pass
    with pytest.raises(ValueError, match="closed"):
        book.write("beat", 1, 1.0)


def test_the_next_attempt_goes_on_after_a_line_that_was_cut(tmp_path, time):
    path = tmp_path / "ledger.jsonl"
    with Ledger(tmp_path, 1) as book:
        book.write("begin", 0, 0.0)
        book.write("checkpoint", 8, 4.0)
    path.write_bytes(path.read_bytes()[:-9])
    with Ledger(tmp_path, 2) as book:
        book.write("begin", 0, 0.0)
        book.write("beat", 1, 1.0)
    assert [(e.attempt, e.kind) for e in entries(path)] == [(1, "begin"), (2, "begin"), (2, "beat")]
    assert b"\n\n" not in path.read_bytes()


def test_lines_that_are_no_entry_are_left_out(tmp_path):
    path = tmp_path / "ledger.jsonl"
    assert entries(path) == []
    entry = {"kind": "beat", "attempt": 1, "update": 2, "train_seconds": 3, "attempt_seconds": 4}
    path.write_text(f"7\n[1]\n\n{json.dumps(entry)}\n{{")
    assert [e.update for e in entries(path)] == [2]


def test_an_attempt_that_begins_ahead_of_the_last_entry_has_lost_nothing(tmp_path, time):
    with Ledger(tmp_path, 1) as book:
        book.write("begin", 0, 0.0)
        time(30)
        book.write("checkpoint", 5, 20.0)
    with Ledger(tmp_path, 2) as book:
        book.write("begin", 5, 25.0)
        time(10)
        book.write("beat", 6, 31.0)
        spent = book.account()
    assert (spent.attempt_seconds, spent.lost_seconds) == (40, 0)
    assert account([]).attempt_seconds == 0
    assert book.branch_end() is None


def attempts(*kinds, **values):
    """Attempts that begin and end with these kinds of entries."""
    return [
        Entry(
            kind=kind, attempt=i, update=0, train_seconds=0.0, attempt_seconds=1.0,
            **(values if kind == "failed" else {}),
        )
        for i, last in enumerate(kinds, start=1)
        for kind in ("begin", last)
    ]  # fmt: skip


def test_two_failures_hold_a_run_and_so_do_five_attempts_unless_one_reached_a_checkpoint():
    assert hold(attempts("beat", "beat", "failed", "beat")) is None
    held = hold(attempts("failed", "beat", "failed", reason="bug", host="a"))
    assert held
    assert held.reason == "2 attempts in a row failed without a checkpoint: bug, on a"
    assert held.needs_release
    held = hold(attempts(*["beat"] * 5))
    assert held
    assert held.reason == "5 attempts in a row ended without a checkpoint"
    assert hold(attempts("failed", "beat", "checkpoint", "beat")) is None
    assert hold(attempts("failed", "failed", "freed", "beat")) is None


@pytest.mark.parametrize("fault", ["device", "network", "disk"])
def test_faults_of_the_machine_never_need_a_person(fault):
    held = hold(attempts(*["failed"] * 9, fault=fault, reason="broken", host="a"))
    assert held
    assert (held.reason, held.needs_release) == ("broken, on a", False)
    assert hold(attempts(*["failed"] * 9, "begin", fault=fault)) is None


def test_nodes_on_which_a_run_failed_are_known_until_its_next_checkpoint():
    first = attempts("failed", fault="device", host="node7")
    assert sick_nodes(first) == ["node7"]
    assert sick_nodes(attempts("failed", fault="disk", host="node7")) == []
    assert sick_nodes(attempts("failed", fault="device", host="a b;rm")) == []
    saved = Entry(kind="checkpoint", attempt=2, update=9, train_seconds=1.0, attempt_seconds=1.0)
    assert sick_nodes([*first, saved]) == []


def test_a_flipped_bit_of_a_ledger_is_named_and_its_line_left_out(tmp_path, capsys):
    with Ledger(tmp_path, 1) as book:
        for update in (1, 2, 3):
            book.write("beat", update, 1.0)
    data = bytearray(book.path.read_bytes())
    place = data.index(b'"update": 2') + len('"update": ')
    data[place] ^= 4  # 6
    book.path.write_bytes(data)
    assert [entry.update for entry in entries(book.path)] == [1, 3]
    assert "ledger.jsonl line 2 is not used: it is damaged" in capsys.readouterr().err


def test_a_ledger_of_an_earlier_version_is_read(tmp_path):
    entry = {"kind": "beat", "attempt": 1, "update": 2, "train_seconds": 3, "attempt_seconds": 4}
    (tmp_path / "ledger.jsonl").write_text(json.dumps(entry | {"end": None}) + "\n")
    assert [e.update for e in entries(tmp_path / "ledger.jsonl")] == [2]


def test_a_checkpoint_that_was_written_after_later_updates_hides_no_lost_time():
    rows: list[tuple[Kind, int, float]] = [
        ("begin", 1, 0.0), ("beat", 1, 50.0), ("checkpoint", 1, 40.0), ("begin", 2, 40.0),
    ]  # fmt: skip
    written = [
        Entry(kind=kind, attempt=n, update=0, train_seconds=seconds, attempt_seconds=1.0)
        for kind, n, seconds in rows
    ]
    assert account(written).lost_seconds == 10.0
