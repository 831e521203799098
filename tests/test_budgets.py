"""Budgets in FLOPs and tokens per parameter, the axis of budgets, and what follows from them."""

import json

import law_study
import numpy as np
import pytest
from conftest import STUDY, refused
from test_store import header, log, record, validation

from lmscaling import Study
from lmscaling.config import grid, new_study
from lmscaling.errors import UserError
from lmscaling.model import sizing
from lmscaling.store import build as store

DECAYS = {"schedule": "cosine", "branches": None}
COMPUTES = [1e18, 2e18, 4e18, 8e18]
SIZES = {f"n{i}": float(n) for i, n in enumerate(np.geomspace(1.5e7, 1.5e9, 11))}


def counted(values):
    sizing.count(values)
    return grid.expand(values)


@pytest.mark.parametrize(("budget", "of"), [
    ("1e9 flops", lambda shape: 1e9 / shape.flops_per_token),
    ("20 tokens per parameter", lambda shape: 20 * shape.params_total),
    ("20 tokens per non-embedding parameter", lambda shape: 20 * shape.params),
])  # fmt: skip
def test_a_budget_that_depends_on_the_model_becomes_the_updates_of_each_cell(values, budget, of):
    values |= {"budget": budget, "sizes": values["sizes"] | {"m": SIZED}}
    values["axes"] = values["axes"] | {"size": ["s", "m"]}
    assert new_study.needs_counts(values)
    cells = counted(values).cells.values()
    assert len({cell.budget for cell in cells}) > 1
    for cell in cells:
        assert cell.budget == f"{round(of(sizing.shape(cell)) / cell.update_tokens)} updates"
        assert cell.rung == budget


SIZED = {"n_layer": 2, "n_head": 1, "d_model": 16, "lr": 1e-2}


def test_a_record_of_such_a_study_has_the_same_cells(values):
    values["budget"] = "1e9 flops"
    found = counted(values)
    assert grid.expand(json.loads(json.dumps(values))).cells == found.cells


def test_an_axis_of_budgets_leaves_the_cells_of_the_studys_own_as_they_are(values):
    values |= DECAYS
    plain = grid.expand(values).cells
    values["axes"] = values["axes"] | {"budget": ["2 updates", values["budget"]]}
    found = grid.expand(values).cells
    assert plain.items() <= found.items()
    assert {cell.rung for run, cell in found.items() if run not in plain} == {"2 updates"}
    assert {cell.attention for cell in found.values()} == {"softmax", "linear"}


@pytest.mark.parametrize(("change", "axis", "told"), [
    ({}, ["2 updates", "4 updates"], "the beginnings of each other"),
    (DECAYS, ["2 updates", "3 updates"], "leaves out '4 updates'"),
    (DECAYS, ["1 minute", "4 updates"], "write one unit"),
    (DECAYS, ["two updates", "4 updates"], "not a budget"),
    ({"budget": "20 tokens per word"}, None, "per non-embedding parameter"),
    ({"budget": "1 flop"}, None, "is less than one update"),
    ({"budget": "1e12 flops"}, None, "write epochs"),
])  # fmt: skip
def test_a_budget_that_cannot_be_is_refused_in_one_sentence(
    values, tmp_path, monkeypatch, change, axis, told
):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "v.jsonl"):
        (tmp_path / name).write_text('{"text": "a line of text"}\n' * 100)
    values |= change
    if axis:
        values["axes"] = values["axes"] | {"budget": axis}
    with refused(UserError, told):
        if new_study.needs_counts(values):
            sizing.count(values)
        new_study.plan(values)


@pytest.fixture(scope="module")
def isoflop(tmp_path_factory):
    """A study with two seeds of eleven sizes at four budgets, whose losses follow a known law."""
    folder = tmp_path_factory.mktemp("isoflop")
    texts = [f"{compute:g} flops" for compute in COMPUTES]
    size = {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-2}
    values = STUDY | DECAYS | {
        "budget": texts[-1], "update_tokens": 2**19, "exceptions": [], "skip": [],
        "sizes": {name: size | {"n_layer": i + 1} for i, name in enumerate(SIZES)},
        "validation": {"tokens": 2**19, "every_tokens": 2**25},
        "axes": {"attention": ["softmax"], "size": list(SIZES), "context": [16], "seed": [0, 1],
                 "budget": texts},
    }  # fmt: skip
    values["counts"] = {
        cell.computation: {"flops_per_token": 6 * n, "params": int(n), "params_total": int(n)}
        for cell in grid.expand(values).cells.values() for n in [SIZES[cell.size]]
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps({"command": "", "study": values}))
    rng = np.random.default_rng(0)
    for run, cell in grid.expand(values).cells.items():
        n, most = SIZES[cell.size], int(cell.budget.split()[0]) * 2**19
        luck = rng.normal(0, law_study.NOISE)
        along = [(share, law_study.surface(n, share * most) + 0.02 * (share < 1) + luck)
                 for share in np.geomspace(1 / 100, 1, 30)]  # fmt: skip
        law_study.fill(folder, run, cell, along, most, SIZES)
    store.build(folder)
    return Study(folder)


def test_the_three_approaches_recover_the_exponent_of_a_simulated_study(isoflop):
    p = law_study.PARAMETERS
    a = p["beta"] / (p["alpha"] + p["beta"])
    rows = isoflop.fit("optimal").set_index("approach")
    assert list(rows.index) == [1, 2, 3]
    assert set(rows.status) == {"fitted"}
    assert rows.a[1] == pytest.approx(a, abs=0.1)
    assert rows.assumed_sd[[2, 3]].isna().all()
    for approach in (2, 3):
        assert rows.a_low[approach] <= a <= rows.a_high[approach]
    ratio = p["alpha"] * p["A"] / (p["beta"] * p["B"])
    best = ratio ** (1 / (p["alpha"] + p["beta"])) * (COMPUTES[-1] / 6) ** a
    assert rows.best.to_numpy() == pytest.approx(best, rel=0.25)


def test_each_budget_of_a_simulated_study_has_its_best_size_with_an_interval(isoflop):
    rows = isoflop.fit("size")
    assert list(rows.budget) == COMPUTES
    assert set(rows.unit) == {"flops"}
    assert (rows.best_low < rows.best).all()
    assert (rows.best < rows.best_high).all()


def test_a_study_of_which_no_run_is_done_has_no_frontier(values, tmp_path):
    values["budget"] = "1e9 flops"
    sizing.count(values)
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "study": values}))
    for run in grid.expand(values).cells:
        rows = [validation(n, loss=4 - n / 40) for n in range(1, 41)]
        record(tmp_path, run, log(header(run), *rows), updates=40, status="out_of_tokens")
    store.build(tmp_path)
    rows = Study(tmp_path).fit("optimal")
    assert set(rows.status[rows.approach == 1]) == {"too_few"}
