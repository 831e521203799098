"""On a small corpus linear attention reaches the same loss as softmax.

Linear Attention Is All You Need (Self-attention at a fraction of the cost?), Towards Data Science
2024, section on training: Penn Treebank, ten epochs.

Judged by the gap of the final validation losses at equal updates, linear minus softmax, of runs
that read their training text at least twice. A run that reads every text once does not test a small
corpus.
"""

from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.claims._judgement import Judgement, points, untested

NUMBER = "gap, nats, mean over sizes and contexts, with its interval"

ROLES = {"candidate": "linear", "baseline": "softmax"}

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
            "No pair of runs read its training text twice with equal updates; train a study on a "
            "few million tokens with epochs: 10 or more to test this."
        )
    places = rows[["size", "context"]].drop_duplicates().itertuples(index=False, name=None)
    gaps = {f"{size} at {context:,}": _contrasts.pair(size, context) for size, context in places}
    found = _contrasts.estimate(rows, gaps)
    total = _contrasts.estimate(rows, {"": _contrasts.mean(gaps.values())})
    verdict, noise = _contrasts.over_noise(
        found.values(),
        lambda s: _contrasts.decide(found.values(), -THRESHOLD, THRESHOLD, s),
        found.values(),
        -THRESHOLD,
        THRESHOLD,
    )
    values = [one.value for one in found.values()]
    return Judgement(
        verdict=verdict,
        number=total[""].value if total else None,
        interval=total[""].interval if total else None,
        rests_on=points(rows),
        why=f"The gaps at {len(values)} sizes and contexts are between {min(values):+.3f} and "
        f"{max(values):+.3f} nats (threshold {THRESHOLD:g}); {noise}.",
    )
