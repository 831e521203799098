"""The clock and the ledger of a run: what counts, survives kills, and adds up over attempts."""

from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import sentence
from hypothesis import given
from hypothesis import strategies as st

from lmscaling.records.ledger import (
    RECENT_BYTES,
    Entry,
    account,
    append,
    entries,
    hold,
    is_too_large,
    line,
    reached,
)
from lmscaling.train import journal
from lmscaling.train.budget import Clock
from lmscaling.train.journal import Journal


class Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


passing = st.lists(st.tuples(st.booleans(), st.integers(0, 1000)))
"""Time that passes in a bracket or not."""


@given(st.integers(0, 1000), passing, st.lists(passing))
def test_what_counts_is_the_time_since_the_start_outside_of_brackets(seconds, before, updates):
    """Of each update by itself; what came before the start, in a bracket or not, does not count."""
    time = Time()
    clock = Clock(seconds, now=time)
    for started, parts in enumerate([before, *updates]):
        for is_bracketed, length in parts:
            with clock.excluded() if is_bracketed else nullcontext():
                time.passes(length)
            seconds += length if started and not is_bracketed else 0
        if started:
            assert clock.tick() == clock.seconds == seconds
        else:
            clock.start()


def test_a_clock_runs_from_its_creation_and_leaves_out_a_bracket_that_ends_with_an_error():
    time = Time()
    clock = Clock(seconds=7, now=time)
    time.passes(2)
    with suppress(OSError), clock.excluded():
        time.passes(4)
        raise OSError("full")
    assert clock.tick() == 9


