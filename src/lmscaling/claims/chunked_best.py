"""A training step with chunked linear attention takes at most as long as with any other form of
linear attention, at every size and context.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 3 (Chunked
Formulation).

Judged by the time of a step with chunks divided by that with the fastest other form of the post, at
every size and context at which attention_parallel and chunks were timed. A single slower point
refutes the claim.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, places, points, spread, untested

NUMBER = "largest time ratio, chunked over the fastest other form; range over all points"

ROLES = {"candidate": "linear chunked"}

QUERY = """
    SELECT source, setup, size, params, batch, context,
        1 / min(ratio) AS ratio, arg_min(baseline, ratio) AS fastest
    FROM speed_ratios
    WHERE kind = 'time_step' AND challenger = $candidate AND baseline IN (
        'linear attention', 'linear attention_parallel_no_flash', 'linear attention_parallel',
        'linear state', 'linear state_parallel'
    )
    GROUP BY source, setup, size, params, batch, context
    HAVING bool_or(baseline = 'linear attention_parallel')
    ORDER BY source, setup, params, size, batch, context
"""

THRESHOLD = 1.0
"""A ratio up to 1 is equal or better. Published times have no errors, so the verdict on a point
within one or two percent is uncertain; the explanation lists all slower points."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested("No step was timed with both {candidate} and linear attention_parallel.")
    slower = rows.loc[rows.ratio > THRESHOLD]
    worst = rows.loc[rows.ratio.idxmax()]
    return Judgement(
        verdict="fails" if len(slower) else "holds",
        number=float(worst.ratio),
        interval=spread(rows.ratio),
        rests_on=points(rows),
        why=f"Slower at {len(slower)} of {len(rows)} points: {places(slower)}; takes up to "
        f"{worst.ratio:.2f} times as long as {worst.fastest}."
        if len(slower)
        else f"At most as long at all {len(rows)} points: {places(rows)}.",
    )
