"""The questions of the study on CPU cores are answered by the rules written before it ran."""

import math
import shutil

import numpy as np
import pytest
from conftest import script

from lmscaling import Study

CONTEXTS = (128, 512, 2048, 8192)
ONE = (2048,)


@pytest.fixture(scope="module")
def study():
    return script("benchmarks", "cpu_study.py")


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
    ("slope", "verdict"), [(0.02, "grows, 3 seeds"), (-0.02, "does not grow"), (0.002, "undecided")]
)
def test_a_gap_grows_if_the_interval_of_its_slope_over_seeds_is_above_the_threshold(
    study, slope, verdict
):
    losses = softmax() | cells("linear", lambda x: 0.1 + slope * x)
    row = study.growth({"updates": losses}).splitlines()[-1]
    assert verdict in row, row


def test_a_window_is_used_until_no_longer_one_lowers_the_loss_by_more_than_the_threshold(study):
    means = {64: 2.0, 128: 1.8, 256: 1.795, 512: 1.791, 1024: 1.792}
    rows = [
        {"attention": "local", "seed": seed, "window": window, "loss": loss + seed}
        for seed in range(2)
        for window, loss in means.items()
    ]
    assert study.windows(rows).splitlines()[-1].endswith("| 128, 128 |")


def test_an_attention_closes_the_gap_or_narrows_it_or_neither_is_shown(study):
    losses = softmax(contexts=ONE) | cells("linear", lambda _: 0.3, contexts=ONE)
    losses |= cells("gated_delta", lambda _: 0.01, contexts=ONE) | cells(
        "gated", lambda _: 0.2, contexts=ONE
    )
    losses |= cells("elu", lambda _: 0.31, contexts=ONE)
    verdicts = [row.split("|")[-2].strip() for row in study.closing(losses).splitlines()[3:]]
    assert verdicts == ["closes", "narrows", "neither shown"]


def test_losses_at_equal_seconds_are_those_of_the_update_at_which_the_seconds_are_spent(study):
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
    found = study.at_equal_seconds(curves, pace, ["softmax", "linear"])
    assert found["linear", "100k", 8192][0] == pytest.approx(5 - math.log(320))
    assert found["softmax", "100k", 8192][0] == pytest.approx(5 - math.log(80))
    slow = [{**row, "seconds": 4.0} if row["attention"] == "softmax" else row for row in pace]
    assert ("softmax", "100k", 8192) not in study.at_equal_seconds(
        curves, slow, ["softmax", "linear"]
    )


def test_the_noise_depends_if_the_interval_of_the_ratio_of_variances_excludes_one(study):
    random = np.random.default_rng(0)

    def scattered(deviation, context):
        return {
            (str(name), "100k", context): dict(enumerate(random.normal(2, deviation, 3)))
            for name in range(8)
        }

    for deviation, verdict in ((0.01, "no difference shown"), (0.1, "depends")):
        losses = scattered(0.01, 128) | scattered(deviation, 8192)
        assert verdict in study.noise(losses).splitlines()[-1]


def test_recall_predicts_the_gap_only_in_an_order_that_chance_seldom_gives(study):
    names = [f"a{i}" for i in range(7)]
    for order, verdict in ((range(7), "predicts"), ((3, 0, 5, 1, 6, 2, 4), "not shown")):
        losses = softmax(contexts=ONE)
        recall = [{"attention": name, "recall": 1 - i / 10} for i, name in enumerate(names)]
        for name, place in zip(names, order, strict=True):
            losses |= cells(name, lambda _, p=place: 0.1 * p, contexts=ONE)
        assert study.predicts(losses, recall).endswith(f"{verdict}.")


def test_the_page_says_what_the_records_say(study, tmp_path):
    folder = tmp_path / "cpu"
    shutil.copytree(study.FOLDER, folder, ignore=shutil.ignore_patterns("store", "figures"))
    assert study.page(Study(folder)) in study.PAGE.read_text()
