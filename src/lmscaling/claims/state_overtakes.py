"""At 124M the parallel state form overtakes softmax without FlashAttention near 13,000 tokens, and
with it near 100,000.

Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, section 2 (Parallel
Implementations).

By the last context at which the faster of both changes, on straight lines between timed contexts in
logarithms. Each of the two may differ from what was said by a factor. A crossing that was not seen
is held against it only if contexts beyond that factor were timed.
"""

from pandas import DataFrame

from lmscaling.claims._judgement import Judgement, overall, untested
from lmscaling.fits.uncertainty import Interval

NUMBER = "context of the crossing with softmax without FlashAttention; range: timed neighbours"

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
"""Factor. The post gives two digits and one; timed contexts double, and a straight line places a
smooth crossing between two of them within a few percent."""

CLAIMED = {"softmax no_flash": 13_000, "softmax flash": 100_000}
"""Tokens, by what is overtaken."""


def judge(rows: DataFrame) -> Judgement:
    if rows.empty:
        return untested("No step of 124M was timed with linear/state_parallel and softmax.")
    found = rows.to_dict("records")
    verdicts = [_verdict(row, CLAIMED[row["baseline"]]) for row in found]
    missing = [name for name in CLAIMED if name not in set(rows.baseline)]
    first = next((row for row in found if row["baseline"] == "softmax no_flash"), None)
    crossed = first is not None and first["context"] == first["context"]  # NaN is no crossing
    parts = [_part(row) for row in found] + [f"{name} was not timed" for name in missing]
    return Judgement(
        verdict=overall(verdicts + ["not tested"] * len(missing)),
        number=float(first["context"]) if first and crossed else None,
        interval=Interval(float(first["low"]), float(first["high"])) if first and crossed else None,
        rests_on=tuple(
            f"{row['size']} against {row['baseline']}, {row['shortest']:,} to {row['longest']:,}"
            for row in found
        ),
        why=f"{'; '.join(parts)}.",
    )


def _verdict(row: dict, claimed: float) -> str:
    low, high = claimed / THRESHOLD, claimed * THRESHOLD
    if row["status"] in ("from", "several"):
        return "holds" if low <= row["context"] <= high else "fails"
    if row["status"] == "never":
        return "fails" if row["longest"] >= high else "not tested"
    # Faster from the beginning: only contexts shorter than the claimed one contradict it.
    return "fails" if row["status"] == "until" or row["shortest"] <= low else "not tested"


def _part(row: dict) -> str:
    claimed = f"{CLAIMED[row['baseline']]:,} was said"
    if row["context"] == row["context"]:
        return f"{row['baseline']} overtaken at {row['context']:,.0f} tokens, {claimed}"
    if row["status"] == "never":
        return (
            f"{row['baseline']} never overtaken up to {row['longest']:,} tokens, "
            f"at best {row['most_ratio']:.2f} times as fast, {claimed}"
        )
    return f"faster than {row['baseline']} from {row['shortest']:,} tokens on, {claimed}"
