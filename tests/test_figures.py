"""Every figure draws what there is, labels its axes with units, and is the same every time."""

import copy
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace
from functools import cache
from math import isnan

import pytest
import speed_points
import test_tasks
from conftest import STUDY
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pandas import DataFrame
from test_store import (
    end,
    evaluated,
    evaluation,
    gradients,
    header,
    live,
    log,
    record,
    update,
    validation,
)

from lmscaling import figures, registry, report
from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.figures.shared import law_panels, style
from lmscaling.files import write_json
from lmscaling.records import forecast
from lmscaling.records.design import Design
from lmscaling.records.forecast import Forecast, Seal
from lmscaling.report.table import SECTIONS
from lmscaling.store import build as store

NAMES = list(registry.figures())
TIMED = re.compile(r"FROM (speeds|numerics|checks)|task_")
"""What a query reads that shows a sweep, the study of a device or tasks."""
TRAINING = [name for name in NAMES if not TIMED.search(figures.load(name).QUERY)]
LOSSES = [name for name in TRAINING if re.search(r"\b(val_)?loss\b", figures.load(name).QUERY)]
CURVES = {name for name in NAMES if hasattr(figures.load(name), "SWITCH")}
PICTURES = "image_samples"
"""A figure without axes, which ``test_drawing.py`` draws."""
LAWS = [name for name in NAMES if figures.load(name).SECTION == "laws"]


def write_study(folder, values):
    values["axes"] |= {
        "size": ["s", "m"], "context": [16, 32], "seed": [0, 1], "lr_scale": [1.0, 2.0],
    }  # fmt: skip
    values["datasets"]["recall"] = test_tasks.RECALL
    values["sizes"]["r"] = {"n_layer": 1, "n_head": 1, "d_model": 8, "lr": 1e-2}
    values["sizes"]["q"] = values["sizes"]["r"] | {"d_model": 16}
    task = test_tasks.TASK | {"seed": [0], "lr_scale": [1.0], "size": ["r", "q"]}
    values["tasks"] = {"recall": task | {"validation": {"tokens": 114, "every_tokens": 114}}}
    text = json.dumps({"command": "snakemake --cores <all>", "study": values})
    (folder / "study.json").write_text(text)
    return folder


@pytest.fixture
def study(tmp_path, values):
    folder = tmp_path / "tiny"
    folder.mkdir()
    return write_study(folder, values)


def cells_of(study):
    return list(study_file.read_record(study / "study.json").grid.cells.values())


@pytest.fixture
def cells(study):
    return cells_of(study)


