"""The questions of the study on CPU cores are answered by the rules written before it ran."""

import math
import shutil

import cpu_answers as rules
import cpu_study
import numpy as np
import pytest
from conftest import ROOT
from scipy.stats import f, ttest_1samp

from lmscaling import Study

CONTEXTS = (128, 512, 2048, 8192)
ONE = (2048,)
LARGEST = "SELECT loss FROM final WHERE size = '2700k' ORDER BY attention DESC"


def cells(name, gap, size="100k", contexts=CONTEXTS, scatter=0.001):
    """Losses of three seeds by cell; the gap is a function of log2(context)."""
    return {
        (name, size, context): {
            seed: 1.5 + gap(math.log2(context)) + scatter * (seed - 1) * (-1) ** i
            for seed in range(3)
        }
        for i, context in enumerate(contexts)
    }


def softmax(**kwargs):
    return cells("softmax", lambda _: 0.0, scatter=0.0, **kwargs)


@pytest.mark.parametrize(
    ("slope", "verdict"),
    [
        (0.02, "| 3 | grows |"),
        (-0.02, "| 3 | does not grow |"),
        (0.0021, "| 3 | undecided; 34 needed"),
    ],
)
def test_a_gap_grows_if_the_interval_of_its_slope_over_seeds_is_above_the_threshold(slope, verdict):
    losses = softmax() | cells("linear", lambda x: 0.1 + slope * x)
    row = rules.growth({"updates": losses}).splitlines()[-1]
    assert verdict in row, row


def test_a_window_is_used_until_no_longer_one_lowers_the_loss_by_more_than_the_threshold():
    means = {64: 2.0, 128: 1.8, 256: 1.795, 512: 1.791, 1024: 1.792}
    rows = [
        {"attention": "local", "seed": seed, "window": window, "loss": loss + seed}
        for seed in range(2)
        for window, loss in means.items()
    ]
    assert rules.windows(rows).splitlines()[-1].endswith("| 128, 128 |")


def test_an_attention_closes_the_gap_or_narrows_it_or_neither_is_shown():
    losses = softmax(contexts=ONE) | cells("linear", lambda _: 0.3, contexts=ONE)
    losses |= cells("gated_delta", lambda _: 0.01, contexts=ONE) | cells(
        "gated", lambda _: 0.2, contexts=ONE
    )
    losses |= cells("elu", lambda _: 0.31, contexts=ONE, scatter=0.02)
    verdicts = [row.split("|")[-2].strip() for row in rules.closing(losses).splitlines()[3:]]
    assert verdicts[:2] == ["closes", "narrows"]
    assert verdicts[2].startswith("neither shown; ")


def test_the_seeds_that_are_needed_find_the_measured_difference_in_four_of_five_studies():
    values = [0.04, 0.1, 0.16]
    n = int(rules.needed(values))
    random = np.random.default_rng(0)

    def power(seeds):
        samples = random.normal(np.mean(values), np.std(values, ddof=1), (4000, seeds))
        return np.mean(np.array(ttest_1samp(samples, 0, axis=1))[1] < 0.05)

    assert power(n - 1) < 0.8 + 0.02
    assert power(n) > 0.8 - 0.02
    assert int(rules.needed(values, tests=7)) > n
    assert rules.needed([0.1]) == "?"


def test_the_seeds_that_are_needed_find_the_measured_ratio_of_variances():
    n = int(rules.needed_for_ratio(3.0, (8, 8)))
    random = np.random.default_rng(0)
    degrees = 8 * (n - 1)
    one, other = (random.chisquare(degrees, 20_000) / degrees for _ in range(2))
    low, high = f.ppf((0.025, 0.975), degrees, degrees)
    found = np.mean((3 * one / other > high) | (3 * one / other < low))
    assert 0.8 - 0.02 < found < 0.9


