"""Linear attention needs 0.644 bits per dimension on MNIST, softmax 0.621; on CIFAR-10, after one
week on a GPU, 3.40 and 3.47.

Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, section 4.2 (Image Generation).

Judged by the gap of the validation losses in bits per byte, linear minus softmax, of runs on data
sets named mnist and cifar10 whose tokens are the bytes of pixels: on MNIST at equal steps, as the
paper trained 250 epochs, on CIFAR-10 at the end of equal budgets of time.
"""

from dataclasses import replace

import numpy as np
from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.claims._judgement import Judgement, points, untested
from lmscaling.fits import seeds

NUMBER = "gap farthest from the claimed one, bits per dimension, without an interval"

QUERY = """
    WITH ended AS (
        SELECT f.*, dataset, budget_unit
        FROM final f JOIN cells USING (source, run)
        WHERE f.status = 'done' AND encoding = 'bytes' AND dataset IN ('mnist', 'cifar10')
        UNION ALL BY NAME
        SELECT 'measured' AS source, s.*, s.val_loss AS loss, 'updates' AS budget_unit
        FROM task_scores s WHERE kind = 'images'
    )
    SELECT source, dataset, size, a.params, context, seed,
        unnest(['candidate', 'baseline']) AS role, unnest([a.loss, b.loss]) AS loss
    FROM ended a JOIN ended b USING (source, dataset, size, context, seed, budget_unit)
    WHERE a.attention = $candidate AND b.attention = $baseline
        AND (dataset = 'cifar10' OR a."update" = b."update")
    ORDER BY source, dataset, a.params, size, context, seed, role
"""

AXIS = "updates on MNIST, budget on CIFAR-10"

THRESHOLD = 0.02
"""Bits per dimension: the claimed gaps are 0.023 and -0.07, of one run each."""

CLAIMED = {"mnist": 0.644 - 0.621, "cifar10": 3.40 - 3.47}
"""Gap in bits per dimension, by data set."""


def judge(rows: DataFrame) -> Judgement:
    if not set(CLAIMED) <= set(rows.dataset):
        return untested(
            "No runs with both attentions were trained on data sets mnist and cifar10 whose tokens "
            f"are the bytes of pixels.{_elsewhere(rows)}"
        )
    parts, excess = {}, []
    for dataset, claimed in CLAIMED.items():
        own = rows.loc[rows.dataset == dataset]
        for size, context in own[["size", "context"]].drop_duplicates().itertuples(index=False):
            bits = _contrasts.pair(size, context, 1 / np.log(2))
            for one in _contrasts.estimate(own, {f"{dataset} with {size}": bits}).values():
                parts[one.value] = f"{one.value:+.3f} on {one.label} (claimed {claimed:+.3f})"
                excess.append(replace(one, value=one.value - claimed))
    verdict, noise = _contrasts.within(excess, -THRESHOLD, THRESHOLD)
    far = [abs(one.value) for one in excess]
    return Judgement(
        verdict=verdict, number=list(parts)[int(np.argmax(far))], rests_on=points(rows),
        why=f"Gaps in bits: {', '.join(parts.values())}; {noise}.",
    )  # fmt: skip


def _elsewhere(rows: DataFrame) -> str:
    """The gaps on other images."""
    said = []
    for name, part in rows.groupby("dataset", sort=False):
        table = part.pivot_table(index=["size", "context", "seed"], columns="role", values="loss")
        bits, _ = seeds.mean(((table.candidate - table.baseline) / np.log(2)).tolist())
        said.append(f" On {name} the gap is {bits:+.3f} bits per pixel.")
    return "".join(said)
