"""How long the jobs of a cell may take, and how many it needs one after another."""

import math

from lmscaling.config.budget import SECONDS, parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import BRANCH_AT

MARGIN = 1.25
"""Time limit of a job over its budget: validation, start-up and reading are not productive time."""

MINUTES = 60
"""Added to every limit; also covers the last minutes in which a job is told to stop."""

UNTIMED = 48 * 60
"""Minutes for a budget in updates or tokens, whose time nobody knows beforehand."""

SPARE_SECONDS, SPARE_SHARE = 600.0, 0.1
"""An attempt stops so long before the limit of its job, or at this share of a shorter limit: time
for an update, a validation and a checkpoint."""

START_SECONDS, START_SHARE = 600.0, 0.4
"""What an attempt may take until its first update, or this share of a shorter limit."""


def job_minutes(cell: Cell, job_hours: float) -> int:
    """Time limit of one training job, minutes."""
    seconds = productive_seconds(cell)
    needed = UNTIMED if seconds is None else MARGIN * seconds / 60 + MINUTES
    return math.ceil(min(needed, 60 * job_hours))


def spare_seconds(job_hours: float) -> float:
    """How long before its limit a training job is asked to stop, and stops itself."""
    return min(SPARE_SECONDS, SPARE_SHARE * 3600 * job_hours)


def stop_seconds(cell: Cell, job_hours: float) -> float:
    """When a training job stops itself, seconds from its start."""
    limit = min(3600 * job_hours, 60 * job_minutes(cell, job_hours))
    return limit - spare_seconds(job_hours)


def job_count(cell: Cell, job_hours: float) -> int:
    """Jobs that a run may need one after another if nothing goes wrong."""
    limit = 3600 * job_hours
    usable = limit - spare_seconds(job_hours) - min(START_SECONDS, START_SHARE * limit)
    return math.ceil(MARGIN * (productive_seconds(cell) or 60 * UNTIMED) / usable)


def productive_seconds(cell: Cell) -> float | None:
    """What the budget of a cell asks for; None if it is no time."""
    amount, unit = parse_budget(cell.budget)
    share = (1 - BRANCH_AT) * cell.branch if cell.branch else 1.0
    return share * amount * SECONDS[unit] if unit in SECONDS else None