def sealed(measured, name="linear"):
    return {
        "attention": name, "size": "300k", "seed": 0, "median": 2.0, "sd": 0.01, "degrees": 10.0,
        "baseline_median": 2.1, "baseline_sd": 0.05, "measured": measured, "state": "scored",
    }  # fmt: skip


def test_a_sealed_forecast_is_good_if_every_interval_holds_and_the_plain_guess_is_beaten():
    assert rules.held_out([sealed(2.0), sealed(2.01)]).endswith(": good.")
    assert rules.held_out([sealed(2.0), sealed(2.1)]).endswith(": not good.")
    near = {"baseline_median": 2.01, "baseline_sd": 0.001}
    assert rules.held_out([sealed(2.01) | near]).endswith(": not good.")
    assert rules.held_out([sealed(None) | {"state": "waiting"}]) == ""
    others = [sealed(loss) | {"size": "800k"} for loss in (2.0, 2.1)]
    assert rules.held_out([sealed(2.0), *others]).endswith(
        ": good. The seal predicted 2 runs of other sizes, too; 1 in their 95 % intervals."
    )


def test_the_line_is_good_if_its_error_is_smaller_than_that_of_equal_progress():
    def rows(last):
        losses = {"100k": 2.0, "300k": 1.8, "800k": 1.62, "2700k": last}
        return [
            {"attention": "softmax", "size": size, "x": x, "y": math.log(loss)}
            for x, (size, loss) in enumerate(losses.items())
        ]

    predicted, guess = rules.line(rows(1.5))["softmax"]
    assert (predicted, guess) == (pytest.approx(1.458, abs=0.001), pytest.approx(1.44))
    assert rules.beyond(rows(1.46)).endswith("| good |")
    assert rules.beyond(rows(1.43)).endswith("| not good |")
    assert rules.beyond(rows(1.5)[:3]) == ""


def test_another_text_confirms_if_the_gaps_agree_with_every_seed():
    both = (128, 2048)

    def text(slope, share=0.1):
        return (
            softmax(contexts=both)
            | cells("linear", lambda x: 0.5 + slope * x, contexts=both)
            | cells("gated_delta", lambda x: share * (0.5 + slope * x), contexts=both)
        )

    for other, verdict in (
        (text(0.03), "is confirmed"),
        (text(-0.03), "is not confirmed"),
        (text(0.03, share=0.6), "is not confirmed"),
    ):
        assert verdict in rules.confirmed({"Python": text(0.02), "English": other})


def test_losses_at_equal_seconds_are_those_of_the_update_at_which_the_seconds_are_spent():
    pace = [
        {"attention": name, "size": "100k", "context": 8192, "seconds": seconds}
        for name, seconds in (("softmax", 1.0), ("linear", 0.25))
    ]
    curves = [
        {"attention": name, "size": "100k", "context": 8192, "seed": 0, "update": update,
         "loss": 5 - math.log(update)}
        for name in ("softmax", "linear")
        for update in (32, 64, 128, 320)
    ]  # fmt: skip
    found = rules.at_equal_seconds(curves, pace, ["softmax", "linear"])
    assert found["linear", "100k", 8192][0] == pytest.approx(5 - math.log(320))
    assert found["softmax", "100k", 8192][0] == pytest.approx(5 - math.log(80))
    slow = [{**row, "seconds": 4.0} if row["attention"] == "softmax" else row for row in pace]
    assert ("softmax", "100k", 8192) not in rules.at_equal_seconds(
        curves, slow, ["softmax", "linear"]
    )


def test_the_noise_depends_if_the_interval_of_the_ratio_of_variances_excludes_one():
    random = np.random.default_rng(0)

    def scattered(deviation, context):
        return {
            (str(name), "100k", context): dict(enumerate(random.normal(2, deviation, 3)))
            for name in range(8)
        }

    for deviation, verdict in ((0.01, "no difference shown"), (0.1, "depends")):
        losses = scattered(0.01, 128) | scattered(deviation, 8192)
        assert verdict in rules.noise(losses).splitlines()[-1]


