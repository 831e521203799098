"""Claims about times and memory: one row each, judged by a rule of ``_rules.py``.

Most compare the chunks of linear attention with FlashAttention, by times of steps on a GPU.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from pandas import DataFrame

from lmscaling.claims import _queries as queries
from lmscaling.claims import _rules as rules
from lmscaling.claims._judgement import Claim, Judgement, untested

POST = "Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024, "
DRAFT = (
    "Buckman and Gelada, Linear Self Attention is Faster, draft of Linear Transformers Are Faster "
    "After All, Manifest AI 2024, "
)
LOOPS, NO_FLASH, PARALLEL, STATE, STATES = queries.FORMS
ORDERS = "Orders of magnitude: half of one is where rounding gives another number of them."


def _row(
    name: str,
    title: str,
    *,
    rule: Callable[[DataFrame, float], Judgement | None],
    threshold: float,
    missing: str = "No step was timed with both {candidate} and {baseline}.",
    **values: Any,
) -> Claim:
    """A claim that is not tested, because of what is ``missing``, where its rule gives None."""

    def judge(rows: DataFrame) -> Judgement:
        found = None if rows.empty else rule(rows, threshold)
        return untested(missing) if found is None else found

    usual: dict[str, Any] = {
        "roles": {"candidate": "linear chunked", "baseline": "softmax fused"},
        "query": queries.ratios("$candidate", "$baseline"), "of_gpu": True,
    }  # fmt: skip
    return Claim(name=name, title=title, threshold=threshold, judge=judge, **usual | values)


# fmt: off
TIMED = [
_row(
    "attention_parallel_fastest",
    "In most settings linear attention in a FlashAttention kernel is the fastest form without "
    "chunks.",
    reference=POST + "section 2 (Parallel Implementations).",
    judged="Judged by the share of sizes and contexts at which a step with attention_parallel was "
    "timed and is faster than with every other form of the section. A form that ran out of memory "
    "is not faster.",
    query=queries.PARALLEL_WINS, rule=partial(rules.mostly_fastest, fewest=5),
    number="share of the points; range over sizes", threshold=0.5, because="Most: more than half.",
    roles={}, missing="Steps were not timed with linear attention_parallel and another form "
    "without chunks at 5 points.",
),
_row(
    "chunk_512", "The fastest chunk size of a model with 1.5 billion parameters is 512 tokens.",
    reference=DRAFT + "section 0.1 (Linear Self Attention).",
    judged="Judged by the time of a step with chunks of 512 tokens divided by that with the "
    "fastest chunk size, at every context at which 512, a smaller and a larger size were timed.",
    query=queries.CHUNKS, rule=partial(rules.best_chunk, claimed=512),
    number="largest time ratio, chunk of 512 over fastest chunk; range over contexts",
    threshold=1.02, because="A difference of 2 % does not justify another chunk size.", roles={},
    missing="Chunks of 512 tokens, of fewer and of more tokens were not timed at 1.5 billion "
    "parameters; set chunks under speed: time_step in a study.",
),
_row(
    "chunked_always_faster",
    "A training step with chunked linear attention is faster than with FlashAttention at every "
    "size and context.",
    reference=POST + "introduction.",
    judged="Judged by the time of a step with FlashAttention divided by that with chunks, at "
    "every size and context at which both were timed. A single slower point refutes the claim. It "
    "is least likely to be true at short contexts, so it can hold only if every size was timed at "
    "1,024 tokens or fewer.",
    rule=partial(rules.always_faster, short=1024),
    number="smallest time ratio, FlashAttention over chunked; range over all points", threshold=1.0,
    because="Faster means any ratio above 1. Published times have no errors, so the verdict on a "
    "point within one or two percent is uncertain; the explanation lists all slower points.",
),
_row(
    "chunked_best",
    "A training step with chunked linear attention takes at most as long as with any other form "
    "of linear attention, at every size and context.",
    reference=POST + "section 3 (Chunked Formulation).",
    judged="Judged by the time of a step with chunks divided by that with the fastest other form "
    "of the post, at every size and context at which attention_parallel and chunks were timed. A "
    "single slower point refutes the claim.",
    query=queries.OVER_FORMS, rule=rules.never_slower,
    number="largest time ratio, chunked over the fastest other form; range over all points",
    threshold=1.0, because="A ratio up to 1 is equal or better. Published times have no errors, "
    "so the verdict on a point within one or two percent is uncertain; the explanation lists all "
    "slower points.", roles={"candidate": "linear chunked"},
    missing="No step was timed with both {candidate} and linear attention_parallel.", of_form=True,
),
_row(
    "copy_exponents",
    "On the copy task time and memory grow in proportion to the length with linear attention, and "
    "with its square with softmax.",
    reference="Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, section 4.1.2 "
    "(Memory and Computational Requirements).",
    judged="Judged by training steps of the size ``copy``, a small model with a small vocabulary, "
    "on random tokens, which cost what symbols cost: by the slopes of ln(time) and ln(memory) of "
    "one sequence against ln(length), over the longest three octaves, up to at least 8,192 "
    "tokens. The 95 % intervals lie within the threshold around 1 and 2. Softmax is that of the "
    "paper, without FlashAttention, with which memory is no square.",
    query=queries.times(
        "copy_task", "method IN ($candidate, $baseline) AND peak_memory_bytes > 0",
        "peak_memory_bytes / batch AS bytes, if(method = $candidate, 1, 2) AS expected",
    ),
    rule=partial(rules.exponents, long=8192),
    number="slope farthest from the claimed 1 or 2, with its interval", threshold=0.25,
    because="Slope: half way to the middle between 1 and 2. The rest of the model makes the "
    "slopes approach these limits only.",
    roles={"candidate": "linear", "baseline": "softmax no_flash"},
    missing="The copy task was not timed with {candidate} and {baseline} at three lengths up to "
    "8,192 tokens; time steps of a size that is called copy.", of_gpu=False,
),
_row(
    "draft_speed_up",
    "A training step with linear attention is 20 times faster at 4,096 tokens and 200 times at "
    "100,000.",
    reference=DRAFT + "section 0 (Introduction); the final post claims less.",
    judged="Judged by the largest speed-up of chunked linear attention over softmax with "
    "FlashAttention, with which the draft compares, at any size, at 4,096 tokens and at the timed "
    "contexts around 100,000.",
    query=queries.ratios(
        "$candidate", "$baseline", "(context = 4096 OR context BETWEEN 65536 AND 131072)"
    ),
    rule=partial(rules.reaches, claimed={4096: 20, 100_000: 200}),
    number="largest speed-up near 100,000 tokens, or else at 4,096; range over sizes and contexts",
    threshold=0.5, because="Share of the claimed speed-up. 20 and 200 are round numbers, but half "
    "of them would be a different claim.",
    missing="No step was timed at 4,096 or near 100,000 tokens with {candidate} and {baseline}.",
    of_form=True,
),
_row(
    "draft_state_overtakes",
    "At 1.5 billion parameters the sequential form of linear attention becomes faster than its "
    "attention form near 64,000 tokens.",
    reference=DRAFT + "section 0.1.",
    judged="Judged by the last context at which the times of a step with state_parallel and "
    "attention_parallel cross, interpolated linearly in the logarithms between timed contexts. A "
    "missing crossing counts against the claim only if contexts beyond the factor were timed.",
    query=queries.overtakes(queries.LARGEST),
    rule=partial(rules.crossings, claimed={PARALLEL: 65_536}),
    number="context of the crossing; range: adjacent timed contexts", threshold=1.25,
    because="Factor. Timed contexts double, and the draft names one of them.", roles={},
    missing="No step of 1.5 billion parameters was timed with linear state_parallel and linear "
    "attention_parallel.",
),
_row(
    "flash_one_order",
    "At long contexts linear attention in a FlashAttention kernel settles at one order of "
    "magnitude faster than parallel attention without it.",
    reference=POST + "section 2 (Parallel Implementations).",
    judged="Judged by the ratio of the times of a step at the longest context of each size at "
    "which both were timed: its logarithm to base 10 must be within the threshold of 1. The claim "
    "is about a limit, so it is not tested where the last doubling of the context still changes "
    "the ratio by more than a quarter.",
    query=queries.ratios(PARALLEL, NO_FLASH),
    rule=partial(rules.settled_orders, claimed=1, first=PARALLEL, second=NO_FLASH),
    number="time ratio farthest from 10 in orders of magnitude; range over sizes",
    threshold=0.5, because=ORDERS, roles={},
    missing="No step was timed with both linear attention_parallel and linear "
    "attention_parallel_no_flash.",
),
_row(
    "form_slopes",
    "At long contexts the time of a step grows with the square of the context in the attention "
    "forms of linear attention, and in proportion to it in the state forms.",
    reference=POST + "section 2 (Parallel Implementations).",
    judged="Judged by the slope of ln(time) against ln(context) between the two longest contexts "
    "of every form and size that was timed up to at least 8,192 tokens: 2 or 1 within the "
    "threshold.",
    query=queries.times("time_step", f"method IN {queries.FORMS}"),
    rule=partial(
        rules.slopes_near, by=["sweep", "size", "method"], shortest=8192, twos=queries.QUADRATIC
    ),
    number="slope farthest from the claimed 2 or 1; range over forms and sizes", threshold=0.25,
    because="Slope: half way to the middle between 1 and 2. A step has other parts than "
    "attention, so that its slope only approaches these limits.", roles={},
    missing="Steps were not timed up to 8,192 tokens with an attention form and a state form of "
    "linear attention.", of_gpu=False,
),
_row(
    "gain_beyond_flash",
    "From moderately long contexts on, the speed-up of chunked linear attention over "
    "FlashAttention exceeds that of FlashAttention over softmax without it.",
    reference=POST + "introduction.",
    judged="Judged by the ratio of the two speed-ups at the longest context of each size at which "
    "all three were timed, without extrapolation: softmax without FlashAttention runs out of "
    "memory first. Sizes whose longest common context is shorter than 8,192 tokens are excluded.",
    query=queries.GAINS, rule=rules.exceeds,
    number="smallest ratio of the speed-ups at the longest common context; range over sizes",
    threshold=1.0, because="Any ratio above 1 exceeds.",
    missing="No step was timed with {candidate}, {baseline} and softmax no_flash.",
),
_row(
    "kv_cache_linear",
    "With softmax and a cache of keys and values the time to sample a token grows in proportion "
    "to the context.",
    reference=POST + "section 4 (Sampling).",
    judged="Judged by the slope of ln(time) against ln(context) between the two longest contexts "
    "of every size that was timed up to at least 16,384 tokens: 1 within the threshold.",
    query=queries.times("time_decode", "attention = $baseline"),
    rule=partial(rules.slopes_near, by=["sweep", "size", "batch", "method"], shortest=16_384),
    number="slope farthest from 1; range over sizes", threshold=0.25,
    because="Slope. The rest of the model takes a constant time, so that the slope only "
    "approaches 1.", roles={"baseline": "softmax"},
    missing="Sampling with {baseline} was not timed at two contexts up to 16,384 tokens.",
    of_gpu=False,
),
_row(
    "layer_60x",
    "The forward pass of a layer with linear attention is up to 60 times faster than with softmax.",
    reference="Linear Attention Is All You Need (Self-attention at a fraction of the cost?), "
    "Towards Data Science 2024, section on speed.",
    judged="Judged by the largest speed-up of a forward pass of one layer over plain softmax, "
    "without FlashAttention, with heads of width 64, a batch of 32 sequences and at most 6,000 "
    "tokens. The article times a layer without a causal mask on a T4, and finds a kink in its own "
    "ratios.",
    query=queries.ratios(
        "$candidate", "$baseline",
        "passes = 'forward' AND d_head = 64 AND batch = 32 AND context <= 6000", "time_layer",
    ),
    rule=partial(rules.reaches, claimed={6000: 60}, long=4000),
    number="largest speed-up; range over contexts", threshold=0.5,
    because="Share of the claimed speed-up. 60 is a round number; half of it would be a different "
    "claim.", roles={"candidate": "linear chunked", "baseline": "softmax no_flash"},
    missing="No forward pass of a layer was timed up to 4,000 tokens with {candidate} and "
    "{baseline}, heads of width 64 and 32 sequences; set speed: time_layer in a study to time it.",
    of_form=True,
),
_row(
    "parallel_two_orders",
    "Parallel attention without FlashAttention is two orders of magnitude faster than nested "
    "loops.",
    reference=POST + "section 2 (Parallel Implementations).",
    judged="Judged by the ratio of the times of a step at every size and context at which both "
    "were timed: its logarithm to base 10 must be within the threshold of 2.",
    query=queries.ratios(NO_FLASH, LOOPS),
    rule=partial(rules.orders, claimed=2, first=NO_FLASH, second=LOOPS),
    number="time ratio farthest from 100 in orders of magnitude; range over all points",
    threshold=0.5, because=ORDERS, roles={},
    missing="No step was timed with both linear attention_parallel_no_flash and linear attention.",
),
_row(
    "recurrent_slower",
    "A straightforward recurrence makes linear attention train much more slowly than an optimized "
    "transformer.",
    reference=POST + "introduction.",
    judged="Judged by the time of a step with one loop over states divided by that with "
    "FlashAttention, at every size and context at which both were timed. A single point that is "
    "not much slower refutes the claim.",
    query=queries.ratios("$baseline", STATE), rule=rules.much_slower,
    number="smallest time ratio, one loop over FlashAttention; range over all points",
    threshold=2.0, because="Much more slowly: at least twice the time.",
    roles={"baseline": "softmax fused"},
    missing="No step was timed with both linear state and {baseline}.",
),
_row(
    "sampling_thousands",
    "Linear attention samples thousands of times faster than other transformers.",
    reference="Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, abstract and "
    "section 4.2 (Image Generation): their softmax computes all former tokens again for each new "
    "one.",
    judged="Judged by the largest speed-up of a sampled token over softmax that keeps keys and "
    "values in a cache. A cache is faster than computing again, so a large enough speed-up proves "
    "the claim, and a smaller one does not refute it.",
    query=queries.ratios("$candidate", "$baseline", kind="time_decode"), rule=rules.proves,
    number="largest speed-up over softmax with a cache; range over all points", threshold=1000,
    because="Times as fast. The fewest that are thousands.",
    roles={"candidate": "linear", "baseline": "softmax"},
    missing="Sampling was not timed with both {candidate} and {baseline}.", of_gpu=False,
),
_row(
    "sampling_time",
    "The time to sample a token is independent of the context with linear attention, and grows "
    "with the context with softmax.",
    reference=POST + "section 4 (Sampling); Katharopoulos et al. 2020, arXiv:2006.16236, section "
    "3.4.",
    judged="Judged by the slope of ln(time) against ln(context): its 95 % interval from the "
    "regression must be within the threshold of 0 for linear attention and above the threshold "
    "for softmax, at every size with at least three contexts that span a factor of 16.",
    query=queries.times(
        "time_decode", "attention IN ($candidate, $baseline)",
        "if(attention = $candidate, 'candidate', 'baseline') AS role",
    ),
    rule=partial(rules.constant_and_growing, span=16),
    number="slope of linear attention farthest from 0; range over sizes and batches",
    threshold=0.05, because="Slope. At this slope the time grows by 3.5 % per doubling of the "
    "context, and by 37 % from 1,024 to 524,288 tokens.",
    roles={"candidate": "linear", "baseline": "softmax"}, missing="Sampling was not timed with "
    "{candidate} and {baseline} at three contexts that span a factor of 16.", of_gpu=False,
),
_row(
    "speed_up_grows",
    "The speed-up of chunked linear attention over FlashAttention grows rapidly with the context.",
    reference=POST + "section 3 (Chunked Formulation).",
    judged="Judged by the slope of ln(speed-up) against ln(context) between the two longest "
    "contexts of each size at which both were timed. A quadratic and a linear cost differ by a "
    "slope of 1. Sizes whose longest common context is shorter than 8,192 tokens are excluded.",
    rule=rules.ratio_grows,
    number="smallest slope over the last doubling of the context; range over sizes", threshold=0.5,
    because="Slope: with every doubling of the context the speed-up grows by at least the square "
    "root of 2.", missing="No step was timed with both {candidate} and {baseline} at two contexts "
    "up to at least 8,192 tokens.",
),
_row(
    "state_one_order",
    "The cumulative sum of states is one order of magnitude faster than one loop over states.",
    reference=POST + "section 2 (Parallel Implementations).",
    judged="Judged by the ratio of the times of a step at every size and context at which both "
    "were timed: its logarithm to base 10 must be within the threshold of 1.",
    query=queries.ratios(STATES, STATE),
    rule=partial(rules.orders, claimed=1, first=STATES, second=STATE),
    number="time ratio farthest from 10 in orders of magnitude; range over all points",
    threshold=0.5, because=ORDERS, roles={},
    missing="No step was timed with both linear state_parallel and linear state.",
),
_row(
    "state_overtakes",
    "The cumulative sum of states overtakes parallel linear attention near 13,000 tokens without "
    "FlashAttention, and near 100,000 tokens with it.",
    reference=POST + "section 2 (Parallel Implementations).",
    judged="Judged by the last context at which the times of two forms of linear attention cross "
    "at 124M, the smallest size, whose times reach beyond 100,000 tokens: interpolated linearly "
    "in the logarithms between timed contexts. Both crossings must agree with the claimed "
    "contexts within a factor. A missing crossing counts against the claim only if contexts "
    "beyond that factor were timed.",
    query=queries.overtakes(queries.SMALLEST),
    rule=partial(rules.crossings, claimed={NO_FLASH: 13_000, PARALLEL: 100_000}),
    number="context of the crossing without FlashAttention; range: adjacent timed contexts",
    threshold=1.25, because="Factor. The post gives one and two significant digits; timed "
    "contexts double, and interpolation between two of them is accurate to a few percent.",
    roles={}, missing="No step of 124M was timed with linear state_parallel and a parallel "
    "attention form of linear attention.",
),
]
# fmt: on
