"""Every number that is fitted to the losses of a study, as rows of tables.

``compute`` makes the rows of the tables in ``store/fits.sql``, which explains their columns.
``cells`` and ``final`` have the losses at the ends of cells and runs.
"""

from dataclasses import replace

from duckdb import DuckDBPyConnection
from pandas import DataFrame

from lmscaling.fits import comparisons, ends, laws
from lmscaling.fits.rows import Row, names, number

COUNTS = """
    SELECT source, attention, size, min(params) AS params, context, count(*)::INTEGER AS planned,
        (count(*) FILTER (status NOT IN ('pending', 'skipped')))::INTEGER AS started,
        (count(*) FILTER (status IN ('done', 'out_of_tokens')))::INTEGER AS done,
        (count(*) FILTER (status IN ('diverged', 'exploded')))::INTEGER AS failed
    FROM known WHERE branch IS NULL
    GROUP BY source, attention, size, context
    ORDER BY source, attention DESC, min(n_layer * d_model * d_model), size, context
"""
"""Trunks of each cell by status."""

FINAL = f"""
    SELECT k.name, e.*, k.run
    FROM ({ends.QUERY}) e
    JOIN known k USING (source, attention, size, context, seed, lr_scale)
    WHERE k.branch IS NULL
    ORDER BY source, attention DESC, e.params, size, context, seed
"""


def cells(db: DuckDBPyConnection) -> DataFrame:
    """One row for each attention, size and context, over seeds and learning rates; its columns are
    those of ``Study.cells``."""
    counts, final = db.sql(COUNTS).df(), db.sql(ends.QUERY).df()
    known, equal = ends.spreads(final), final.loc[ends.is_equal(final)]
    means = equal.groupby(["source", "attention", "size", "context"]).loss.mean().to_dict()
    rows = []
    for row in counts.to_dict("records"):
        cell = row["source"], row["attention"], row["size"], row["context"]
        spread = known.get(cell)
        if spread:
            row |= {"seeds": spread.seeds, "sd": spread.sd, "basis": spread.basis}
            row |= number("loss", float(means[cell]), spread.interval(float(means[cell])))
        rows.append(row)
    more = ["seeds", *names("loss"), "sd", "basis", "assumed_sd"]
    return DataFrame(rows, columns=[*counts.columns, *more]).astype(
        {"seeds": "Int64", "assumed_sd": float}
    )


def final(db: DuckDBPyConnection) -> DataFrame:
    """The loss at the end of each run; its columns are those of ``Study.final``."""
    rows = db.sql(FINAL).df()
    known, counts = ends.spreads(rows), ends.is_equal(rows)
    numbers = []
    for row, counted in zip(rows.to_dict("records"), counts, strict=True):
        spread = known.get((row["source"], row["attention"], row["size"], row["context"]))
        alone = replace(spread, seeds=1).interval(row["loss"]) if counted and spread else None
        numbers.append(number("loss", row["loss"], alone))
    columns = ["loss_low", "loss_high", "assumed_sd"]
    return rows.join(DataFrame(numbers, columns=columns, dtype=float))


def compute(db: DuckDBPyConnection) -> dict[str, list[Row]]:
    """The rows of each table of ``store/fits.sql``. Cost: a CPU second for 48 runs, and a quarter
    for each loss surface."""
    return comparisons.compute(db) | laws.compute(db)
