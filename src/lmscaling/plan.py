"""What a study asks of a machine before it runs."""

from lmscaling.config import Study
from lmscaling.fields import SECONDS, parse_budget

MARGIN = 1.25
"""Time limit of a job over its budget: validation, start-up and reading are not productive time."""
MINUTES = 60
"""Added to every limit; also covers the last minutes in which a job is told to stop."""
UNTIMED = 48 * 60
"""Minutes for a budget in updates or tokens, whose time nobody knows beforehand."""


def job_minutes(study: Study) -> int:
    """Time limit of one training job, minutes."""
    amount, unit = parse_budget(study.budget)
    if unit not in SECONDS:
        return UNTIMED
    return int(MARGIN * amount * SECONDS[unit] / 60) + MINUTES
