"""The jobs of a study, and time limits of those of a cell."""

import math
from collections import Counter

from lmscaling.config import sweeps
from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.config.grid import Grid
from lmscaling.config.schedule import BRANCH_AT
from lmscaling.plan import calibrations, text_needs
from lmscaling.types import Split

MARGIN = 1.25
"""Factor from budget to time limit: the budget excludes validation, start-up and reading."""

MINUTES = 60
"""Added to every time limit; includes the last minutes, in which a job is asked to stop."""

UNTIMED = 48 * 60
"""Time limit in minutes for a budget in updates or tokens, whose duration is unknown."""

SPARE_SECONDS, SPARE_SHARE = 600.0, 0.1
"""An attempt stops this long, or this share of a shorter limit, before the limit of its job. The
rest is for one update, a validation and a checkpoint."""

OF_STUDY = ("study", "plan", "collect", "draw", "report")
"""Rules that run once in a study."""


def counts(grid: Grid) -> dict[str, int]:
    """Jobs of a study by rule, if nothing of it is done; branches of a trunk share a job."""
    made: Counter[str] = Counter(OF_STUDY)
    splits: tuple[Split, ...] = ("train", "validation")
    for tokens, corpus in grid.corpora.items():
        for split in splits:
            n = len(text_needs.chunks(corpus.source, split, grid.n_shards(tokens, split)))
            made["tokenize"] += n
        made["manifest"] += 1
        made["verify"] += tokens in grid.trained
    if grid.vocabulary:
        made["vocabulary"] = 1
    made["check"] = len(grid.checked)
    made["calibrate"] = len(calibrations.chosen(grid))
    made["train"] = len(grid.cells) + len(grid.tasks)
    made["branch"] = sum(bool(cell.keep) for cell in grid.cells.values())
    made["evaluate"] = len(grid.evaluated) * len(
        grid.study.evaluate.datasets if grid.study.evaluate else []
    )
    made["draw_images"] = len(grid.drawing)
    made["check_kernels"] = 1 if sweeps.kernels(grid.study) else 0
    made.update(sweep.kind for sweep in sweeps.expand(grid.study).values())
    return {rule: n for rule, n in made.items() if n}


def job_minutes(seconds: float | None, job_hours: float) -> int:
    """Time limit of one training job, minutes.

    Args:
        seconds: Productive time that is left to do; None if it is unknown.
        job_hours: Longest job of the study.
    """
    needed = UNTIMED if seconds is None else MARGIN * seconds / 60 + MINUTES
    return math.ceil(min(needed, 60 * job_hours))


def spare_seconds(job_hours: float) -> float:
    """Seconds before its limit at which a training job is asked to stop, and stops itself."""
    return min(SPARE_SECONDS, SPARE_SHARE * 3600 * job_hours)


def stop_seconds(seconds: float | None, job_hours: float) -> float:
    """Seconds after its start at which a training job stops itself."""
    limit = min(3600 * job_hours, 60 * job_minutes(seconds, job_hours))
    return limit - spare_seconds(job_hours)


def productive_seconds(cell: Cell, reached: float = 0.0) -> float | None:
    """Productive time that a run still needs, seconds; None if its budget is not a time.

    Args:
        cell: The run. A branch begins with the productive time of its trunk.
        reached: Productive seconds at its last checkpoint; 0 without one.
    """
    seconds = parse_budget(cell.budget).seconds
    if seconds is None:
        return None
    end = seconds * (cell.branch or 1.0)
    own = (1 - BRANCH_AT) * end if cell.branch else end
    return min(own, max(0.0, end - reached))
