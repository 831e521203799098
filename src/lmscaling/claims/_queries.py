"""Queries of the claims about times, over the views of the speed study."""

QUADRATIC = (
    "linear attention", "linear attention_parallel_no_flash", "linear attention_parallel",
)  # fmt: skip
FORMS = (*QUADRATIC, "linear state", "linear state_parallel")
"""Forms of linear attention that claims compare chunks with."""

SMALLEST, LARGEST = "params BETWEEN 80e6 AND 90e6", "params BETWEEN 1.3e9 AND 1.7e9"
"""GPT-2's 124M and 1,558M without embeddings, whatever their rows are called."""


def ratios(challenger: str, baseline: str, where: str = "true", kind: str = "time_step") -> str:
    """How many times as fast one method is as another: methods, or roles such as $candidate."""
    one, other = (x if x.startswith("$") else f"'{x}'" for x in (challenger, baseline))
    return f"""
        SELECT source, setup, sweep, size, params, batch, context, fused, ratio
        FROM speed_ratios
        WHERE kind = '{kind}' AND challenger = {one} AND baseline = {other} AND {where}
        ORDER BY source, setup, params, size, sweep, context, batch
    """


def times(kind: str, where: str, more: str = "") -> str:
    """Seconds of one sequence, in series of one method each."""
    return f"""
        SELECT source, setup, sweep, size, params, batch, method, context,
            seconds / batch AS seconds, {more}
        FROM speeds
        WHERE kind = '{kind}' AND {where} AND seconds IS NOT NULL
        ORDER BY source, setup, method, params, size, sweep, batch, context
    """


def overtakes(where: str) -> str:
    """Where the cumulative sum of states overtakes the parallel forms."""
    return f"""
        SELECT
            source, setup, size, baseline, status, context, low, high, shortest, longest, most_ratio
        FROM crossings
        WHERE kind = 'time_step' AND challenger = 'linear state_parallel'
            AND starts_with(baseline, 'linear attention_parallel') AND {where}
        ORDER BY source, setup, baseline DESC
    """


PARALLEL_WINS = f"""
    SELECT source, setup, size, params, batch, context, count(*) > 1 AS compared,
        arg_min(method, seconds) = 'linear attention_parallel' AS fastest
    FROM speeds
    WHERE kind = 'time_step' AND seconds IS NOT NULL AND method IN {FORMS}
    GROUP BY source, setup, size, params, batch, context
    HAVING bool_or(method = 'linear attention_parallel')
    ORDER BY source, setup, params, size, batch, context
"""
"""Where the parallel form in a FlashAttention kernel is the fastest of ``FORMS``."""

OVER_FORMS = f"""
    SELECT source, setup, size, params, batch, context,
        1 / min(ratio) AS ratio, arg_min(baseline, ratio) AS fastest
    FROM speed_ratios
    WHERE kind = 'time_step' AND challenger = $candidate AND baseline IN {FORMS}
    GROUP BY source, setup, size, params, batch, context
    HAVING bool_or(baseline = 'linear attention_parallel')
    ORDER BY source, setup, params, size, batch, context
"""
"""The time of the candidate over that of the fastest of ``FORMS``."""

CHUNKS = f"""
    SELECT
        source, setup, sweep, size, concat_ws(' ', attention, nullif(implementation, '')) AS method,
        batch, context, chunk,
        median_seconds / min(median_seconds) OVER (
            PARTITION BY source, setup, sweep, method, batch, context
        ) AS ratio
    FROM measurements
    WHERE kind = 'time_step' AND chunk IS NOT NULL AND median_seconds IS NOT NULL AND {LARGEST}
    ORDER BY ALL
"""
"""The time of each chunk size over that of the fastest."""

GAINS = """
    SELECT source, setup, sweep, size, params, context, a.fused,
        a.ratio AS chunked_gain, b.ratio AS flash_gain, chunked_gain / flash_gain AS ratio
    FROM (FROM speed_ratios WHERE challenger = $candidate AND baseline = $baseline) a
    JOIN (
        SELECT source, setup, kind, sweep, size, batch, context, ratio
        FROM speed_ratios WHERE challenger = 'softmax fused' AND baseline = 'softmax no_flash'
    ) b USING (source, setup, kind, sweep, size, batch, context)
    WHERE kind = 'time_step'
    ORDER BY source, setup, params, size, sweep, context
"""
"""The speed-up of the candidate, and that of FlashAttention over softmax without it."""
