"""What follows from a study: tables and figures say what the fits say, and of which points."""

import json
import re
import shutil

import law_study
import pytest
from conftest import STUDY, sentence
from pandas import DataFrame
from test_store import header, log, record, validation

from lmscaling import figures, registry
from lmscaling.config import study_file
from lmscaling.figures.shared import law_panels
from lmscaling.fits import (
    holdout,
    loss_surface,
    multiplier,
    optimum,
    paired_losses,
    points,
    power_law,
)
from lmscaling.report import tables as report_tables
from lmscaling.store import build as store

FIGURES = [name for name in registry.figures() if figures.load(name).SECTION == "laws"]


def build(folder, **axes):
    """A study whose losses follow a known surface, and what is computed from it."""
    law_study.write(folder, law_study.values_of(STUDY, **axes))
    store.build(folder)
    return folder


@pytest.fixture(scope="module")
def decayed(tmp_path_factory):
    """A study with branches."""
    return build(tmp_path_factory.mktemp("decayed"))


@pytest.fixture(scope="module")
def made(decayed):
    return tables(decayed)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    """A study with three seeds of every size, which a surface needs."""
    return build(tmp_path_factory.mktemp("seeded"), seed=[0, 1, 2], context=[4096])


@pytest.fixture(scope="module")
def seeded_tables(seeded):
    return tables(seeded)


def tables(folder):
    with store.connect(folder / "store") as db:
        found = report_tables.tables(db)
    return {one.name: one for one in found if one.section == "laws" or "gaps" in one.name}


def known(folder):
    with store.connect(folder / "store") as db:
        return points.read(db.sql(points.QUERY).fetchall())


def records(table):
    return [dict(zip(table.head, row, strict=True)) for row in table.rows]


def ends(text):
    low, _, high = text.partition("(")[2].rstrip(")").partition(" to ")
    return float(low), float(high)


def of_branches(table):
    return [row for row in records(table) if any("decayed" in value for value in row.values())]


def test_a_known_surface_comes_back_within_its_intervals(seeded, seeded_tables):
    rows = of_branches(seeded_tables["surfaces"])
    assert len(rows) == 2
    truth = law_study.PARAMETERS
    share = truth["beta"] / (truth["alpha"] + truth["beta"])
    for row in rows:
        assert (row["points"], row["runs"]) == ("60", "12")
        assert row["status"] == loss_surface.STATUSES["fitted"]
        assert row["tests"].startswith("F(15, 8) = ")
        for name, value in (("alpha", truth["alpha"]), ("beta", truth["beta"]), ("a", share)):
            low, high = ends(row[name])
            assert low - 0.01 <= value <= high + 0.01
    groups = points.groups(known(seeded), "attention", "context")
    group = groups["measured", "decayed", "softmax", 4096]
    law = loss_surface.fit_group(group)
    row = next(r for r in rows if r["attention"] == "softmax")
    assert row["E (nats)"].split()[0] == f"{law.values['E']:.3g}"
    of_a = law.intervals["a"]
    assert ends(row["a"]) == pytest.approx((of_a.low, of_a.high), abs=5e-4)
    farther = [4 * group.column(name).max() for name in ("params", "tokens")]
    low, high = ends(row["loss at 4 x N and D (nats)"])
    assert low < law_study.surface(*farther) < high < group.column("loss").min()


def test_the_law_is_drawn_over_compute_with_what_equal_loss_costs(seeded):
    with store.connect(seeded / "store") as db:
        figure, _ = figures.draw("loss_over_compute", db)
    (axes,) = figure.axes
    told = {text.get_text().partition(":")[0]: text.get_text() for text in axes.texts}
    assert {*told} == {"softmax", "linear"}
    value, low, high = map(float, re.findall(r"\d+\.\d+", told["linear"]))
    assert 1 < low < value < high < 2  # linear is 0.04 nats behind
    assert len(axes.lines) == 2


