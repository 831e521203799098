"""The ledger of a run: entries survive kills, and add up to what all attempts have spent."""

import json

import pytest

from lmscaling.train import ledger
from lmscaling.train.ledger import Entry, Ledger, account, entries, reason_to_give_up


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


def test_two_failures_end_a_run_and_so_do_five_attempts_unless_one_reached_a_checkpoint():
    def attempts(*kinds):
        return [
            Entry(kind=kind, attempt=i, update=0, train_seconds=0.0, attempt_seconds=1.0)
            for i, last in enumerate(kinds, start=1)
            for kind in ("begin", last)
        ]

    assert reason_to_give_up(attempts("beat", "beat", "beat", "failed")) == ""
    assert "2 attempts in a row failed" in reason_to_give_up(attempts("failed", "beat", "failed"))
    assert "5 attempts in a row ended" in reason_to_give_up(attempts(*["beat"] * 5))
    assert reason_to_give_up(attempts("failed", "beat", "checkpoint", "failed")) == ""
