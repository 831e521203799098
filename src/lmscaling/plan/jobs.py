"""Time limits of the jobs of a cell, and how many jobs it needs one after another."""

import math

from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import BRANCH_AT

MARGIN = 1.25
"""Factor from budget to time limit: the budget excludes validation, start-up and reading."""

MINUTES = 60
"""Added to every time limit; includes the last minutes, in which a job is asked to stop."""

UNTIMED = 48 * 60
"""Time limit in minutes for a budget in updates or tokens, whose duration is unknown."""

SPARE_SECONDS, SPARE_SHARE = 600.0, 0.1
"""An attempt stops this long, or this share of a shorter limit, before the limit of its job. The
rest is for one update, a validation and a checkpoint."""

START_SECONDS, START_SHARE = 600.0, 0.4
"""Longest time until the first update of an attempt, or its share of a shorter limit."""


def job_minutes(cell: Cell, job_hours: float) -> int:
    """Time limit of one training job, minutes."""
    seconds = productive_seconds(cell)
    needed = UNTIMED if seconds is None else MARGIN * seconds / 60 + MINUTES
    return math.ceil(min(needed, 60 * job_hours))


def spare_seconds(job_hours: float) -> float:
    """Seconds before its limit at which a training job is asked to stop, and stops itself."""
    return min(SPARE_SECONDS, SPARE_SHARE * 3600 * job_hours)


def stop_seconds(cell: Cell, job_hours: float) -> float:
    """Seconds after its start at which a training job stops itself."""
    limit = min(3600 * job_hours, 60 * job_minutes(cell, job_hours))
    return limit - spare_seconds(job_hours)


def job_count(cell: Cell, job_hours: float) -> int:
    """Number of jobs that a run needs one after another if none fails."""
    limit = 3600 * job_hours
    usable = limit - spare_seconds(job_hours) - min(START_SECONDS, START_SHARE * limit)
    return math.ceil(MARGIN * (productive_seconds(cell) or 60 * UNTIMED) / usable)


def productive_seconds(cell: Cell) -> float | None:
    """Productive time of a cell in seconds; None if its budget is not a time."""
    seconds = parse_budget(cell.budget).seconds
    share = (1 - BRANCH_AT) * cell.branch if cell.branch else 1.0
    return None if seconds is None else share * seconds
