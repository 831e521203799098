"""Linear attention learns to copy a sequence to the same loss as softmax.

Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, section 4.1.1 (Convergence
Analysis).

Judged by the loss of the copied tokens at equal updates, linear minus softmax, at every length at
which both were trained with the same batch size. Lengths that softmax has not learned are excluded.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, points, spread, untested

NUMBER = "largest difference of losses, linear minus softmax, nats; range over lengths"

ROLES = {"candidate": "linear", "baseline": "softmax"}

QUERY = """
    SELECT
        source, setup, size, context, batch, updates, a.loss AS candidate, b.loss AS baseline,
        a.loss - b.loss AS difference, b.accuracy
    FROM speeds a JOIN speeds b USING (kind, sweep, size, batch, updates, source, setup, context)
    WHERE kind = 'copy_task' AND a.method = $candidate AND b.method = $baseline
        AND a.loss IS NOT NULL AND b.loss IS NOT NULL
    ORDER BY ALL
"""

AXIS = "updates"

THRESHOLD = 0.05
"""Nats. In the figure of the paper the final losses are indistinguishable; a model that guesses has
a loss of 2.3."""

LEARNED = 0.9
"""Accuracy of softmax above which a length counts as learned."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested(
            "No length of the copy task was trained with both attentions; set speed: copy_task in "
            "a study to train them."
        )
    learned = rows.loc[rows.accuracy >= LEARNED]
    if learned.empty:
        return untested(
            f"{{baseline}} predicts at most {rows.accuracy.max():.2f} of the copied tokens, so "
            "more updates are needed."
        )
    worst = learned.loc[learned.difference.idxmax()]
    return Judgement(
        verdict="holds" if worst.difference <= THRESHOLD else "fails",
        number=float(worst.difference),
        interval=spread(learned.difference),
        rests_on=points(learned),
        why=f"At {worst.context:,} tokens the loss of {{candidate}} is {worst.candidate:.3f} nats "
        f"and that of {{baseline}} {worst.baseline:.3f}; {len(learned)} lengths were compared.",
    )
