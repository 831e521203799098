"""On the copy task time and memory grow in proportion to the length with linear attention, and with
its square with softmax.

Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, section 4.1.2 (Memory and
Computational Requirements).

Judged by the slopes of ln(time) and ln(memory) of one sequence against ln(length), between the two
longest lengths of each, up to at least 8,192 tokens: 1 and 2 within the threshold. Softmax is that
of the paper, without FlashAttention, with which memory is no square.
"""

import pandas as pd
from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, untested
from lmscaling.claims._ratios import last_slopes, near

NUMBER = "slope farthest from the claimed 1 or 2; range over time and memory"

ROLES = {"candidate": "linear", "baseline": "softmax no_flash"}

QUERY = """
    SELECT source, setup, sweep, size, params, method, context, seconds / batch AS seconds,
        peak_memory_bytes / batch AS bytes, if(method = $candidate, 1, 2) AS expected
    FROM speeds
    WHERE kind = 'copy_task' AND method IN ($candidate, $baseline) AND seconds IS NOT NULL
        AND peak_memory_bytes > 0
    ORDER BY source, setup, size, method, context
"""

THRESHOLD = 0.25
"""Slope: half way to the middle between 1 and 2. The rest of the model makes the slopes approach
these limits only."""

LONG = 8192
"""Tokens that the longest sequence must reach."""


def judge(rows: DataFrame) -> Judgement:
    by = ["sweep", "size", "method", "expected"]
    parts = [
        last_slopes(rows, by, value, LONG).assign(
            method=lambda part, v=value: part.method + f" {v}"
        )
        for value in ("seconds", "bytes")
    ]
    slopes = pd.concat(parts)
    if set(slopes.expected) != {1, 2}:
        return untested(
            "The copy task was not timed with {candidate} and {baseline} at two lengths up to "
            f"{LONG:,} tokens; set speed: copy_task in a study to time it."
        )
    return near(slopes.reset_index(drop=True), THRESHOLD)