def test_one_seed_of_four_sizes_has_no_exponents_and_three_contexts_bracket_nothing(made):
    rows = records(made["surfaces"])
    trunks = [row["points"] for row in rows if "constant" in row["fitted losses"]]
    assert (trunks, len(rows)) == (["20"] * 6, 12)
    for row in rows:
        assert row["status"] == loss_surface.STATUSES["few_runs"]
        assert {row[name] for name in ("E (nats)", "A", "B", "alpha", "beta", "a")} == {""}
    assert made["conventions"].rows == made["surface_influence"].rows == ()
    for row in records(made["best_contexts"]):
        assert row["best context (tokens)"] == ""
        assert row["status"] == optimum.STATUSES["too_few"]


def test_tables_say_what_the_fits_say(decayed, made):
    groups = points.groups(known(decayed), "size", "context")
    law = power_law.fit_groups(groups)["measured", "decayed", "m", 1024]["linear"]
    row = next(
        r for r in records(made["time_laws"])
        if (r["size"], r["context (tokens)"], r["attention"]) == ("m", "1k", "linear")
        and "decayed" in r["fitted losses"]
    )  # fmt: skip
    said = [value for head, value in row.items() if "of this form" in head]
    assert said == [f"{law.E:.3g}", f"{law.gamma:.3g}"]
    assert {r["budget"] for r in records(made["best_sizes"])} == {"all, hours"}  # of four sizes


def test_hours_are_updates_times_speed(made):
    rows = records(made["multipliers"])
    assert len(rows) == 12
    for row in rows:
        steps, hours = (float(row[f"{n} (ratio)"].split()[0]) for n in ("steps", "= hours"))
        assert hours == pytest.approx(steps * float(row["x speed (ratio)"]), rel=0.01)
        slow = 1 + 1024 * int(row["context (tokens)"][:-1]) / 8192
        assert float(row["x speed (ratio)"]) == pytest.approx(slow / 1.2, rel=0.01)
        assert row["FLOPs (ratio)"]


def test_the_largest_compute_is_foreseen(seeded_tables):
    rows = of_branches(seeded_tables["held_out"])
    assert all(row["held out"].startswith("800M") for row in rows[::2])
    assert {row["status"] for row in rows[::2]} == {holdout.STATUSES["no_surface"]}  # nine runs
    for row in rows[1::2]:
        assert row["held out"].endswith(" FLOPs")
        assert row["places"] == "8"
        assert row["status"] == holdout.STATUSES["passed"]
        assert float(row["RMS error (nats)"]) < 0.02
        assert float(row["skill"]) > 0


def test_trunks_and_branches_are_fitted_apart_and_one_branch_erases_no_trunk(tmp_path, values):
    laid_out = law_study.write(tmp_path, law_study.values_of(values, context=[1024, 4096]))
    for run, cell in laid_out.branches.items():
        if (cell.context, cell.size, cell.branch) != (4096, "s", 0.5):
            shutil.rmtree(tmp_path / "runs" / run)
    store.build(tmp_path)
    groups = points.groups(known(tmp_path), "attention", "context")
    found = {}
    for (_, schedule, attention, context), group in groups.items():
        assert {p.schedule for p in group.points} == {schedule}
        sentence("points", group.description)
        found[schedule, attention, context] = len(group.points)
        if schedule == "constant":
            assert loss_surface.fit_group(group).status == "few_runs"
    both = ("softmax", "linear")
    trunks = {("constant", attention, n): 20 for attention in both for n in (1024, 4096)}
    assert found == trunks | {("decayed", attention, 4096): 1 for attention in both}


