"""Schedules of the learning rate, and the rates that training takes from them."""

import json
import math
from itertools import pairwise

import pytest
from test_store import end, header, log, record, update, validation
from test_train import on_two_ranks, rows_of, run

from lmscaling.config import grid
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import CONSTANT, KINDS, Cosine, WarmUp
from lmscaling.config.study import schema
from lmscaling.config.validation import checked
from lmscaling.store import build as store
from lmscaling.types import dump

__all__ = ["run"]

FACTORS = {
    "constant": lambda spent: 1.0,
    "cosine": lambda spent: 0.1 + 0.9 * (1 + math.cos(math.pi * spent)) / 2,
    "warmup_stable_decay": lambda spent: 1.0 if spent <= 0.8 else (1 - spent) / 0.2,
}


def with_schedule(values, schedule):
    """The linear cell of a study with a schedule."""
    cells = grid.expand(values | {"schedule": schedule}).cells.values()
    return next(cell for cell in cells if cell.attention == "linear")


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_is_at_its_peak_at_first_never_rises_and_follows_its_formula(kind):
    schedule = KINDS[kind](kind=kind)
    factors = [schedule.factor(i / 100) for i in range(101)]
    assert factors[0] == 1
    assert all(a >= b >= 0 for a, b in pairwise(factors))
    assert schedule.kind == kind
    if kind in FACTORS:
        assert factors == pytest.approx([FACTORS[kind](i / 100) for i in range(101)], abs=1e-12)


def test_the_warm_up_comes_before_every_schedule():
    rates = WarmUp(2.0, 4, Cosine(kind="cosine", final_share=0.0))
    assert [rates.rate(update, 0.5) for update in (1, 2, 4, 5)] == [0.25, 0.5, 1.0, 1.0]
    assert WarmUp(2.0, 0, CONSTANT).rate(1, 0.0) == 2.0


HASHES = ["3bb02d02", "381122fd", "ecacc6c7"]
"""Never to be changed: other hashes would train every study of every user again."""


def test_every_schedule_but_the_default_has_a_hash_of_its_own(values, cell):
    assert cell.run == "linear-s-ctx16-s0-0b1a29e8"
    for schedule in ("constant", {"kind": "constant"}):
        assert with_schedule(values, schedule).run == cell.run
    others = ("cosine", "warmup_stable_decay", {"kind": "cosine", "final_share": 0.0})
    cells = [with_schedule(values, schedule) for schedule in others]
    assert [c.run[-8:] for c in cells] == HASHES
    assert with_schedule(values, {"kind": "cosine", "final_share": 0.1}).run == cells[0].run
    assert {c.calibration for c in cells} == {cell.calibration}
    assert {c.name for c in cells} == {cell.name}


def test_a_cell_file_gives_the_schedule_back(values):
    cell = with_schedule(values, {"kind": "cosine", "final_share": 0.5})
    assert checked(Cell, json.loads(cell.to_json()), "cell") == cell
    assert dump(cell)["schedule"] == {"kind": "cosine", "final_share": 0.5}


def test_editors_accept_a_name_and_a_mapping():
    options = schema()["properties"]["schedule"]["oneOf"]
    assert {"enum": list(KINDS)} in options
    assert len(options) == len(KINDS) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_training_follows_the_schedule_also_after_a_stop_and_logs_its_rates(run, values, kind):
    cell = with_schedule(values | {"budget": "12 updates"}, kind)
    with pytest.raises(SystemExit):
        run(cell, stop_after=0.0)
    _, log = run(cell)
    first, second = (row["start_update"] for row in rows_of(log, "header"))
    assert first == 0 < second < 12
    updates = rows_of(log, "update")
    assert [row["lr"] for row in updates] == [
        cell.rates.rate(n, (n - 1) / 12) for n in range(1, 13)
    ]
    assert all(math.isfinite(row["train_loss"]) for row in updates)


def by_time(cell, updates):
    """The rates by the share of the budget that was spent before each update."""
    before = [0.0, *(row["budget_fraction"] for row in updates[:-1])]
    return [cell.rates.rate(n, spent) for n, spent in enumerate(before, 1)]


@pytest.mark.race
def test_a_budget_in_time_decays_by_the_time_that_was_spent_before_each_update(run, values):
    cell = with_schedule(values | {"budget": "0.2 seconds"}, "cosine")
    updates = rows_of(run(cell)[1], "update")
    assert [row["lr"] for row in updates] == by_time(cell, updates)
    assert updates[-1]["lr"] < cell.lr


@pytest.mark.ci
@pytest.mark.race
def test_two_ranks_have_the_same_rates_though_their_clocks_differ(values, tokens, tmp_path):
    cell = with_schedule(values | {"budget": "0.2 seconds"}, "cosine")
    both = rows_of(on_two_ranks(cell, tokens, tmp_path), "update")
    assert [row["lr"] for row in both] == by_time(cell, both)
    ranks = [(tmp_path / "results" / f"rates-{rank}.txt").read_text() for rank in (0, 1)]
    assert ranks[0] == ranks[1]
    assert len(ranks[0].split()) == len(both)


def test_a_run_that_decays_gives_laws_its_end_and_nothing_on_its_way(tmp_path, values):
    values["schedule"] = "cosine"
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "study": values}))
    for name in grid.expand(values).cells:
        rows = [row for n in (1, 2, 3, 4) for row in (update(n), validation(n, loss=5.0 - n))]
        record(tmp_path, name, log(header(name), *rows, end(4)), updates=4)
    store.build(tmp_path)
    with store.connect(tmp_path / "store") as db:
        found = db.sql("SELECT schedule, share, updates, loss FROM law_points").fetchall()
        assert found == [("decayed", 1, 4, 1.0)] * 2
        assert set(db.table("cells").project("schedule").fetchall()) == {("cosine",)}