@pytest.fixture
def time(monkeypatch):
    """A time that passes when a test says so."""
    now = Time()
    monkeypatch.setattr(journal.time, "monotonic", now)
    return now.passes


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file for many examples."""
    return tmp_path_factory.mktemp("ledger") / "ledger.jsonl"


def entry(kind, attempt=1, train=0.0, spent=1.0, **values):
    given: Any = {"update": 0} | values
    return Entry(kind=kind, attempt=attempt, train_seconds=train, attempt_seconds=spent, **given)


def begun(folder, seconds):
    """The journal of an attempt, of whose budget so many seconds are spent."""
    cell = SimpleNamespace(run="run", gpus=0)
    budget: Any = SimpleNamespace(cell=cell, seconds=seconds)
    return Journal(folder / "scratch" / "run", budget, 1.0, {})


seconds = st.floats(0, 1e6)
written = st.lists(
    st.builds(
        entry,
        st.sampled_from(["beat", "checkpoint", "failed", "branch"]),
        st.integers(1, 999),
        seconds,
        seconds,
        update=st.integers(0, 10**9),
        reason=st.text(),
        end=st.none() | st.integers(0, 99),
    ),
    max_size=6,
)
"""Entries in any order."""


@given(written, st.data())
def test_a_ledger_cut_at_any_byte_has_its_complete_entries(path, made, data):
    lines = [line(one) for one in made]
    whole = b"".join(lines)
    at = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:at])
    # The end of a line may be missing where nothing else is.
    complete = sum(len(b"".join(lines[: n + 1])) <= at + 1 for n in range(len(lines)))
    assert entries(path) == entries(path, RECENT_BYTES) == made[:complete]


@given(written, written)
def test_an_attempt_after_a_cut_line_adds_whole_ones(path, made, more):
    path.write_bytes(b"".join(map(line, made))[:-3])
    for one in more:
        append(path, one)
    assert entries(path) == [*made[:-1], *more]
    assert b"\n\n" not in path.read_bytes()


@given(written.filter(bool), st.data())
def test_a_flipped_bit_of_a_ledger_changes_no_entry(path, made, data):
    """A line is as it was or left out, even if it falls into two."""
    whole = bytearray(b"".join(map(line, made)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    found = entries(path)
    assert all(one in made for one in found)
    assert len(made) - 2 <= len(found) <= len(made)


@given(written.filter(bool))
def test_a_tail_that_was_written_twice_changes_no_account(path, made):
    """As after a copy of the folder, or a write that a file server has repeated."""
    path.write_bytes(b"".join(map(line, [*made, made[-1]])))
    assert account(entries(path)) == account(made)
    assert reached(entries(path)) == reached(made)


attempt = st.tuples(st.floats(0, 100), st.lists(st.floats(0, 100), max_size=4), st.integers(0, 4))
"""Time before the first entry, times between the others, and which is the last checkpoint."""


@given(st.lists(attempt, max_size=6))
def test_an_account_is_the_sum_over_attempts_and_what_they_trained_is_lost_or_kept(attempts):
    made, kept, trained, spent = [], 0.0, 0.0, 0.0
    for number, (begun, steps, checkpoint) in enumerate(attempts, start=1):
        made.append(entry("begin", number, kept, begun))
        now, start, saved = begun, kept, kept
        for i, step in enumerate(steps):
            now, start = now + step, start + step
            is_saved = i == checkpoint
            made.append(entry("checkpoint" if is_saved else "beat", number, start, now))
            saved = start if is_saved else saved
        spent, trained, kept = spent + now, trained + sum(steps), saved
    found = account([*made, entry("begin", len(attempts) + 1, kept, 0.0)])
    assert found.attempt_seconds == pytest.approx(spent)
    assert found.lost_seconds == pytest.approx(trained - kept)
    assert reached(made) == pytest.approx(kept)


def test_what_is_lost_follows_from_where_the_next_attempt_begins():
    def lost(*rows):
        return account([entry(*row) for row in rows]).lost_seconds

    # A checkpoint that was written after later updates hides no lost time.
    assert lost(("begin", 1, 0), ("beat", 1, 50), ("checkpoint", 1, 40), ("begin", 2, 40)) == 10
    # An attempt that begins ahead of the last entry has lost nothing.
    assert lost(("begin", 1, 0), ("checkpoint", 1, 20), ("begin", 2, 25), ("beat", 2, 31)) == 0


def test_entries_say_how_long_the_attempt_runs(tmp_path, time):
    begun(tmp_path, 0.0).close()
    book = begun(tmp_path, 9.5)
    time(2)
    book.note("begin", 40, train_seconds=7.5)
    time(5)
    book.note("checkpoint", 50)
    time(1)
    book.note("branch", 50, end=80)
    first, second, third = book.entries
    assert (first.kind, first.attempt, first.update, first.train_seconds) == ("begin", 2, 40, 7.5)
    assert (second.train_seconds, third.train_seconds) == (9.5, 9.5)
    assert [e.attempt_seconds for e in (first, second, third)] == [2, 7, 8]
    assert [e.end for e in (first, second, third)] == [None, None, 80]


def test_a_beat_is_written_ten_seconds_after_the_last_entry_and_not_before(tmp_path, time):
    book = begun(tmp_path, 1.0)

    def after(seconds, update):
        time(seconds)
        book.beat(update)

    after(9.9, 1)
    assert book.entries == []
    after(0.1, 2)
    after(9.9, 3)
    book.note("checkpoint", 3)
    after(9.9, 4)
    assert [(e.kind, e.update) for e in book.entries] == [("beat", 2), ("checkpoint", 3)]
    after(0.1, 5)
    assert len(book.entries) == 3


def test_lines_that_are_no_entry_are_left_out_and_a_damaged_one_is_named(tmp_path, capsys):
    path = tmp_path / "ledger.jsonl"
    assert entries(path) == []
    path.write_bytes(b"7\n[1]\n\n" + line(entry("beat", update=2)) + b"{")
    assert [e.update for e in entries(path)] == [2]
    lines = [line(entry("beat", update=update)) for update in (1, 2, 3)]
    path.write_bytes(lines[0] + lines[1].replace(b'"update": 2', b'"update": 6') + lines[2])
    assert [one.update for one in entries(path)] == [1, 3]
    said = capsys.readouterr().err
    assert "ledger.jsonl line 2 " in said
    sentence("standard error", said)


def attempts(*kinds, **values):
    """Attempts that begin and end with these kinds of entries."""
    return [
        entry(kind, i, **(values if kind == "failed" else {}))
        for i, last in enumerate(kinds, start=1)
        for kind in ("begin", last)
    ]


@pytest.mark.parametrize(
    ("kinds", "held", "end"),
    [(["failed", "beat", "failed"], "2 attempts", "bug, on a"), (["beat"] * 5, "5 ", "checkpoint")],
)
def test_why_a_run_is_held_is_said(kinds, held, end):
    found = hold(attempts(*kinds, reason="bug", host="a"))
    assert found
    assert found.reason.startswith(held)
    assert found.reason.endswith(end)
    sentence("held", found.reason)


@given(st.lists(st.sampled_from(["beat", "checkpoint", "failed", "freed"]), max_size=12))
def test_two_failures_or_five_attempts_since_the_last_progress_need_a_person(kinds):
    since = kinds[
        max((i for i, k in enumerate(kinds, 1) if k in ("checkpoint", "freed")), default=0) :
    ]
    found = hold(attempts(*kinds))
    needs = since.count("failed") >= 2 or len(since) >= 5
    assert bool(found and found.needs_release) == needs
    assert bool(found) == (needs or kinds[-1:] == ["failed"])


@pytest.mark.parametrize("fault", ["device", "network", "disk"])
def test_faults_of_the_machine_never_need_a_person(fault):
    held = hold(attempts(*["failed"] * 9, fault=fault, reason="broken", host="a"))
    assert held
    assert (held.reason, held.needs_release) == ("broken, on a", False)
    assert hold(attempts(*["failed"] * 9, "begin", fault=fault)) is None


def test_a_model_is_too_large_if_memory_ended_twice_before_any_update():
    full = attempts("failed", "failed", fault="memory")
    assert is_too_large(full)
    assert not is_too_large(full[:2])
    assert not is_too_large(attempts("failed", "failed", fault="device"))
    assert not is_too_large([*full, entry("beat", 3, update=1)])
