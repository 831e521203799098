"""On the copy task time and memory grow in proportion to the length with linear attention, and with
its square with softmax.

Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, section 4.1.2 (Memory and
Computational Requirements).

Judged by training steps of the size ``copy``, a small model with a small vocabulary, on random
tokens, which cost what symbols cost: by the slopes of ln(time) and ln(memory) of one sequence
against ln(length), over the longest three octaves, up to at least 8,192 tokens. The 95 % intervals
lie within the threshold around 1 and 2. Softmax is that of the paper, without FlashAttention, with
which memory is no square.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, inside, overall, points, untested
from lmscaling.fits import slopes

NUMBER = "slope farthest from the claimed 1 or 2, with its interval"

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
    found = [
        (expected, f"{method} {value}", fitted)
        for (method, expected), of_method in rows.groupby(["method", "expected"], sort=False)  # pyright: ignore[reportGeneralTypeIssues]
        for _, part in of_method.groupby(["sweep", "size"], sort=False)
        for value in ("seconds", "bytes")
        if part.context.max() >= LONG and (fitted := slopes.exponent(part.context, part[value]))
    ]
    if {expected for expected, *_ in found} != {1, 2}:
        return untested(
            "The copy task was not timed with {candidate} and {baseline} at three lengths up to "
            f"{LONG:,} tokens; time steps of a size that is called copy."
        )
    verdict = overall(
        inside(interval, expected - THRESHOLD, expected + THRESHOLD)
        for expected, _, (_, interval) in found
    )
    _, _, (slope, interval) = max(found, key=lambda each: abs(each[2][0] - each[0]))
    told = ", ".join(
        f"{name} {slope:.2f} ({one.low:.2f} to {one.high:.2f})" for _, name, (slope, one) in found
    )
    return Judgement(
        verdict=verdict, number=slope, interval=interval, rests_on=points(rows),
        why=f"Slopes over the longest three octaves: {told}.",
    )  # fmt: skip
