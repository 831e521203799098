"""The optimal learning rate of cells that were trained with several rates."""

import duckdb

from lmscaling.fits import lr_optimum
from lmscaling.report.table import Table

NOTE = (
    "The optimum is the vertex of a parabola in the logarithm of the rate through the lowest loss "
    "and its two neighbours. With several seeds, losses are means over seeds, and brackets contain "
    "the range of the optima of single seeds. The gain is the loss at the study's rate minus that "
    "at the optimum, or at the best tried rate if the optimum is not bracketed. Only finished runs "
    "are used."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Optimal rates by attention, size and context."""
    groups = lr_optimum.groups(db.sql(lr_optimum.QUERY).fetchall())
    return [
        Table(
            name="rates",
            section="learning",
            title="Optimal learning rates",
            note=NOTE,
            query=lr_optimum.QUERY,
            head=("attention", "size", "context (tokens)", "optimum (per update)",
                  "multiple of the study's rate", "gain (nats per token)", "status"),
            rows=tuple(_row(group) for group in groups),
            text=frozenset({0, 1, 6}),
        )
    ]  # fmt: skip


def _row(group: lr_optimum.Group) -> tuple[str, ...]:
    best = group.optimum
    status = lr_optimum.STATUSES[best.status]
    if best.scale is None and best.lowest_scale is not None:
        status += f"; lowest loss at {best.lowest_scale:g} x"
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
