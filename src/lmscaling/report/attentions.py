"""What each attention is: its parameters, its cost, its state, and whether its rate was tuned."""

import duckdb

from lmscaling.formatting import bytes_of
from lmscaling.report.table import Table, format_context, query_rows

ATTENTIONS = """
    WITH longest AS (
        SELECT * FROM status WHERE params IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY attention, size ORDER BY context DESC, place) = 1
    ),
    tried AS (
        SELECT attention, size, max(rates) AS rates
        FROM (
            SELECT attention, size, context, count(DISTINCT lr_scale) AS rates
            FROM last_validation WHERE status = 'done' GROUP BY ALL
        )
        GROUP BY ALL
    )
    SELECT
        l.attention, l.attention = l.baseline AS is_baseline, l.size, l.context, l.params,
        l.params / b.params - 1 AS more_params, l.flops_per_token, l.state_bytes,
        l.flops_per_token / b.flops_per_token - 1 AS more_flops, coalesce(rates, 0) AS rates,
        l.remarks
    FROM longest l
    LEFT JOIN longest b ON b.attention = l.baseline AND b.size = l.size AND b.context = l.context
    LEFT JOIN tried t ON t.attention = l.attention AND t.size = l.size
    ORDER BY min(l.place) OVER (PARTITION BY l.attention), l.params, l.size
"""
"""One row for each attention and size that has begun to train, at its longest context."""

FEWEST = 3
"""Rates without which no optimum can be bracketed."""

NOTE = (
    "Parameters are those without embeddings, compute is counted FLOPs of a forward and a backward "
    "pass, and both are compared with the baseline of the same size and context. The state is what "
    "sampling keeps of one sequence after as many tokens as the context has. A rate that was never "
    "tuned is that of the size times lr_scale: where only some rates were tuned, a lower loss may "
    "be that of a better rate. axes.lr_scale tunes it: one line, such as lr_scale: [0.5, 1, 2]."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Attentions by size."""
    rows = [
        (
            row["attention"] + (" (baseline)" if row["is_baseline"] else ""),
            row["size"],
            format_context(row["context"]),
            f"{row['params']:,}" + _more(row["more_params"]),
            f"{row['flops_per_token']:.3g}" + _more(row["more_flops"]),
            "" if row["state_bytes"] is None else bytes_of(row["state_bytes"]),
            f"{row['rates']} rates" if row["rates"] >= FEWEST else "never tuned",
            (row["remarks"] or "").replace("; ", ". "),
        )
        for row in query_rows(db, ATTENTIONS)
    ]
    return [
        Table(
            name="attentions",
            section="question",
            title="Attentions",
            note=NOTE,
            query=ATTENTIONS,
            head=("attention", "size", "context (tokens)", "parameters",
                  "training compute (FLOPs per token)", "state", "learning rate", "remarks"),
            rows=tuple(rows),
            text=frozenset({0, 1, 6, 7}),
        )
    ]  # fmt: skip


def _more(share: float | None) -> str:
    """The difference from the baseline in percent; nothing of the baseline itself."""
    return "" if share is None or abs(share) < 5e-5 else f" ({100 * share:+.1f} %)"
