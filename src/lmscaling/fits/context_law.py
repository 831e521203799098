"""The best training context of each size.

A short context withholds text that the model could use, a long one leaves fewer updates in the same
time, so the final loss has a minimum, estimated from the losses at the end of the budget
(``optimum``).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lmscaling.fits import optimum, paired_losses
from lmscaling.fits.optimum import OBJECTIVE, STARTS_SAID, STATUSES, Optimum
from lmscaling.fits.points import Group

__all__ = ["OBJECTIVE", "STARTS_SAID", "STATUSES", "fit_groups"]


def fit_groups(groups: Mapping[Any, Group]) -> dict[Any, Optimum]:
    """The best context of each group of points, which are of one attention and size."""
    found: dict[Any, Optimum] = dict.fromkeys(groups, Optimum(status="unknown_schedule"))
    known = {key: group for key, group in groups.items() if group.schedule != "unknown"}
    for key, (table, budgets, scatter, left_out, short) in paired_losses.prepare(
        known, "context", shares=(1,)
    ).items():
        if not budgets:
            found[key] = Optimum(status="too_few", short=short)
            continue
        best = optimum.fit(table, scatter)
        moved = None if best.at is None else optimum.most_influential(table)
        found[key] = replace(best, moved=moved, left_out=left_out, short=short)
    return found
