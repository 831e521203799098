"""Losses at the ends of runs: which spent their budget, and how seeds scatter."""

from typing import Any

import numpy as np
from pandas import DataFrame, Series

from lmscaling.fits.noise import Noise, Place, Spread

QUERY = """
    SELECT f.source, split, attention, size, f.params, context, seed, lr_scale, f.status,
        "update", f.tokens, f.hours, loss,
        CASE budget_unit
            WHEN 'updates' THEN "update" / budget_amount
            WHEN 'tokens' THEN f.tokens / budget_amount
            ELSE f.hours / budget_hours
        END AS spent
    FROM final f JOIN (SELECT run, budget_amount, budget_unit, budget_hours FROM known) USING (run)
    UNION ALL BY NAME
    SELECT source, 'validation' AS split, attention, size, params, context, seed, lr_scale, status
    FROM outcomes WHERE outcome = 'failed' AND run IN (SELECT run FROM chosen)
"""
"""``spent`` is the share of the budget; a failed run has no loss."""

UNFINISHED = ("running", "interrupted", "held")
"""Statuses of runs whose last loss is not their final one."""

UNEQUAL = 0.05
"""Runs that spent more or less than their budget by a larger share are not joined with others."""

Cell = tuple[str, str, str, int]
"""Source, attention, size and context."""


def spreads(rows: DataFrame) -> dict[Cell, Spread]:
    """The scatter of seeds in each cell with a run that spent its budget; of each source apart."""
    found: dict[Cell, Spread] = {}
    equal = rows.loc[is_equal(rows)]
    for source in sorted(set(equal.source)):
        part = equal.loc[equal.source == source]
        cells: list[tuple[Any, DataFrame]] = list(
            part.groupby(["source", "attention", "size", "context"])
        )
        samples = {cell: dict(zip(group.seed, group.loss, strict=True)) for cell, group in cells}
        places = {cell: Place(group.params.iloc[0], cell[3], cell[1]) for cell, group in cells}
        noise = Noise.measure(samples, places)
        found |= {cell: noise.at(cell) for cell in samples}
    return found


def has_ended(rows: DataFrame) -> Series:
    """Whether the last loss of a run is its final one."""
    return ~rows.status.isin(UNFINISHED)


def is_equal(rows: DataFrame) -> Series:
    """Whether a run has ended and has spent its budget."""
    spent = rows.spent.fillna(1.0).astype(float)
    return rows.loss.notna() & has_ended(rows) & (np.abs(spent - 1) <= UNEQUAL)
