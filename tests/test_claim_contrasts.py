"""Contrasts of losses: their intervals and verdicts, with seeds and without."""

import numpy as np
import pytest
from pandas import DataFrame

from lmscaling.claims import _contrasts, gap_grows
from lmscaling.fits.noise import ELSEWHERE

CONTEXTS = [1024, 2048, 4096, 8192, 16384]
GAP = {"gap": _contrasts.pair("s0", 1024)}


def study(rng, growth=0.01, seeds=3, sizes=3, sd=0.01):
    """Losses of both roles whose gap grows with every doubling. Noise falls with size and context,
    and most of it is shared by the runs with one seed."""
    rows = []
    for n in range(sizes):
        for i, context in enumerate(CONTEXTS):
            own = sd / 2**n / 2 ** (i / 4)
            shared = 0.9 * own * rng.standard_normal(seeds)
            for role in ("baseline", "candidate"):
                loss = 3 + (role == "candidate") * growth * i + shared
                loss += 0.4 * own * rng.standard_normal(seeds)
                rows += [(f"s{n}", 10.0 ** (6 + n), context, role, *one) for one in enumerate(loss)]
    return DataFrame(rows, columns=["size", "params", "context", "role", "seed", "loss"])


def hold_and_refuted(studies, **options):
    """How often the interval of the mean growth holds it, and how often a growth at the threshold
    counts as a failure."""
    rng = np.random.default_rng(0)
    held = refuted = 0
    for _ in range(studies):
        losses = study(rng, gap_grows.THRESHOLD, **options)
        growth = gap_grows._growth(losses)
        found = _contrasts.estimate(losses, growth)
        total = _contrasts.estimate(losses, {"": _contrasts.mean(growth.values())})
        held += gap_grows.THRESHOLD in total[""].interval
        refuted += _contrasts.decide(found.values(), gap_grows.THRESHOLD, np.inf) == "fails"
    return held / studies, refuted / studies


def test_intervals_hold_and_true_claims_are_seldom_refuted():
    held, refuted = hold_and_refuted(30)
    assert held >= 0.8
    assert refuted <= 0.2


@pytest.mark.ci
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_95_percent_intervals_hold_and_5_percent_of_true_claims_at_most_are_refuted(seeds):
    held, refuted = hold_and_refuted(500, seeds=seeds)
    assert 0.92 <= held <= 0.975
    assert refuted <= 0.05


def test_the_noise_of_a_gap_is_that_of_pairs_with_one_seed():
    losses = study(np.random.default_rng(1), seeds=200, sizes=1)
    found = _contrasts.estimate(losses, GAP)["gap"]
    assert (found.spread.basis, found.spread.seeds) == ("measured", 200)
    assert found.spread.sd == pytest.approx(0.01 * 0.4, rel=0.1)


def test_without_seeds_the_range_says_what_it_assumes_of_one_run():
    losses = study(np.random.default_rng(1), seeds=1, sizes=1).assign(params=85e6)
    found = _contrasts.estimate(losses, GAP)["gap"]
    half = 1.95996 * np.sqrt(2) * 0.0019
    assert found.interval.assumed == 0.0019
    assert found.interval.high is not None
    assert found.interval.high - found.value == pytest.approx(half, rel=1e-4)


def test_a_verdict_that_turns_on_the_noise_is_open_and_says_where_it_turns():
    losses = study(np.random.default_rng(1), seeds=1, sizes=1, sd=0)
    found = _contrasts.estimate(losses, GAP | {"last": _contrasts.pair("s0", 16384)}).values()

    def verdict(high):
        return _contrasts.over_noise(
            found, lambda s: _contrasts.decide(found, -high, high, s), found, -high, high
        )

    span = "{:g} to {:g} nats".format(*(pick(one.sd for one in ELSEWHERE) for pick in (min, max)))
    assert verdict(1.0) == (
        "holds",
        f"the same if seeds differ by {span}, as other studies measured",
    )
    assert verdict(0.06)[0] == "not tested"
    assert verdict(0.06)[1].startswith(
        "it holds if seeds differ by at most 0.0019 nats, but it may"
    )
    assert verdict(0.06)[1].endswith("seeds would decide")


def test_losses_are_compared_where_the_shorter_run_ends_and_lowest_losses_do_not_count():
    spike = [(1, 5.0), (10, 2.0), (100, 3.0), (1000, 2.5)]
    smooth = [(1, 5.0), (10, 4.0), (100, 3.0)]
    rows = DataFrame([
        {"size": "s", "params": 1, "context": 1, "seed": 0, "role": role, "updates": u, "loss": y}
        for role, curve in (("candidate", spike), ("baseline", smooth))
        for u, y in curve
    ])  # fmt: skip
    at = _contrasts.losses_at(rows, "updates", ["size"])
    assert at.set_index("role").loss.to_dict() == {"baseline": 3.0, "candidate": 3.0}
    half = _contrasts.losses_at(rows, "updates", ["size"], share=10**-0.5)
    assert half.set_index("role").loss.to_dict() == pytest.approx(
        {"baseline": 3.5, "candidate": 2.5}
    )
