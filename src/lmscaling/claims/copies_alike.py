"""Linear attention learns to copy a sequence as well as softmax does.

Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, section 4.1 (Synthetic Tasks).

Judged by the share of copied tokens predicted correctly after training, linear minus softmax, at
every length at which both were trained with the same number of updates and batch size. Lengths that
softmax has not learned are excluded.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, points, spread, untested

NUMBER = "smallest difference of accuracies, linear minus softmax; range over lengths"

QUERY = """
    SELECT
        source, setup, size, context, batch, updates, a.accuracy AS linear, b.accuracy AS softmax,
        a.accuracy - b.accuracy AS difference
    FROM speeds a JOIN speeds b USING (kind, sweep, size, batch, updates, source, setup, context)
    WHERE kind = 'copy_task' AND a.attention = 'linear' AND b.attention = 'softmax'
        AND a.accuracy IS NOT NULL AND b.accuracy IS NOT NULL
    ORDER BY ALL
"""

THRESHOLD = 0.01
"""Share of tokens. In the paper's figure the final values are indistinguishable."""

LEARNED = 0.9
"""Accuracy of softmax above which a length counts as learned."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested(
            "No length of the copy task was trained with both attentions; set speed: copy_task in "
            "a study to train them."
        )
    learned = rows.loc[rows.softmax >= LEARNED]
    if learned.empty:
        return untested(
            f"Softmax predicts at most {rows.softmax.max():.2f} of the copied tokens, so more "
            "updates are needed."
        )
    worst = learned.loc[learned.difference.idxmin()]
    return Judgement(
        verdict="holds" if worst.difference >= -THRESHOLD else "fails",
        number=float(worst.difference),
        interval=spread(learned.difference),
        rests_on=points(learned),
        why=f"At {worst.context:,} tokens linear attention predicts {worst.linear:.3f} of the "
        f"copied tokens and softmax {worst.softmax:.3f}; {len(learned)} lengths were compared.",
    )
