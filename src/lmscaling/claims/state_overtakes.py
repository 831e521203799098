"""At 124M the parallel state form becomes faster than softmax near 13,000 tokens without
FlashAttention, and near 100,000 tokens with it.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 2 (Parallel
Implementations).

Judged by the last context at which the times cross, interpolated linearly in the logarithms between
timed contexts. Both crossings must agree with the claimed contexts within a factor. A missing
crossing counts against the claim only if contexts beyond that factor were timed.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, overall, untested
from lmscaling.fits.uncertainty import Interval

NUMBER = "context of the crossing with softmax no_flash; range: adjacent timed contexts"

QUERY = """
    SELECT source, setup, size, baseline, status, context, low, high, shortest, longest, most_ratio
    FROM crossings
    WHERE kind = 'time_step' AND challenger = 'linear state_parallel'
        AND baseline IN ('softmax no_flash', 'softmax flash')
        -- GPT-2's 124M without embeddings, whatever its row is called.
        AND params BETWEEN 80e6 AND 90e6
    ORDER BY source, setup, baseline DESC
"""

THRESHOLD = 1.25
"""Factor. The post gives one and two significant digits; timed contexts double, and interpolation
between two of them is accurate to a few percent."""

CLAIMED = {"softmax no_flash": 13_000, "softmax flash": 100_000}
"""Context of the crossing in tokens, by baseline."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested("No step of 124M was timed with linear/state_parallel and softmax.")
    crossings = rows.to_dict("records")
    verdicts = [_verdict(row, CLAIMED[row["baseline"]]) for row in crossings]
    missing = [name for name in CLAIMED if name not in set(rows.baseline)]
    first = next((row for row in crossings if row["baseline"] == "softmax no_flash"), None)
    crossed = first is not None and first["context"] == first["context"]  # NaN: no crossing
    parts = [_describe(row) for row in crossings] + [f"{name} was not timed" for name in missing]
    return Judgement(
        verdict=overall(verdicts + ["not tested"] * len(missing)),
        number=float(first["context"]) if first and crossed else None,
        interval=Interval(float(first["low"]), float(first["high"])) if first and crossed else None,
        rests_on=tuple(
            f"{row['size']} and {row['baseline']}, {row['shortest']:,} to {row['longest']:,}"
            for row in crossings
        ),
        why=f"{'; '.join(parts)}.",
    )


def _verdict(row: dict, claimed: float) -> str:
    low, high = claimed / THRESHOLD, claimed * THRESHOLD
    if row["status"] in ("from", "several"):
        return "holds" if low <= row["context"] <= high else "fails"
    if row["status"] == "never":
        return "fails" if row["longest"] >= high else "not tested"
    # Faster at all timed contexts: this contradicts the claim only if shorter ones were timed.
    return "fails" if row["status"] == "until" or row["shortest"] <= low else "not tested"


def _describe(row: dict) -> str:
    baseline, claimed = row["baseline"], f"(claimed: {CLAIMED[row['baseline']]:,})"
    if row["status"] == "until":
        return f"faster than {baseline} up to {row['context']:,.0f} tokens only {claimed}"
    if row["context"] == row["context"]:
        return f"faster than {baseline} from {row['context']:,.0f} tokens on {claimed}"
    if row["status"] == "never":
        return (
            f"not faster than {baseline} up to {row['longest']:,} tokens {claimed}, with a speed "
            f"ratio of at most {row['most_ratio']:.2f}"
        )
    return f"faster than {baseline} at all contexts from {row['shortest']:,} tokens {claimed}"
