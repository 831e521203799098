"""Softmax recalls the values of keys that linear attention of the same width does not recall, and
the more pairs of keys and values there are, the larger is the difference.

Arora et al. 2023, Zoology: Measuring and Improving Recall in Efficient Language Models,
arXiv:2312.04927, section 4 (multi-query associative recall).

Judged by the accuracies of tasks of kind recall at equal steps, softmax minus linear, of at least
three seeds, at every size that both have: the difference at the most pairs is above the threshold,
and it is larger than at the fewest pairs. Seeds that have not learned are left out.
"""

import numpy as np
from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, inside, overall, untested
from lmscaling.fits import seeds

NUMBER = "least difference of accuracies at the most pairs, softmax minus linear, with its interval"

QUERY = """
    WITH ended AS (
        SELECT g.task, g.size, g.context, g.seed, g.attention, g.pairs, g.accuracy, g."update"
        FROM task_groups g JOIN task_scores s USING (run, "update")
        WHERE g.kind = 'recall' AND s.learned
    )
    SELECT 'measured' AS source, task, size, context, seed, pairs,
        b.accuracy - a.accuracy AS difference
    FROM ended a JOIN ended b USING (task, size, context, seed, pairs, "update")
    WHERE a.attention = $candidate AND b.attention = $baseline
    ORDER BY task, size, context, pairs, seed
"""

AXIS = "updates"

THRESHOLD = 0.05
"""Accuracy: three standard errors of the difference of two accuracies at 256 sequences and more."""

FEWEST_SEEDS = 3


def judge(rows: DataFrame) -> Judgement:
    cells = [
        (f"{task} with {size}", part.pivot(index="seed", columns="pairs", values="difference"))
        for task, of_task in rows.groupby("task", sort=False)
        for size, part in of_task.groupby("size", sort=False)
    ]
    cells = [(name, table) for name, table in cells if len(table) >= FEWEST_SEEDS]
    if not cells:
        return untested(
            f"No task of kind recall has {FEWEST_SEEDS} seeds of {{candidate}} and {{baseline}} "
            "that have learned; run config/tasks.yaml, or add such a task."
        )
    verdicts, found = [], []
    for name, table in cells:
        most, fewest = table[max(table.columns)], table[min(table.columns)]
        gap, interval = seeds.mean(most.tolist())
        _, growth = seeds.mean((most - fewest).tolist())
        assert interval is not None
        assert growth is not None
        verdicts += [inside(interval, THRESHOLD, np.inf), inside(growth, 0.0, np.inf)]
        found.append((gap, interval, name, max(table.columns), fewest.mean(), min(table.columns)))
    gap, interval, *_ = min(found)
    told = "; ".join(
        f"{gap:.3f} at {most} pairs and {few_gap:.3f} at {few} ({name})"
        for gap, _, name, most, few_gap, few in found
    )
    return Judgement(
        verdict=overall(verdicts), number=float(gap), interval=interval,
        rests_on=tuple(name for name, _ in cells),
        why=f"{{baseline}} recalls more than {{candidate}} by {told}.",
    )  # fmt: skip