def test_recall_predicts_the_gap_only_in_an_order_that_chance_seldom_gives():
    names = [f"a{i}" for i in range(7)]
    for order, verdict in ((range(7), "predicts"), ((3, 0, 5, 1, 6, 2, 4), "not shown")):
        losses = softmax(contexts=ONE)
        recall = [{"attention": name, "recall": 1 - i / 10} for i, name in enumerate(names)]
        for name, place in zip(names, order, strict=True):
            losses |= cells(name, lambda _, p=place: 0.1 * p, contexts=ONE)
        assert rules.predicts(losses, recall).endswith(f"{verdict}.")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The study of the repository, without the store and the figures that others may have made."""

    def copied(folder):
        copy = tmp_path_factory.mktemp("kept") / folder.name
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("store", "figures"))
        return Study(copy)

    return copied(cpu_study.FOLDER), copied(cpu_study.ENGLISH)


def test_the_page_says_what_the_records_say(kept):
    assert cpu_study.page(*kept) in cpu_study.PAGE.read_text()


def test_the_readme_says_what_the_records_say(kept):
    text = " ".join((ROOT / "README.md").read_text().split())
    found = cpu_study.Finished(kept[0])
    at = {c: [*rules.gaps(found.losses, "linear", "100k", c).values()] for c in CONTEXTS}
    assert {len(values) for values in at.values()} == {3}
    numbers = ", ".join(f"{np.mean(values):.2f}" for values in at.values())
    assert f"by {numbers} nats".replace(", 0.15", " and 0.15") in text
    verdicts = {
        row.split("|")[1].strip(): row.split("|")[-2].strip()
        for row in rules.closing(found.losses).splitlines()
    }
    closing = {name for name, verdict in verdicts.items() if verdict == "closes"}
    assert closing == {"retention", "gated", "gated_delta", "local.window128"}
    hybrid = rules.gaps(found.losses, "linear_x3.softmax", "100k", 2048)
    assert 0.4 < np.mean([*hybrid.values()]) / np.mean(at[2048]) < 0.5
    best = [
        row.split("|")[4:8:2]
        for row in rules.winners(found.at_equal_seconds(), found.pace).splitlines()
        if "| 100k |" in row
    ]
    assert {name.strip() for name, _ in best} == {"retention"}
    assert ["softmax" in tied for _, tied in best] == [True, False, False, False]
    forecast = rules.held_out(found.forecasts)
    assert (forecast.count("| yes |"), forecast.count("| no |")) == (6, 0)
    (softmax,) = (row for row in rules.beyond(found.sizes).splitlines() if "softmax" in row)
    assert "0.065" in softmax


def test_the_prose_of_the_page_says_what_the_records_say(kept):
    prose = " ".join(cpu_study.PAGE.read_text().partition(cpu_study.MARKS[0])[0].split())
    prose += " ".join(cpu_study.PAGE.read_text().partition(cpu_study.MARKS[1])[2].split())
    found = cpu_study.Finished(kept[0])
    softmax, linear = (row["loss"] for row in kept[0].query(LARGEST).to_dict("records"))
    lines = rules.line(found.sizes)
    assert f"{softmax - lines['softmax'][0]:.3f} nats below softmax's loss" in prose
    assert f"{linear - lines['linear'][0]:.3f} below that of linear attention" in prose
    one, other = found.losses["softmax", "800k", 512].values()
    assert f"Two seeds of softmax at 800k differ by {other - one:.3f} nats" in prose
    rates = Study(ROOT / "results" / "measured" / "cpu-python-rates", fresh=True)
    study, search, english = (
        sum(row["hours"] for row in cpu_study.query(one, cpu_study.PROGRESS))
        for one in (kept[0], rates, kept[1])
    )
    assert round(study) == 7
    assert "some seven CPU hours" in prose
    assert f"takes {search:.1f} CPU hours more, and English {english:.1f}" in prose
