"""Time limits of jobs at their limits: budgets that are no time, and limits that are short."""

from dataclasses import replace

import pytest

from lmscaling.plan import jobs


def test_a_budget_that_is_no_time_has_48_hours(cell):
    assert jobs.job_minutes(None, 100.0) == 48 * 60
    assert jobs.job_minutes(None, 10.0) == 600
    assert jobs.job_count(None, 100.0) == 1
    assert jobs.job_count(None, 24.0) == 3  # 60 hours with the margin, of 23 h 40 min each
    assert jobs.productive_seconds(cell) is None


@pytest.mark.parametrize(
    ("budget", "minutes"), [("1 hours", 135), ("30 minutes", 98), ("10 seconds", 61)]
)
def test_a_job_has_a_quarter_more_than_its_budget_and_an_hour(cell, budget, minutes):
    seconds = jobs.productive_seconds(replace(cell, budget=budget))
    assert jobs.job_minutes(seconds, 48.0) == minutes


def test_a_branch_has_a_fifth_of_its_share(cell):
    day = replace(cell, budget="24 hours", branch=0.25)
    assert jobs.productive_seconds(day) == pytest.approx(0.2 * 0.25 * 86400)


@pytest.mark.parametrize(("hours", "spare"), [(48, 600), (2, 600), (1, 360), (0.1, 36)])
def test_an_attempt_stops_ten_minutes_or_a_tenth_before_its_limit(hours, spare):
    assert jobs.spare_seconds(hours) == pytest.approx(spare)
    assert jobs.stop_seconds(None, hours) == pytest.approx(3600 * hours - spare)


def test_short_jobs_keep_half_of_their_limit_for_updates():
    """A tenth is spare and two fifths are for the start: 500 of 1000 seconds remain."""
    assert jobs.job_count(400.0, 1000 / 3600) == 1
    assert jobs.job_count(401.0, 1000 / 3600) == 2


def test_a_job_asks_for_the_time_that_is_left(cell):
    """A quarter more than one hour that is left of 24, and an hour; and one job is enough."""
    day = replace(cell, budget="24 hours")
    left = [jobs.productive_seconds(day, 3600.0 * hours) for hours in (0, 23, 24, 25)]
    assert left == [86400, 3600, 0, 0]
    assert [jobs.job_minutes(seconds, 24.0) for seconds in left] == [24 * 60, 75 + 60, 60, 60]
    assert [jobs.job_count(seconds, 24.0) for seconds in left] == [2, 1, 1, 1]
    assert jobs.stop_seconds(3600.0, 24.0) == pytest.approx(135 * 60 - 600)


def test_a_branch_has_spent_the_time_of_its_trunk(cell):
    half = replace(cell, budget="10 hours", branch=0.5)  # from 4 to 5 hours
    assert jobs.productive_seconds(half, 4.5 * 3600) == pytest.approx(1800)
    assert jobs.productive_seconds(half, 0.0) == pytest.approx(3600)
