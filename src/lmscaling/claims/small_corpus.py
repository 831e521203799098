"""On a small corpus linear attention with the map elu + 1 reaches the same loss as softmax.

Linear Attention Is All You Need (Self-attention at a fraction of the cost?), Towards Data Science
2024, section on training: Penn Treebank, ten epochs.

Judged by the gap of the final validation losses at equal steps, elu minus softmax, of runs
that read their training text at least twice. This is a test of equivalence: the claim holds if the
95 % interval of the differences, paired by seed, lies within the threshold (two one-sided tests at
2.5 %), so that too few seeds do not count as equality, and fails if it lies outside. A run that
reads every text once tests no small corpus.
"""

from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.claims._judgement import Judgement, untested

NUMBER = "gap, nats, mean; range: its interval, sizes and contexts"

ROLES = {"candidate": "elu", "baseline": "softmax"}

QUERY = """
    WITH ended AS (
        FROM final WHERE status IN ('done', 'out_of_tokens')
            AND run IN (SELECT run FROM validations WHERE epoch > 2 AND surviving)
    )
    SELECT source, size, a.params, context, seed,
        unnest(['candidate', 'baseline']) AS role, unnest([a.loss, b.loss]) AS loss
    FROM ended a JOIN ended b USING (source, size, context, seed, "update")
    WHERE a.attention = $candidate AND b.attention = $baseline
    ORDER BY source, a.params, size, context, seed, role
"""

AXIS = "updates"

THRESHOLD = 0.02
"""Nats: 2 % of perplexity, and a quarter of the gap of published runs at 1,024 tokens, which read
every text once."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested(
            "No pair of runs read its training text twice with equal steps; train a study on a "
            "few million tokens with epochs: 10 or more, as config/small_corpus.yaml does."
        )
    places = rows[["size", "context"]].drop_duplicates().itertuples(index=False, name=None)
    gaps = {f"{size} at {context:,}": _contrasts.pair(size, context) for size, context in places}
    found = _contrasts.estimate(rows, gaps)
    said = ", ".join(f"{one.value:+.3f} nats at {place}" for place, one in found.items())
    return _contrasts.judge_mean(
        rows, gaps, f"The losses differ by {said} (threshold {THRESHOLD:g})", -THRESHOLD, THRESHOLD
    )
