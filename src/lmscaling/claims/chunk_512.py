"""The fastest chunk size of a model with 1.5 billion parameters is 512 tokens.

Buckman and Gelada, Linear Self Attention is Faster, draft of Linear Transformers Are Faster After
All, Manifest AI 2024, section 0.1 (Linear Self Attention).

Judged by the time of a step with chunks of 512 tokens divided by that with the fastest chunk size,
at every context at which 512, a smaller and a larger size were timed.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, points, spread, untested

NUMBER = "largest time ratio, chunk of 512 over fastest chunk; range over contexts"

ROLES: dict[str, str] = {}

QUERY = """
    SELECT
        source, setup, sweep, size, concat_ws(' ', attention, nullif(implementation, '')) AS method,
        batch, context, chunk,
        median_seconds / min(median_seconds) OVER (
            PARTITION BY source, setup, sweep, method, batch, context
        ) AS ratio
    FROM measurements
    WHERE kind = 'time_step' AND chunk IS NOT NULL AND median_seconds IS NOT NULL
        -- GPT-2's 1,558M without embeddings, whatever its row is called.
        AND params BETWEEN 1.3e9 AND 1.7e9
    ORDER BY ALL
"""

THRESHOLD = 1.02
"""A difference of 2 % does not justify another chunk size."""

CLAIMED = 512
"""Tokens."""


def judge(rows: DataFrame) -> Judgement:
    tuned = rows.groupby(["sweep", "method", "batch", "context"]).filter(
        lambda part: (
            part.chunk.min() < CLAIMED < part.chunk.max() and CLAIMED in part.chunk.tolist()
        )
    )
    if tuned.empty:
        return untested(
            "Chunks of 512 tokens, of fewer and of more tokens were not timed at 1.5 billion "
            "parameters; set chunks under speed: time_step in a study."
        )
    ratios = tuned.ratio[tuned.chunk == CLAIMED]
    best = sorted({int(chunk) for chunk in tuned.chunk[tuned.ratio == 1]})
    worst = float(ratios.max())
    return Judgement(
        verdict="holds" if worst <= THRESHOLD else "fails",
        number=worst,
        interval=spread(ratios),
        rests_on=points(tuned),
        why=f"The fastest chunk size is {' or '.join(map(str, best))} tokens; chunks of {CLAIMED} "
        f"take at most {worst:.3f} times as long.",
    )
