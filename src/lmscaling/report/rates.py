"""The best learning rate of every group of cells in which several are done."""

import duckdb

from lmscaling.fits import lr_optimum
from lmscaling.formatting import Table

NOTE = (
    "The optimum is the vertex of a parabola in the logarithm of the rate, through the lowest loss "
    "and its two neighbours; with several seeds, of their mean, with the range over seeds in "
    "brackets. One seed does not tell its error. The loss gained over the study's rate is that of "
    "the optimum, or, where it is not bracketed, of the best rate tried. Only runs that are done "
    "count."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Optima by attention, size and context."""
    groups = lr_optimum.groups(db.sql(lr_optimum.QUERY).fetchall())
    return [
        Table(
            name="rates",
            section="learning",
            title="Learning rates",
            note=NOTE,
            query=lr_optimum.QUERY,
            head=("attention", "size", "context (tokens)", "optimum (per update)",
                  "of the study's rate", "loss gained (nats per token)", "bracket"),
            rows=tuple(_row(group) for group in groups),
            text=frozenset({0, 1, 6}),
        )
    ]  # fmt: skip


def _row(group: lr_optimum.Group) -> tuple[str, ...]:
    best = group.optimum
    status = lr_optimum.STATUSES[best.status]
    if best.scale is None and best.lowest_scale is not None:
        status += f"; lowest at {best.lowest_scale:g} x"
    rate = "" if best.scale is None else f"{best.scale * group.study_lr:.3g}"
    if best.low is not None and best.high is not None:
        rate += f" ({best.low * group.study_lr:.3g} to {best.high * group.study_lr:.3g})"
    return (
        group.attention,
        group.size,
        f"{group.context:,}",
        rate,
        "" if best.scale is None else f"{best.scale:.3g}",
        "" if best.gain is None else f"{best.gain:.4f}",
        status,
    )
