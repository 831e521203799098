"""The design of a study: which runs tell most about a question for their price."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import design as replays
import law_study
import numpy as np
import pandas
import pytest
import yaml
from conftest import STUDY as STORED
from conftest import refused

from lmscaling import figures
from lmscaling.cli import studies
from lmscaling.config import study_file
from lmscaling.config.grid import expand
from lmscaling.design import check, draws, overlay, questions, search, setting
from lmscaling.design.asked import PASSED, Asked, Candidate, Option
from lmscaling.design.proposal import propose
from lmscaling.errors import UserError
from lmscaling.fits.noise import Noise, Place
from lmscaling.store import build

PAIR: dict[str, Any] = {"attention": "linear", "reference": "softmax"}
GAP = Asked(kind="gap", **PAIR, size="s1", context=1024)
BETA = Asked(kind="beta", attention="softmax", context=1024)
DECAYED = Option(1.0, PASSED)


def cells(n=5, contexts=(1024,), names=("softmax",), seeds=()):
    tokens = 2e9
    return [
        Candidate(attentions=names, size=f"s{i}", context=context, params=N, tokens=tokens,
                  cost=len(names) * 6 * N * tokens / 1e15, seeds=seeds)
        for context in contexts for i, N in enumerate(np.geomspace(5e6, 4e8, n))
    ]  # fmt: skip


PAIRS = cells(4, (256, 1024), ("softmax", "linear"))


def price(candidates, seeds=3):
    return seeds * sum(one.cost for one in candidates)


def drawn(number=40, centre=(17.6, 20.0), **options):
    return draws.draw(number, centre, 3, **options)


def test_truths_are_the_same_for_the_same_seed_and_as_wide_as_the_prior_says():
    one, other = drawn(4000), drawn(4000)
    assert (one.theta_MK == other.theta_MK).all()
    logs = np.column_stack([one.theta_MK[:, :3], np.log(one.theta_MK[:, 3:5])])
    assert logs.mean(axis=0) == pytest.approx(draws.PRIOR, abs=0.02)
    assert logs.std(axis=0) == pytest.approx(draws.PRIOR_SD, rel=0.05)
    found = drawn(2000, noise=draws.Noise(0.002, 12.0), paired=True)  # of the seeds of a study
    assert np.median(found.run_sd_M) == pytest.approx(0.002 / draws.PAIRED, rel=0.1)


def test_finished_runs_narrow_the_truths_around_what_they_have_shown():
    truth = drawn(1).rows(np.array([0]))
    N, D = np.tile(np.geomspace(5e6, 4e8, 5), 5), np.repeat(np.geomspace(1e8, 2e9, 5), 5)
    loss = truth.surface(N, D)[0][0]
    known = draws.Known(np.log(N), np.log(D), loss, np.repeat(np.arange(5), 5))
    after = drawn(400, known=known)
    E, beta = after.theta_MK[:, 0], np.log(after.theta_MK[:, 4])
    assert beta.std() < draws.PRIOR_SD[4] / 1.5
    assert abs(beta.mean() - np.log(truth.theta_MK[0, 4])) < 3 * beta.std()
    assert abs(E.mean() - truth.theta_MK[0, 0]) < 3 * E.std()
    assert after.surface(1e8, 1e9)[0].std() < 0.03


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (2, 5, 0, 0), (3, 1, 3, 0), (0, 4, 0, 0)])
def test_the_degrees_of_a_gap_are_those_of_the_report(counts):
    places = {i: Place(one.params, one.context, "linear") for i, one in enumerate(PAIRS[4:])}
    rng = np.random.default_rng(0)
    median = {}
    for _ in range(100):
        samples = {i: rng.normal(0, 0.01, k) for i, k in enumerate(counts) if k}
        noise = Noise.measure(samples, places, paired=True)
        for i in samples:
            median.setdefault(i, []).append(noise.at(i).degrees)
    answer: Any = questions.answer(GAP, PAIRS, Option(), drawn())
    degrees = answer.degrees(np.array([[0] * 4 + list(counts)]))[0, 4:]
    for i, known in median.items():
        expected = np.median(known)
        assert degrees[i] == (0 if np.isinf(expected) else pytest.approx(expected, abs=1.01))


def test_where_the_report_refuses_a_design_has_no_half_width():
    candidates = cells(5)
    surface = questions.answer(BETA, candidates, DECAYED, drawn())
    refused_counts = [(2, 2, 2, 2, 1), (5, 5, 0, 0, 0), (3, 3, 3, 0, 0), (1, 1, 1, 1, 1)]
    assert np.isinf(surface.half_widths(np.array(refused_counts))).all()
    assert np.isfinite(surface.half_widths(np.array([(2, 2, 2, 2, 2), (4, 4, 2, 0, 0)]))).all()
    assert np.isfinite(surface.guide(np.array([*refused_counts, (0,) * 5]))).all()
    fewer = np.full((1, 5), 2)
    more = surface.half_widths(fewer + np.eye(5, dtype=int))
    assert (more < surface.half_widths(fewer)).all()


PAIRED = PAIRS, [3, 0, 0, 3, 3, 6, 0, 3], Option()
AT: dict[str, Any] = {"size": "s1", "context": 1024}
SOFTMAX: dict[str, Any] = {"attention": "softmax", "context": 1024}


@pytest.mark.parametrize(("asked", "candidates", "counts", "option"), [
    (GAP, *PAIRED),
    (Asked(kind="multiplier", **PAIR, **AT, loss=2.9), *PAIRED),
    (Asked(kind="crossing", **PAIR, **AT), *PAIRED),
    (BETA, cells(5), [4, 3, 3, 3, 4], DECAYED),
    (Asked(kind="a", **SOFTMAX), cells(5), [4, 3, 3, 3, 4], DECAYED),
    (Asked(kind="gamma", **SOFTMAX, size="s1"), cells(5)[1:2], [4], DECAYED),
], ids=lambda value: value.kind if isinstance(value, Asked) else "")  # fmt: skip
def test_the_linearised_half_width_is_that_of_the_estimator(asked, candidates, counts, option):
    world = drawn(80, (17.6, 19.0))
    answer = questions.answer(asked, candidates, option, world)
    expected = answer.half_widths(np.array([counts]))[0]
    known = np.flatnonzero(np.isfinite(expected))[:12]
    assert len(known) == 12
    found = [
        check.simulate(asked, candidates, np.array(counts), option, one, i).half
        for i, one in enumerate(check.worlds(asked, world.rows(known), 12))
    ]
    assert np.isfinite(found).sum() >= 9
    assert 0.75 < np.median(np.array(found) / expected[known]) < 1.35


def test_the_search_spends_no_more_than_it_may_and_keeps_finished_seeds():
    candidates = cells(5, seeds=(0, 1))
    budget = 0.2 * price(candidates)
    found = propose(BETA, candidates, 3, budget, [DECAYED])
    assert found.spent <= budget * (1 + 1e-9)
    assert (found.counts >= 2).all()
    assert found.half_width < found.problem.half_width(np.full(5, 2))[0]


def test_exchange_mends_what_greedy_cannot():
    answer = questions.answer(GAP, PAIRS, Option(), drawn())
    zero = np.zeros(8, dtype=int)
    problem = search.Problem(answer, np.array([one.cost for one in PAIRS]), zero, zero + 6)
    poor = zero.copy()
    poor[[2, 6]] = 2  # the two cells beside that of the question
    budget = float(problem.price(poor))
    better = search.exchange(problem, poor, budget)
    assert problem.price(better) <= budget * (1 + 1e-9)
    assert problem.half_width(better)[0] < 0.02 < problem.half_width(poor)[0]


def test_a_gap_takes_degrees_of_freedom_from_cheap_cells():
    found = propose(GAP, PAIRS, 3, 0.15 * price(PAIRS))
    target = [(one.size, one.context) for one in PAIRS].index(("s1", 1024))
    assert found.counts[target] >= 3
    assert found.half_width < found.grid[1] * 1.25


def test_a_budget_that_is_too_small_is_refused_with_the_least_that_is_not():
    with refused(UserError, "0.5") as error:
        propose(BETA, cells(5), 3, 0.5, [DECAYED])
    asked = Asked(kind="multiplier", **PAIR, **AT, loss=0.3)
    with refused(UserError, "0.3"):  # no curve comes so low
        propose(asked, PAIRS, 3, price(PAIRS))
    least = float(str(error.value).split()[-1])
    assert np.isfinite(propose(BETA, cells(5), 3, least * 1.01, [DECAYED]).half_width)


STUDY = {
    "study": "toy", "dataset": "c4", "budget": "4.0e9 tokens", "published": False,
    "axes": {
        "attention": ["softmax", "linear"], "size": ["10M", "25M", "50M", "124M"],
        "context": [1024, 2048], "seed": [0, 1, 2],
    },
    "branches": {"shares": [0.0625, 0.125, 0.25, 0.5, 1.0]},
    "calibrate": {"size": ["10M", "124M"]},
    "datasets": {"recall": {"kind": "recall", "pairs": [2, 4], "queries": 12}},
    "sizes": {"r": {"n_layer": 1, "n_head": 1, "d_model": 32, "lr": 1e-2}},
    "tasks": {"recall": {
        "dataset": "recall", "size": "r", "context": 33, "tokenizer": "bytes",
        "update_tokens": 33 * 8, "validation": {"tokens": 330, "every_tokens": 2640},
        "skip": [{"attention": "linear", "seed": 2, "reason": "a part of the grid"}],
    }},
}  # fmt: skip


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    return path


def read(*paths: Path):
    return study_file.read_study([Path("config/study.yaml"), *paths])


def design(study, question, values=(), **options):
    """The verb, as it is called with these options."""
    given = {
        "study": [study], "results": study.parent / "results", "question": question, "share": None,
        "gpu_hours": None, "gap": None, "check": 0, "name": "", "out": None, "random_seed": 0,
        "set": list(values), "device": "",
    }  # fmt: skip
    return studies.design(Namespace(**given | options))


@pytest.mark.parametrize("counts", [[3, 0, 1, 2, 0, 0, 4, 1], [1] * 8])
def test_the_study_file_of_a_design_has_its_runs_and_no_others(study, counts):
    values = read(study)
    grid = expand(values)
    asked = setting.ask("gap:context=1024,size=50M", grid)
    prices = dict.fromkeys(grid.cells, setting.Price(1.0, 4e9))
    found = setting.setting(asked, grid, prices, study.parent / "none").candidates
    runs = overlay.runs_of(found, np.array(counts))
    path = study.with_name("design.yaml")
    overlay.write(path, overlay.values(grid, values, runs, Option(0.5, ()), "test"), ["why"])
    laid = expand(read(study, path))
    assert {(c.attention, c.size, c.context, c.seed) for c in laid.cells.values()} == runs
    assert {c.budget for c in laid.cells.values()} == {"2000000000 tokens"}
    assert not [*laid.tasks, *laid.branches]


def test_a_design_is_told_and_written_and_lies_over_the_study(study):
    question = "gap:context=2048,size=50M"
    told = design(study, question, share=0.3, gap=0.02, check=2)
    assert "0.02 nats" in told
    assert max(map(len, told.splitlines()[:14])) <= 100
    results = study.parent / "results" / "toy"
    (path,) = (results / "designs").glob("*.yaml")
    record = json.loads(path.with_suffix(".json").read_text())
    assert question in path.read_text().splitlines()[0]
    laid = expand(read(study, path))
    assert sorted(c.name for c in laid.cells.values()) == sorted(record["runs"])
    assert record["half_width"] < record["grid_half_width"] * 1.25
    assert record["spent"] <= 0.3 * 1.388 * record["grid_spent"]
    (results / "study.json").write_text(json.dumps({"command": "", "study": dict(read(study))}))
    assert build.build(results)["designs"] == 1
    saved = figures.save("design_frontier", results / "store", results / "figures")
    rows = pandas.read_csv(saved.with_suffix(".csv"))
    assert set(rows.name) == {path.stem}
    assert rows.spend.is_monotonic_increasing
    assert (rows.chosen.dropna().diff().dropna() <= 1e-12).all()
    at = (rows.spend - rows.spent).abs().idxmin()
    assert rows.chosen[at] == pytest.approx(rows.half_width[at])
    both = rows.dropna(subset=["random"])
    assert (both.chosen <= both.random * 1.001).all()


def test_finished_runs_cost_nothing_and_say_what_is_true(tmp_path):
    folder = tmp_path / "results" / "study"
    folder.parent.mkdir()
    grid = law_study.write(folder, law_study.values_of(STORED, seed=[0, 1, 2], context=[4096]))
    prices = {run: setting.Price(192.0, law_study.per_day(c)) for run, c in grid.cells.items()}
    asked = setting.ask("beta:attention=softmax", grid)
    found: Any = setting.setting(asked, grid, prices, folder)
    assert [one.seeds for one in found.candidates] == [(0, 1, 2)] * 4
    assert {one.budget for one in found.options} == {1.0}
    assert "12" in found.said
    assert found.noise.sd == pytest.approx(law_study.NOISE, rel=0.5)

    def proposed(budget, **more):
        known = {"options": found.options, "known": found.known} | more
        return propose(asked, found.candidates, 3, budget, **known)

    made = proposed(800.0, noise=found.noise)
    assert (made.counts >= 3).all()
    assert made.spent <= 800
    assert made.half_width < made.grid[1]
    assert made.grid[0] == 0
    beta = made.draws.theta_MK[:, 4]
    assert abs(np.median(beta) - law_study.PARAMETERS["beta"]) < 0.02
    assert len(found.finished) == 24
    with refused(UserError, "1", "266.4"):
        proposed(1.0)
    gap: Any = setting.setting(setting.ask("gap:size=m", grid), grid, prices, folder)
    assert gap.noise.sd == pytest.approx(law_study.NOISE * 2**0.5, rel=0.5)


@pytest.mark.parametrize(("question", "named"), [
    ("gaps:context=1024", "'gap'"), ("gap:context=1000", "'1024'"),
    ("gap:size=50M", "context=1024"), ("gap:context=1024,sice=50M", "'size'"),
    ("gamma:context=1024", "size=10M"), ("multiplier:context=1024,size=50M", "loss=3.2"),
    ("multiplier:context=1024,size=50M,loss=low", "'low'"),
    ("gap:context=1024,attention=softmax", "'softmax'"),
])  # fmt: skip
def test_a_wrong_question_is_one_sentence_with_what_to_type(question, named):
    grid = expand(study_file.read_study([Path("config/study.yaml")], STUDY))
    with refused(UserError, "question", named):
        setting.ask(question, grid)


@pytest.mark.parametrize(("options", "named"), [
    ({"gpu_hours": 10}, "--share"),  # nothing is known of the time
    ({}, "--gpu-hours"),
    ({"share": 0.0}, ""),
    ({"share": 0.3, "values": ["axes.attention=[softmax]"]}, "softmax"),
    ({"share": 0.3, "question": "size:context=1024"}, "5"),  # sizes; the study has 4
])  # fmt: skip
def test_what_cannot_be_designed_is_refused(study, options, named):
    words = {"question": "gap:context=1024,size=10M", "values": []} | options
    words["values"] = ["gpus=0", *words["values"]]
    with refused(UserError, named):
        design(study, **words)


KNOWN = {f"{one.name}: {one.asked}": one for one in replays.replays()}


@pytest.mark.ci
def test_a_replayed_design_tells_nearly_as_much_as_the_whole_grid():
    """The half-width of the design over that of the grid, at 30 % of its price."""
    row = replays.replay(next(iter(KNOWN.values())), 4, alike=False)
    assert row.ratio <= 1.25
    assert min(row.random, row.largest) >= 1.5 * row.ratio


def test_where_a_third_is_too_little_the_design_is_refused():
    name = next(name for name in KNOWN if "size:" in name)
    assert np.isinf(replays.replay(KNOWN[name], 1).ratio)