def test_a_panel_shows_the_schedule_with_more_points_and_of_equals_the_decayed_one(decayed):
    both, by = DataFrame(known(decayed)), ["attention", "context"]
    shown = law_panels.fullest(both, *by)
    assert len(both.groupby([*by, "schedule"])) == 2 * len(shown.groupby(by)) == 12
    assert set(shown.schedule) == {"decayed"}
    one = both.loc[(both.attention == "linear") & (both.context == 1024)]
    fewer = one.drop(index=one.index[one.schedule == "decayed"][0])
    assert set(law_panels.fullest(fewer, *by).schedule) == {"constant"}


def test_published_points_pass_the_shares_of_a_day_or_end_and_have_no_surface(published_study):
    for p in known(published_study):
        assert (p.schedule, p.split) == ("unknown", "train")
        assert p.flops
        assert p.flops > 6 * p.params * p.tokens
        if p.share < 1 or p.spent == 24:
            assert p.hours == pytest.approx(24 * p.share)
        else:
            assert 14.9 < p.hours < 24
    groups = points.groups(known(published_study), "attention", "context")
    kept, runs = paired_losses.comparable(groups["published", "unknown", "softmax", 65536], 0.01)
    assert {p.size for p in kept if p.share == 1} == set()  # ended after 15 to 22 hours
    assert {run.share for run in runs} == {1}
    (description,) = {group.description for group in groups.values()}
    sentence("points", description)
    laws_of = [loss_surface.fit_group(group) for group in groups.values()]
    assert {(law.status, law.estimate) for law in laws_of} == {("schedule", None)}
    best = optimum.fit_contexts(points.groups(known(published_study), "attention", "size"))
    assert {(law.status, law.at) for law in best.values()} == {("unknown_schedule", None)}
    made = tables(published_study)
    assert "" not in {row["FLOPs (ratio)"] for row in records(made["multipliers"])}
    assert {r["budget"] for r in records(made["best_sizes"])} == {"all, hours"}


def test_a_figure_has_the_points_of_its_fits_as_data(decayed):
    assert "multiplier" in FIGURES
    with store.connect(decayed / "store") as db:
        for name in FIGURES:
            rows = db.sql(figures.load(name).QUERY)
            if name == "multiplier":
                assert rows.fetchall() == db.sql(multiplier.QUERY).fetchall()
            else:
                assert rows.fetchall() == db.sql(points.QUERY).fetchall()


def test_a_study_of_one_attention_has_laws_but_nothing_to_compare(tmp_path):
    build(tmp_path, attention=["linear"], context=[1024])
    for name in ("multiplier", "surface"):
        figures.save(name, tmp_path / "store", tmp_path / "figures")
        assert bool(figures.n_rows(name, tmp_path / "figures")) == (name != "multiplier")
    found = tables(tmp_path)
    assert found["surfaces"].rows
    assert found["multipliers"].rows == found["loss_crossings"].rows == ()


def test_a_study_without_a_run_has_tables_without_rows(tmp_path, values):
    law_study.write(tmp_path / "empty", law_study.values_of(values), False, False)
    store.build(tmp_path / "empty")
    found = tables(tmp_path / "empty").values()
    assert {table.rows for table in found} == {()}
    sections = {table.name: table.section for table in found}
    assert sections.pop("loss_gaps") == "learning"
    assert set(sections.values()) == {"laws"}
    with store.connect(tmp_path / "empty" / "store") as db:
        for table in found:
            db.sql(table.query)


def test_a_budget_in_updates_is_shared_in_updates(tmp_path, values):
    values["budget"] = "40 updates"
    (tmp_path / "study.json").write_text(json.dumps({"command": "", "study": values}))
    for run in study_file.read_record(tmp_path / "study.json").grid.cells:
        rows = [validation(n, loss=4 - n / 40) for n in range(1, 41)]
        record(tmp_path, run, log(header(run), *rows), updates=40)
    store.build(tmp_path)
    found = known(tmp_path)
    assert {p.unit for p in found} == {"updates"}
    assert sorted({p.budget for p in found}) == [2.5, 5, 10, 20, 40]
    assert all(p.updates == pytest.approx(p.budget) for p in found)