def finish(study, cells):
    for i, cell in enumerate(cells):
        rows = [
            replace(update(n, loss=4 - n / 40 - i / 50), epoch=1 + (n - 1) // 13)
            for n in range(1, 40)
        ]
        rows += [gradients(n, 2 + n % 3 / 10) for n in range(1, 40)]
        made = [header(cell.run), *rows, validation(20), validation(39, loss=3 - i / 50), end(39)]
        record(study, cell.run, log(*made), updates=39)
        lines = [
            evaluation(cell.run, cell.context, axis, start, 4.0 - start / 20 - i / 50)
            for axis in ("sequence", "document")
            for start in (0, 1, 2, 4, 8)
        ]
        evaluated(study, cell.run, log(*lines))


def fill(study, cells):
    """Runs that were foreseen, tasks, a speed study, and what only the study of a device has."""
    for run, cell in study_file.read_record(study / "study.json").grid.tasks.items():
        test_tasks.finish(study, run, cell, 0.5)
    foreseen = [
        Forecast(run=cell.run, name=cell.name, quantity="loss", median=3.0, sd=0.1)
        for cell in cells
    ]
    forecast.write(study, Seal(study="tiny", study_sha256="", version="0.1.0", commit=None,
                               sealed="2025-01-01T00:00:00+00:00", forecasts=foreseen))  # fmt: skip
    proposed = Design(
        name="gap", question="gap:context=1024", quantity="half-width of the gap (nats)",
        price="GPU-hours", basis="the prior", spent=2.0, half_width=0.02, grid_spent=4.0,
        grid_half_width=0.01, runs=[], made="2025-01-01",
        frontier=[
            {"spend": 2.0**i, "chosen": 0.04 / 2**i, "random": 0.08 / 2**i,
             "random_low": 0.06 / 2**i, "random_high": None, "largest": None}
            for i in range(20)
        ],
    )  # fmt: skip
    write_json(study / "designs" / "gap.json", {"record": Design.record, **asdict(proposed)})
    finish(study, cells)
    speed_points.write(study, *speed_points.tiny())
    speed_points.write_device(study, [cell.run for cell in cells if cell.attention == "linear"])


def draw(study, name):
    store.build(study)
    return figures.save(name, study / "store", study / "figures")


def fill_eight(study, cells):
    fill(study, cells[:8])


def fill_eight_again(study, cells):
    fill(study, cells[:8])


def begin(study, cells):
    """One run is done, another is running."""
    finish(study, cells[:1])
    live(study, cells[1].run, log(header(cells[1].run), update(1), validation(1)))


def leave_empty(study, cells):
    pass


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A study that one of the functions above has filled; each store is built once."""

    @cache
    def build(fill):
        study = write_study(tmp_path_factory.mktemp(fill.__name__), copy.deepcopy(STUDY))
        fill(study, cells_of(study))
        store.build(study)
        return study

    return build


def draw_built(study, name):
    return figures.save(name, study / "store", study / "figures")


@pytest.mark.parametrize("name", [name for name in NAMES if name != PICTURES])
def test_it_draws_a_whole_study_with_units_on_every_axis(built, cells, name, monkeypatch):
    module, drawn = figures.load(name), []
    plain = module.draw
    monkeypatch.setattr(module, "draw", lambda *a: drawn.append(plain(*a)) or drawn[-1])
    path = draw_built(built(fill), name)
    labels = [a.get_xlabel() for a in drawn[0].axes] + [a.get_ylabel() for a in drawn[0].axes]
    for label in filter(None, labels):
        assert re.search(r"\(.+\)", label) or label in {"Updates", "Tokens"}, label
    assert any(a.get_xlabel() for a in drawn[0].axes)
    assert any(a.get_ylabel() for a in drawn[0].axes)
    assert name not in LOSSES or any("nats per token" in label for label in labels)
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    lines = path.with_suffix(".csv").read_text().splitlines()
    assert len(lines) > (len(cells) / 2 if name in TRAINING else 4)


@pytest.mark.parametrize("name", TRAINING)
def test_it_draws_one_run_and_says_what_is_missing(built, name, monkeypatch):
    study, texts = built(begin), []
    plain = Figure.text
    monkeypatch.setattr(
        Figure,
        "text",
        lambda self, x, y, s, **k: texts.append(s) or plain(self, x, y, s, **k),
    )
    draw_built(study, name)
    lines = [line for text in texts for line in text.splitlines()]
    assert "Of 32 cells: 1 done, 1 running, 30 pending." in lines


@pytest.mark.parametrize("name", NAMES)
def test_it_draws_nothing_without_an_error(built, name):
    assert draw_built(built(leave_empty), name).is_file()


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
def test_equal_data_make_equal_files(built, name):
    paths = [draw_built(built(fill), name) for fill in (fill_eight, fill_eight_again)]
    for kind in figures.FORMATS:
        one, other = (path.with_suffix(f".{kind}").read_bytes() for path in paths)
        assert one == other, kind


@pytest.mark.parametrize("name", NAMES)
def test_its_docstring_is_a_caption(name):
    caption = figures.caption(name)
    assert 3 < len(caption.title.split()) < 16
    assert caption.text.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_it_belongs_to_a_section_of_the_report(name):
    assert figures.load(name).SECTION in SECTIONS


def test_the_map_of_the_grid_tells_statuses_by_letters_too(study, cells):
    finish(study, cells[:4])
    record(study, cells[4].run, b"", "oom")
    live(study, cells[5].run, log(header(cells[5].run), update(1)))
    lay_out(study, skip=[{"context": 32, "attention": "linear", "reason": "not wanted"}])
    store.build(study)
    module = figures.load("grid_status")
    with store.connect(study / "store") as db:
        rows = db.sql(module.QUERY).df()
        drawn = module.draw(rows, db)
    texts = [text.get_text() for axes in drawn.axes for text in axes.texts]
    assert len(texts) == 2 * 2 * 2
    assert texts[:2] == ["4D", "1R 2P 1M"]
    assert texts.count("4S") == 2
    assert texts.count("4P") == 4
    for status in rows.status.unique():
        assert status in module.LOOKS


def test_a_skipped_seed_does_not_colour_the_field_of_those_that_are_done(study, cells):
    finish(study, cells[:4])
    lay_out(study, skip=[{"seed": 1, "reason": "not wanted"}])
    store.build(study)
    module = figures.load("grid_status")
    with store.connect(study / "store") as db:
        drawn = module.draw(db.sql(module.QUERY).df(), db)
    text, field = drawn.axes[0].texts[0].get_text(), drawn.axes[0].patches[0]
    assert "S" in text
    assert to_hex(field.get_facecolor()) == module.LOOKS["done"][1].lower()


def test_the_map_of_spikes_has_their_rate_and_what_is_no_number(study, cells):
    losses = [3.0] * 100
    losses[60] = 4.0
    rows = [update(i + 1, loss=loss) for i, loss in enumerate(losses)]
    for cell, more in zip(cells[::4], ([], [update(101, loss=None)]), strict=False):
        made = log(header(cell.run), *rows, *more, end(100))
        record(study, cell.run, made, updates=100 + len(more))
    store.build(study)
    module = figures.load("instability")
    with store.connect(study / "store") as db:
        drawn = module.draw(db.sql(module.QUERY).df(), db)
    texts = [text.get_text() for axes in drawn.axes for text in axes.texts]
    assert sorted(texts) == ["100", "99 !"]


def test_the_times_of_a_run_add_up_to_its_attempts(study, cells):
    finish(study, cells[:1])
    path = study / "runs" / cells[0].run / "run.json"
    spent = {"train_seconds": 3600.0, "lost_seconds": 1800.0, "attempt_seconds": 7200.0}
    path.write_text(json.dumps(json.loads(path.read_text()) | spent))
    lay_out(study, budget="90 minutes")
    run = next(iter(study_file.read_record(study / "study.json").grid.cells))
    (study / "runs" / cells[0].run).rename(study / "runs" / run)
    path = study / "runs" / run / "run.json"
    path.write_text(path.read_text().replace(cells[0].run, run))
    store.build(study)
    columns = "budget_hours, productive_hours, lost_hours, other_hours"
    with store.connect(study / "store") as db:
        query = figures.load("budget_audit").QUERY
        assert db.sql(f"SELECT {columns} FROM ({query})").fetchall() == [(1.5, 1.0, 0.5, 0.5)]


def test_loss_by_position_draws_four_contexts_and_two_texts_at_most(study, cells, values):
    axes = {"context": [1, 2, 4, 8, 16, 32, 64], "size": ["s"]}
    text = json.dumps({"command": "", "study": values | {"axes": values["axes"] | axes}})
    (study / "study.json").write_text(text)
    cells = list(study_file.read_record(study / "study.json").grid.cells.values())
    finish(study, cells)
    for cell in cells:
        for name in ("a", "b"):
            evaluated(study, cell.run, log(evaluation(cell.run, cell.context, dataset=name)), name)
    store.build(study)
    module = figures.load("loss_by_position")
    with store.connect(study / "store") as db:
        rows = db.sql(module.QUERY).df()
        drawn = module.draw(rows, db)
    assert len(drawn.axes) == 2 * 4 * 4  # losses, and below them gaps to the baseline
    assert [a.get_title() for a in drawn.axes[:4]] == ["a", "a", "b", "b"]
    assert sorted(rows.dataset.unique()) == ["a", "b", "lines"]
    assert style.spread([1, 2, 4, 8, 16, 32, 64], 4) == [1, 4, 16, 64]
    assert style.spread([1, 2], 4) == [1, 2]


def test_loss_by_position_leaves_out_what_is_not_known_to_a_tenth(study, cells):
    finish(study, cells[:1])
    run = cells[0].run
    evaluated(study, run, log(
        evaluation(run, axis="sequence", start=8, loss_se=0.5, stop=16),
        evaluation(run, axis="document", start=64, loss_se=None, stop=128),
        evaluation(run, axis="document", start=128, loss=None, loss_se=None, stop=256),
        evaluation(run, context=8, axis="document", start=16, stop=32),
    ), "more")  # fmt: skip
    draw(study, "loss_by_position")
    text = (study / "figures/loss_by_position.csv").read_text()
    assert len(text.splitlines()) == 1 + 10
    evaluated(study, run, log(evaluation(run, loss_se=None)))  # one block: no bin has an error
    (study / "evaluations" / run / "more.jsonl").unlink()
    draw(study, "loss_by_position")
    assert len((study / "figures/loss_by_position.csv").read_text().splitlines()) == 1 + 1


def positions(losses):
    """Rows of one bin: losses by context, attention and seed."""
    return DataFrame([
        {"dataset": "a", "context": context, "attention": attention, "size": "s", "params": 1e6,
         "seed": seed, "run": f"{context}{attention}{seed}", "axis": "sequence", "start": 8,
         "stop": 16, "position": 12.0, "loss": loss, "is_baseline": attention == "softmax"}
        for (context, attention), seeds in losses.items()
        for seed, loss in enumerate(seeds)
    ])  # fmt: skip


def test_gaps_by_position_are_those_of_pairs_and_have_bands_where_seeds_measured_them():
    module = figures.load("loss_by_position")
    gaps = module._gaps(positions({
        (16, "softmax"): [3.0, 3.5, 3.2], (16, "linear"): [3.11, 3.59, 3.30],
        (64, "softmax"): [2.0], (64, "linear"): [2.2],
    }))  # fmt: skip
    several, one = gaps.sort_values("context").to_dict("records")
    half = 4.3027 * 0.01 / 3**0.5  # two degrees of freedom
    assert several["gap"] == pytest.approx(0.1)
    assert (several["low"], several["high"]) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-5)
    assert one["gap"] == pytest.approx(0.2)
    assert isnan(one["low"])
    assert isnan(one["high"])
    alone = positions({(16, "softmax"): [3.0], (64, "softmax"): [2.0]})
    assert not len(module._gaps(alone))


@pytest.mark.parametrize(("seeds", "said"), [
    (3, "Bars and bands: 95 % intervals from paired seeds."),
    (1, "Bars and bands: the range if the gaps of seeds differ by 0.0027 nats, which is no"),
])  # fmt: skip
def test_multipliers_say_which_side_is_better_and_what_their_bars_are(seeds, said):
    module = figures.load("multiplier")
    columns = ["source", "size", "params", "context", "is_baseline", "attention", "seed",
               "updates", "hours", "flops", "loss"]  # fmt: skip
    rows = [
        ("measured", "s", 85e6, context, attention == "softmax", attention, seed, n, n / 9, 9.0 * n,
         3 + 9 / n + (attention == "linear") * (0.01 + 0.001 * seed**2))
        for context in (64, 256, 1024, 4096, 16384)
        for attention in ("softmax", "linear")
        for seed in range(seeds)
        for n in range(10, 500, 10)
    ]  # fmt: skip
    drawn = module.draw(DataFrame(rows, columns=columns), None)
    assert len(drawn.axes) == 1 + 3  # all contexts, and the curves of three
    assert drawn.axes[0].get_ylabel() == "Multiplier (ratio)\nabove 1: linear is better"
    assert [a.get_title() for a in drawn.axes[1:]] == ["context 64", "context 1k", "context 16k"]
    assert drawn.get_supxlabel().startswith(said)


def test_an_unknown_figure_names_the_nearest(study):
    with pytest.raises(UserError, match="nearest is 'context_scaling'"):
        figures.save("context_scalling", study / "store", study / "figures")


def test_a_variant_keeps_its_colour_whatever_else_is_drawn():
    from lmscaling.figures.shared import style

    assert style.palette(["linear"])["linear"] == style.palette(["a", "linear"])["linear"]
    assert style.palette(["a", "b"])["a"] != style.palette(["a", "b"])["b"]


def test_branches_are_counted_apart_and_change_no_count_of_cells(study, cells):
    finish(study, cells)
    laid_out = lay_out(study, branches={"shares": [0.5, 1.0], "size": "m", "context": 16})
    assert said(study) == "Of 16 branches: 16 pending."
    first, second, *others = laid_out.branches
    branch(study, first)
    record(study, second, b"", "no_trunk")
    assert said(study) == "Of 16 branches: 1 done, 1 no trunk, 14 pending."
    for run in (second, *others):
        branch(study, run)
    assert said(study) == ""
    shutil.rmtree(study / "runs" / cells[0].run)
    assert said(study) == "Of 32 cells: 31 done, 1 pending."


def said(study):
    store.build(study)
    with store.connect(study / "store") as db:
        return figures.unfinished_note(db)


def branch(study, run):
    shutil.rmtree(study / "runs" / run, ignore_errors=True)
    record(study, run, log(header(run, start=30), update(39), validation(39, loss=2.0), end(39)))


def tables(study):
    store.build(study)
    with store.connect(study / "store") as db:
        return {name: figures._rows(name, db).to_csv(index=False) for name in TRAINING}


def test_learning_curves_and_laws_have_the_endpoints_and_no_other_figure(study, cells):
    finish(study, cells)
    plain = tables(study)
    for run in lay_out(study, branches={"shares": [0.5]}).branches:
        branch(study, run)
    drawn = tables(study)
    ends = [row for row in drawn["learning_curves"].splitlines() if row.startswith("decayed")]
    assert len(ends) == 16  # of the better of two rates
    for name in LAWS:
        assert ("decayed" in drawn[name]) == (name != "multiplier")
    assert drawn["learning_curves"].count("\n") == plain["learning_curves"].count("\n") + 16
    for name in set(TRAINING) - CURVES - set(LAWS):
        assert drawn[name] == plain[name], name


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    study = write_study(tmp_path_factory.mktemp("page"), copy.deepcopy(STUDY))
    cells = cells_of(study)
    fill(study, cells[:30])
    record(study, cells[30].run, log(header(cells[14].run), update(1)), "diverged")
    return write(study)


@pytest.mark.ci
def test_the_report_holds_all_it_shows(page):
    assert page.count("data:image/svg+xml;base64,") == len([n for n in NAMES if n != PICTURES])
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)


@pytest.mark.ci
def test_the_report_shows_every_cell_with_its_status(page, cells):
    for cell in cells:
        assert f">{cell.name}<" in page
    assert page.count('<tr class="done">') == 30
    assert page.count('<tr class="diverged">') == 1
    assert page.count('<tr class="pending">') == 1


@pytest.mark.ci
def test_the_report_says_what_made_it(page):
    assert "snakemake --cores &lt;all&gt;" in page
    assert "lmscaling 0.1.0" in page
    assert "abc" in page
    assert "Of 32 cells: 30 done, 1 diverged, 1 pending." in page


def write(study):
    """The page of a study, and its figures drawn."""
    store.build(study)
    for name in NAMES:
        figures.save(name, study / "store", study / "figures")
    return report.write(study).read_text()


def tell(study, blank=True):
    """The page of a study with the rows of its figures, which are not drawn: that takes seconds."""
    store.build(study)
    (study / "figures").mkdir(exist_ok=True)
    with store.connect(study / "store") as db:
        for name in NAMES:
            rows = figures._rows(name, db)
            if blank or len(rows):
                (study / "figures" / f"{name}.csv").write_text(rows.to_csv(index=False))
                (study / "figures" / f"{name}.svg").write_text("<svg/>")
    return report.write(study).read_text()


def lay_out(study, **changes):
    values = json.loads((study / "study.json").read_text())
    values["study"] |= changes
    (study / "study.json").write_text(json.dumps(values))
    return study_file.read_record(study / "study.json").grid


def test_a_figure_that_has_nothing_to_say_is_not_in_the_report(study):
    axes = {"attention": ["linear"], "size": ["s"], "context": [16]}
    finish(study, list(lay_out(study, axes=axes).cells.values()))
    page = tell(study)
    assert 'id="learning_curves"' in page
    assert 'id="learning_rates"' not in page
    assert 'id="rates"' not in page
    assert (study / "figures" / "learning_rates.svg").is_file()


def test_the_report_shows_endpoints_and_spikes_only_where_there_are_any(study, cells):
    finish(study, cells)
    page = tell(study)
    assert 'id="endpoints"' not in page
    assert "A spike is" not in page
    run, planned = next(iter(lay_out(study, branches={"shares": [0.5]}).branches.items()))
    branch(study, run)
    shutil.rmtree(study / "runs" / cells[1].run)
    rows = [update(n, loss=4.0 if n == 80 else 3.0) for n in range(1, 101)]
    last = [update(101, loss=None), validation(101), end(101)]
    record(study, cells[1].run, log(header(cells[1].run), *rows, *last), updates=101)
    page = tell(study)
    assert f'<td class="text">{planned.name}</td>' in page
    assert page.count('id="endpoints"') == 1
    assert "<td>99</td><td>1.00</td>" in page  # one spike in 101 updates
    assert "non-finite training losses</td><td>1</td><td>1</td>" in page
    assert f'<td class="text">{cells[1].name}</td>' in page


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([3.2, 3.0, 3.2], ">one rate on one side of the optimum: no interval<"),
        ([3.2, 3.1, 3.0], "not bracketed (lowest at the edge); lowest loss at 2 x"),
    ],
)
def test_the_report_says_whether_the_best_rate_is_bracketed(study, losses, says):
    axes = {"attention": ["linear"], "size": ["s"], "context": [16], "lr_scale": [0.5, 1.0, 2.0]}
    cells = lay_out(study, axes=axes).cells.values()
    for cell, loss in zip(cells, losses, strict=True):
        record(study, cell.run, log(header(cell.run), update(1), validation(1, loss=loss), end(1)))
    page = tell(study)
    assert 'id="learning_rates"' in page
    table = page.partition('id="rates"')[2].partition("</table>")[0]
    assert says in table
    assert (">0.01<" in table) == ("edge" not in says) == ("lowest loss at" not in table)


def test_the_report_without_its_figures_says_how_to_draw_them(study):
    store.build(study)
    with pytest.raises(UserError, match="run snakemake figures to draw it"):
        report.write(study)


def test_an_attention_with_options_has_a_shade_of_its_colour_and_a_hybrid_has_not():
    colours = style.palette(["local.window128", "softmax.linear", "linear_x3.softmax"])
    assert colours["local.window128"] in style.SHADES["local"]
    assert colours["softmax.linear"] not in style.SHADES["softmax"]
    assert colours["linear_x3.softmax"] not in style.SHADES["linear"]


def test_laws_are_drawn_of_the_attentions_that_have_several_sizes():
    sizes = {"softmax": "ab", "elu": "a", "linear": "ab", "gated": "a", "local": "a"}
    rows = DataFrame([(name, size) for name, own in sizes.items() for size in own],
                        columns=["attention", "size"])  # fmt: skip
    assert law_panels.attentions(rows) == ["softmax", "linear"]
    one = rows.loc[rows["size"] == "a"]
    assert len(law_panels.attentions(one)) == law_panels.MOST_ALIKE
