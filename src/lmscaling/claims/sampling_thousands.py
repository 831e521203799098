"""Linear attention samples thousands of times faster than other transformers.

Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, abstract and section 4.2 (Image
Generation): their softmax computes all former tokens again for each new one.

Judged by the largest speed-up of a sampled token over softmax that keeps keys and values in a
cache. A cache is faster than computing again, so a large enough speed-up proves the claim, and a
smaller one does not refute it.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, points, spread, untested

NUMBER = "largest speed-up over softmax with a cache; range over all points"

ROLES = {"candidate": "linear", "baseline": "softmax"}

QUERY = """
    SELECT source, setup, size, params, batch, context, ratio
    FROM speed_ratios
    WHERE kind = 'time_decode' AND challenger = $candidate AND baseline = $baseline
    ORDER BY source, setup, params, size, batch, context
"""

THRESHOLD = 1000
"""Times as fast. The fewest that are thousands."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested("Sampling was not timed with both {candidate} and {baseline}.")
    best = rows.loc[rows.ratio.idxmax()]
    where = f"{best.ratio:,.0f} times as fast ({best['size']} at {best.context:,})"
    if best.ratio < THRESHOLD:
        return untested(
            f"{{baseline}} was timed with a cache only, which the source did not have; over it "
            f"{{candidate}} is at most {where}."
        )
    return Judgement(
        verdict="holds", number=float(best.ratio), interval=spread(rows.ratio),
        rests_on=points(rows), why=f"Even over a cache {{candidate}} is {where}.",
    )  # fmt: skip
