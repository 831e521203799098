"""The optimal learning rate of cells that were trained with several rates."""

import duckdb
from pandas import isna

from lmscaling.fits import lr_optimum
from lmscaling.fits import tables as numbers
from lmscaling.report.table import Column, Row, Table, format_number, of_numbers

NOTE = (
    "With two rates on each side of it, the optimum is the minimum of a polynomial in the "
    "logarithm of the rate, with its interval from the scatter of seeds, which are paired over "
    "rates. With one rate on a side it is the vertex of the parabola through the lowest loss and "
    "its two neighbours, whose error is unknown. The gain is the loss at the study's rate minus "
    "that at the optimum, or at the best tried rate if there is no optimum. Only rates that are "
    "finished with every seed are used. A run that deviates from the others of its seed and rate, "
    "where there are three seeds, is left out."
)


def _gain(row: Row) -> str:
    return "" if isna(row["gain"]) or row["tried"] == 1 else f"{row['gain']:.4f}"


COLUMNS = (
    Column("attention", "attention"),
    Column("size", "size"),
    Column("context (tokens)", "context", "{:,}".format),
    Column("rates", "tried", str),
    Column("optimum (per update)", "rate", format_number),
    Column("multiple of the study's rate", "scale", format_number),
    Column("gain (nats per token)", _gain, str),
    Column("status", "why"),
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Optimal rates by attention, size and context."""
    said = (f" Warning: {warning}." for warning in warnings(db))
    return [
        of_numbers(
            COLUMNS,
            numbers.law(db, "rate").to_dict("records"),
            name="rates",
            section="learning",
            title="Optimal learning rates",
            note=NOTE + "".join(said),
            query=lr_optimum.QUERY,
        )
    ]


def warnings(db: duckdb.DuckDBPyConnection) -> list[str]:
    """What makes the comparison of attentions unfair, see ``lr_optimum.warnings``."""
    return lr_optimum.warnings(lr_optimum.groups(db.sql(lr_optimum.QUERY).fetchall()))
