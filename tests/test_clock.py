"""The productive clock: which seconds count towards a budget."""

import pytest

from lmscaling.train.clock import Clock


class Time:
    """A time that passes when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


@pytest.fixture
def time():
    return Time()


def bracket(time, clock, seconds):
    with clock.excluded():
        time.passes(seconds)


def test_every_bracket_of_an_update_is_left_out(time):
    clock = Clock(now=time)
    clock.start()
    for seconds in (5, 11, 7):
        bracket(time, clock, seconds)
        time.passes(1)
    assert clock.tick() == 3


def test_a_bracket_is_left_out_of_one_update_only(time):
    clock = Clock(now=time)
    clock.start()
    bracket(time, clock, 5)
    time.passes(2)
    assert clock.tick() == 2
    time.passes(3)
    assert clock.tick() == 5
    assert clock.seconds == 5


def fail(time, clock):
    with clock.excluded():
        time.passes(4)
        raise OSError("full")


def test_a_bracket_that_ends_with_an_error_is_left_out(time):
    clock = Clock(now=time)
    clock.start()
    with pytest.raises(OSError, match="full"):
        fail(time, clock)
    time.passes(1)
    assert clock.tick() == 1


def test_what_comes_before_the_start_does_not_count(time):
    clock = Clock(now=time)
    bracket(time, clock, 6)
    time.passes(100)
    clock.start()
    time.passes(2)
    assert clock.tick() == 2


def test_the_clock_goes_on_from_the_seconds_of_a_checkpoint(time):
    clock = Clock(40.0, now=time)
    time.passes(9)
    clock.start()
    time.passes(2)
    assert clock.tick() == 42


def test_a_clock_runs_from_its_creation_and_anew_from_its_start(time):
    clock = Clock(seconds=7, now=time)
    time.passes(2)
    assert clock.tick() == 9
    time.passes(5)
    clock.start()
    time.passes(1)
    assert clock.tick() == 10
