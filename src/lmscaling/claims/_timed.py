"""Claims about times and memory: ``timed.yaml`` has the words of each, here are query and rule."""

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

import yaml
from pandas import DataFrame

from lmscaling.claims import _queries as queries
from lmscaling.claims import _rules as rules
from lmscaling.claims._judgement import Claim, Judgement, untested

Rule = Callable[[DataFrame, float], Judgement | None]
"""Judges the rows of a query by a threshold; None where rows that it needs are missing."""

LOOPS, NO_FLASH, PARALLEL, STATE, STATES = queries.FORMS
RATIOS = queries.ratios("$candidate", "$baseline")

ROWS: dict[str, tuple[str, Rule]] = {
    "attention_parallel_fastest": (queries.PARALLEL_WINS, partial(rules.mostly_fastest, fewest=5)),
    "chunk_512": (queries.CHUNKS, partial(rules.best_chunk, claimed=512)),
    "chunked_always_faster": (RATIOS, partial(rules.always_faster, short=1024)),
    "chunked_best": (queries.OVER_FORMS, rules.never_slower),
    "copy_exponents": (
        queries.times(
            "copy_task",
            "method IN ($candidate, $baseline) AND peak_memory_bytes > 0",
            "peak_memory_bytes / batch AS bytes, if(method = $candidate, 1, 2) AS expected",
        ),
        partial(rules.exponents, long=8192),
    ),
    "draft_speed_up": (
        queries.ratios(
            "$candidate", "$baseline", "(context = 4096 OR context BETWEEN 65536 AND 131072)"
        ),
        partial(rules.reaches, claimed={4096: 20, 100000: 200}),
    ),
    "draft_state_overtakes": (
        queries.overtakes(queries.LARGEST),
        partial(rules.crossings, claimed={PARALLEL: 65536}),
    ),
    "flash_one_order": (
        queries.ratios(PARALLEL, NO_FLASH),
        partial(rules.settled_orders, claimed=1, first=PARALLEL, second=NO_FLASH),
    ),
    "form_slopes": (
        queries.times("time_step", f"method IN {queries.FORMS}"),
        partial(
            rules.slopes_near, by=["sweep", "size", "method"], shortest=8192, twos=queries.QUADRATIC
        ),
    ),
    "gain_beyond_flash": (queries.GAINS, rules.exceeds),
    "kv_cache_linear": (
        queries.times("time_decode", "attention = $baseline"),
        partial(rules.slopes_near, by=["sweep", "size", "batch", "method"], shortest=16384),
    ),
    "layer_60x": (
        queries.ratios(
            "$candidate",
            "$baseline",
            "passes = 'forward' AND d_head = 64 AND batch = 32 AND context <= 6000",
            "time_layer",
        ),
        partial(rules.reaches, claimed={6000: 60}, long=4000),
    ),
    "parallel_two_orders": (
        queries.ratios(NO_FLASH, LOOPS),
        partial(rules.orders, claimed=2, first=NO_FLASH, second=LOOPS),
    ),
    "recurrent_slower": (queries.ratios("$baseline", STATE), rules.much_slower),
    "sampling_thousands": (
        queries.ratios("$candidate", "$baseline", kind="time_decode"),
        rules.proves,
    ),
    "sampling_time": (
        queries.times(
            "time_decode",
            "attention IN ($candidate, $baseline)",
            "if(attention = $candidate, 'candidate', 'baseline') AS role",
        ),
        partial(rules.constant_and_growing, span=16),
    ),
    "speed_up_grows": (RATIOS, rules.ratio_grows),
    "state_one_order": (
        queries.ratios(STATES, STATE),
        partial(rules.orders, claimed=1, first=STATES, second=STATE),
    ),
    "state_overtakes": (
        queries.overtakes(queries.SMALLEST),
        partial(rules.crossings, claimed={NO_FLASH: 13000, PARALLEL: 100000}),
    ),
}
"""Query and rule by the name of the claim."""


def _claim(name: str, words: dict[str, Any]) -> Claim:
    """A claim that is not tested, because of what is ``missing``, where its rule gives None."""
    query, rule = ROWS[name]
    missing = words.pop("missing", "No step was timed with both {candidate} and {baseline}.")

    def judge(rows: DataFrame) -> Judgement:
        found = None if rows.empty else rule(rows, words["threshold"])
        return untested(missing) if found is None else found

    usual: dict[str, Any]
    usual = {"roles": {"candidate": "linear chunked", "baseline": "softmax fused"}, "of_gpu": True}
    return Claim(name=name, query=query, judge=judge, **usual | words)


WORDS = yaml.safe_load(files("lmscaling.claims").joinpath("timed.yaml").read_text())

TIMED = {name: _claim(name, words) for name, words in WORDS.items()}
