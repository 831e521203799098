"""The productive clock: which seconds count towards a budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmscaling.train.clock import Clock

passing = st.lists(st.tuples(st.booleans(), st.integers(0, 1000)))
"""Time that passes in a bracket or not."""


class Time:
    """A time that passes when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


def bracket(time, clock, seconds):
    with clock.excluded():
        time.passes(seconds)


@given(st.integers(0, 1000), passing, st.lists(passing))
def test_what_counts_is_the_time_since_the_start_outside_of_brackets(seconds, before, updates):
    """Of each update by itself; what came before the start, in a bracket or not, does not count."""
    time = Time()
    clock = Clock(seconds, now=time)
    for started, parts in enumerate([before, *updates]):
        for is_bracketed, length in parts:
            bracket(time, clock, length) if is_bracketed else time.passes(length)
            seconds += length if started and not is_bracketed else 0
        if started:
            assert clock.tick() == clock.seconds == seconds
        else:
            clock.start()


def test_a_bracket_that_ends_with_an_error_is_left_out():
    time = Time()
    clock = Clock(now=time)
    clock.start()

    def fail():
        with clock.excluded():
            time.passes(4)
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    time.passes(1)
    assert clock.tick() == 1


def test_a_clock_runs_from_its_creation_and_anew_from_its_start():
    time = Time()
    clock = Clock(seconds=7, now=time)
    time.passes(2)
    assert clock.tick() == 9
    time.passes(5)
    clock.start()
    time.passes(1)
    assert clock.tick() == 10
