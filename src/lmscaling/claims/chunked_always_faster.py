"""A training step with chunked linear attention is faster than with FlashAttention at every size
and context.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 3 (Chunked
Formulation).

By the time of a step with FlashAttention over that with chunks, at every size and context where
both were timed, out of memory apart. One slower point is enough against it. Short contexts are
where it is least likely, so it can hold only if every size was timed at 1,024 tokens or fewer.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, places, points, spread, untested

NUMBER = "least ratio of the times, FlashAttention over chunked; range over all points"

QUERY = """
    SELECT source, setup, size, a.params, batch, context, b.seconds / a.seconds AS ratio
    FROM speeds a JOIN speeds b USING (kind, sweep, size, batch, source, setup, context)
    WHERE kind = 'time_step' AND a.method = 'linear chunked' AND b.method = 'softmax flash'
        AND a.seconds IS NOT NULL AND b.seconds IS NOT NULL
    ORDER BY source, setup, a.params, batch, context
"""

THRESHOLD = 1.0
"""Strictly faster is any ratio above. Published times come without their scatter, so a point within
a percent or two may go either way; the sentence names all."""

SHORT = 1024
"""Tokens. The shortest context that the post timed."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested("No step was timed with both, linear/chunked and softmax/flash.")
    slower = rows.loc[rows.ratio <= THRESHOLD]
    shortest = rows.groupby("size", sort=False).context.min()
    open_sizes = shortest[shortest > SHORT].index.tolist()
    if len(slower):
        verdict = "fails"
        why = f"Slower or level at {len(slower)} of {len(rows)} points: {places(slower)}."
    elif open_sizes:
        verdict = "not tested"
        why = f"Faster where timed, but {', '.join(open_sizes)} not at {SHORT:,} tokens or fewer."
    else:
        verdict = "holds"
        why = f"Faster at all {len(rows)} points: {places(rows)}."
    return Judgement(
        verdict=verdict, number=float(rows.ratio.min()), interval=spread(rows.ratio),
        rests_on=points(rows), why=why,
    )  # fmt: skip
