"""In most settings linear attention in a FlashAttention kernel is the fastest form without chunks.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 2 (Parallel
Implementations).

Judged by the share of sizes and contexts at which a step with attention_parallel was timed and is
faster than with every other form of the section. A form that ran out of memory is not faster.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, points, spread, untested

NUMBER = "share of the points; range over sizes"

ROLES: dict[str, str] = {}

QUERY = """
    SELECT source, setup, size, params, batch, context, count(*) > 1 AS compared,
        arg_min(method, seconds) = 'linear attention_parallel' AS fastest
    FROM speeds
    WHERE kind = 'time_step' AND seconds IS NOT NULL AND method IN (
        'linear attention', 'linear attention_parallel_no_flash', 'linear attention_parallel',
        'linear state', 'linear state_parallel'
    )
    GROUP BY source, setup, size, params, batch, context
    HAVING bool_or(method = 'linear attention_parallel')
    ORDER BY source, setup, params, size, batch, context
"""

THRESHOLD = 0.5
"""Most: more than half."""

FEWEST = 5
"""Points, so that a share is more than chance."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty or rows.compared.sum() < FEWEST:
        return untested(
            "Steps were not timed with linear attention_parallel and another form without chunks "
            f"at {FEWEST} points."
        )
    share = float(rows.fastest.mean())
    others = ", ".join(points(rows.loc[~rows.fastest.astype(bool)])) or "no point"
    return Judgement(
        verdict="holds" if share > THRESHOLD else "fails",
        number=share,
        interval=spread(rows.groupby("size").fastest.mean()),
        rests_on=points(rows),
        why=f"Fastest at {rows.fastest.sum()} of {len(rows)} points; another form is at {others}.",
    )
