"""The optimal learning rate of cells that were trained with several rates."""

import duckdb

from lmscaling.fits import lr_optimum
from lmscaling.report.table import Table, with_interval

NOTE = (
    "With two rates on each side of it, the optimum is the minimum of a polynomial in the "
    "logarithm of the rate, with its interval from the scatter of seeds, which are paired over "
    "rates. With one rate on a side it is the vertex of the parabola through the lowest loss and "
    "its two neighbours, whose error is unknown. The gain is the loss at the study's rate minus "
    "that at the optimum, or at the best tried rate if there is no optimum. Only rates that are "
    "finished with every seed are used. A run that deviates from the others of its seed and rate, "
    "where there are three seeds, is left out."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Optimal rates by attention, size and context."""
    groups = lr_optimum.groups(db.sql(lr_optimum.QUERY).fetchall())
    said = (f" Warning: {warning}." for warning in lr_optimum.warnings(groups))
    return [
        Table(
            name="rates",
            section="learning",
            title="Optimal learning rates",
            note=NOTE + "".join(said),
            query=lr_optimum.QUERY,
            head=("attention", "size", "context (tokens)", "rates", "optimum (per update)",
                  "multiple of the study's rate", "gain (nats per token)", "status"),
            rows=tuple(_row(group) for group in groups),
            text=frozenset({0, 1, 7}),
        )
    ]  # fmt: skip


def warnings(db: duckdb.DuckDBPyConnection) -> list[str]:
    """What makes the comparison of attentions unfair, see ``lr_optimum.warnings``."""
    return lr_optimum.warnings(lr_optimum.groups(db.sql(lr_optimum.QUERY).fetchall()))


def _row(group: lr_optimum.Group) -> tuple[str, ...]:
    best = group.optimum
    status = lr_optimum.STATUSES[best.status]
    if best.scale is None and best.lowest_scale is not None and best.tried > 1:
        status += f"; lowest loss at {best.lowest_scale:g} x"
    if best.left_out:
        status += f"; without {best.left_out} deviating runs"
    return (
        group.attention,
        group.size,
        f"{group.context:,}",
        str(best.tried),
        with_interval(group.rate, group.interval),
        "" if best.scale is None else f"{best.scale:.3g}",
        "" if best.gain is None or best.tried == 1 else f"{best.gain:.4f}",
        status,
    )
