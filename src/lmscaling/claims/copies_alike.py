"""Linear attention learns to copy a sequence to the same loss as softmax.

Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, section 4.1.1 (Convergence
Analysis).

Judged by the loss of the copied tokens at equal steps, linear minus softmax, of tasks of kind
copy with at least three seeds, at every size and length that both have and that softmax has
learned: the 95 % interval over seeds lies below the threshold.
"""

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, inside, overall, points, untested
from lmscaling.fits import seeds

NUMBER = "largest difference of losses, linear minus softmax, nats, with its interval"

QUERY = """
    SELECT 'measured' AS source, task, a.size, a.context, a.seed,
        a.val_loss - b.val_loss AS difference, b.accuracy
    FROM task_scores a JOIN task_scores b USING (task, size, context, seed, "update")
    WHERE a.kind = 'copy' AND a.attention = $candidate AND b.attention = $baseline
    ORDER BY ALL
"""

AXIS = "updates"

THRESHOLD = 0.05
"""Nats. In the figure of the paper the final losses are indistinguishable; a model that guesses has
a loss of 2.3."""

LEARNED = 0.9
"""Accuracy of softmax above which a length counts as learned."""

FEWEST_SEEDS = 3


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested(
            "No task of kind copy was trained with {candidate} and {baseline}; run "
            "config/tasks.yaml, or add such a task."
        )
    cells = [part for _, part in rows.groupby(["task", "size", "context"], sort=False)]
    learned = [part for part in cells if part.accuracy.mean() >= LEARNED]
    if not learned:
        return untested(
            f"{{baseline}} predicts at most {rows.accuracy.max():.2f} of the copied tokens, so "
            "more steps are needed."
        )
    repeated = [part for part in learned if len(part) >= FEWEST_SEEDS]
    if not repeated:
        return untested(
            f"No length that {{baseline}} has learned has {FEWEST_SEEDS} seeds of both."
        )
    found = [(*seeds.mean(part.difference.tolist()), part) for part in repeated]
    gap, interval, worst = max(found, key=lambda each: each[0])
    return Judgement(
        verdict=overall(inside(one, -np.inf, THRESHOLD) for _, one, _ in found if one),
        number=gap, interval=interval, rests_on=points(worst),
        why="The loss of {candidate} minus that of {baseline} is "
        + ", ".join(f"{one:+.3f} nats at {part.context.iloc[0]:,} tokens" for one, _, part in found)
        + ".",
    )  # fmt: skip
