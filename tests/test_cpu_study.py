"""The questions of the study on CPU cores are answered by the rules written before it ran."""

import math
import shutil

import cpu_answers as rules
import cpu_study
import numpy as np
import pytest
from conftest import ROOT

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


def test_an_attention_closes_the_gap_or_narrows_it_or_neither_is_shown():
    losses = softmax(contexts=ONE) | cells("linear", lambda _: 0.3, contexts=ONE)
    losses |= cells("gated_delta", lambda _: 0.01, contexts=ONE) | cells(
        "gated", lambda _: 0.2, contexts=ONE
    )
    losses |= cells("elu", lambda _: 0.31, contexts=ONE, scatter=0.02)
    verdicts = [row.split("|")[-2].strip() for row in rules.closing(losses).splitlines()[3:]]
    assert verdicts[:2] == ["closes", "narrows"]
    assert verdicts[2].startswith("neither shown; ")


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


def test_the_readme_and_the_prose_of_the_page_say_what_the_records_say(kept):
    text = " ".join((ROOT / "README.md").read_text().split())
    found = cpu_study.Finished(kept[0])
    at = {c: [*rules.gaps(found.losses, "linear", "100k", c).values()] for c in CONTEXTS}
    assert {len(values) for values in at.values()} == {3}
    numbers = ", ".join(f"{np.mean(values):.2f}" for values in at.values())
    assert f"by {numbers} nats".replace(", 0.15", " and 0.15") in text
    rows = [[cell.strip() for cell in row.split("|")] for row in
            rules.closing(found.losses).splitlines()]  # fmt: skip
    closing = {row[1] for row in rows if row[-2:-1] == ["closes"]}
    assert closing == {"retention", "gated", "gated_delta", "local.window128"}
    hybrid = rules.gaps(found.losses, "linear_x3.softmax", "100k", 2048)
    assert 0.4 < np.mean([*hybrid.values()]) / np.mean(at[2048]) < 0.5
    winners = rules.winners(found.at_equal_seconds(), found.pace).splitlines()
    best = [row.split("|")[4:8:2] for row in winners if "| 100k |" in row]
    assert {name.strip() for name, _ in best} == {"retention"}
    assert ["softmax" in tied for _, tied in best] == [True, False, False, False]
    forecast = rules.held_out(found.forecasts)
    assert (forecast.count("| yes |"), forecast.count("| no |")) == (6, 0)
    (softmax,) = (row for row in rules.beyond(found.sizes).splitlines() if "softmax" in row)
    assert "0.065" in softmax
    prose = " ".join(cpu_study.PAGE.read_text().partition(cpu_study.MARKS[0])[0].split())
    prose += " ".join(cpu_study.PAGE.read_text().partition(cpu_study.MARKS[1])[2].split())
    losses = [row["loss"] for row in kept[0].query(LARGEST).to_dict("records")]
    for loss, name in zip(losses, ("softmax", "linear"), strict=True):
        assert f"{loss - rules.line(found.sizes)[name][0]:.3f}" in prose
    one, other = found.losses["softmax", "800k", 512].values()
    assert f"{other - one:.3f} nats" in prose
    rates = Study(ROOT / "results" / "measured" / "cpu-python-rates", fresh=True)
    study, search, english = (
        sum(row["hours"] for row in cpu_study.query(one, cpu_study.PROGRESS))
        for one in (kept[0], rates, kept[1])
    )
    assert round(study) == 7
    assert f"{search:.1f} CPU hours" in prose
    assert f"English {english:.1f}" in prose
