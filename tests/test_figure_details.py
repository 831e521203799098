"""What single figures show: maps of the grid, times of runs, gaps by position, rates, colours."""

import json
import os
import subprocess
import sys
from itertools import chain, combinations

import duckdb
import numpy as np
import pytest
from conftest import sentence
from matplotlib.colors import to_hex, to_rgb
from pandas import DataFrame
from test_figures import cells, cells_of, closed, drawn, finish, lay_out, rows_of, study
from test_store import end, evaluated, evaluation, header, live, log, record, update, validation

from lmscaling import figures
from lmscaling.figures.shared import style
from lmscaling.fits import comparisons
from lmscaling.report import tables as report_tables
from lmscaling.store import build as store

__all__ = ["cells", "closed", "study"]


def test_the_map_of_the_grid_tells_statuses_by_letters_too(study, cells):
    finish(study, cells[:4])
    record(study, cells[4].run, b"", "oom")
    live(study, cells[5].run, log(header(cells[5].run), update(1)))
    lay_out(study, skip=[{"context": 32, "attention": "linear", "reason": "not wanted"}])
    figure, rows = drawn(study, "grid_status")
    texts = [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text()]
    assert texts[:2] == ["4D", "1R 2P 1M"]
    assert [axes.get_title() for axes in figure.axes] == ["s", "m"]
    assert (len(texts), texts.count("4P")) == (2 * (2 + 1), 4)  # nothing of what is skipped
    looks = figures.load("grid_status").LOOKS
    assert {*rows.status} <= {*looks}
    lay_out(study, skip=[{"seed": 1, "reason": "not wanted"}])  # the others of the field are done
    figure, _ = drawn(study, "grid_status")
    text, fields = figure.axes[0].texts[0].get_text(), figure.axes[0].collections[0]
    assert "S" not in text
    assert to_hex(fields.get_facecolor()[0]) == looks["done"][1].lower()


def test_the_map_of_spikes_has_their_rate_and_what_is_no_number(study, cells):
    losses = [3.0] * 100
    losses[60] = 4.0
    rows = [update(i + 1, loss=loss) for i, loss in enumerate(losses)]
    for cell, more in zip(cells[::4], ([], [update(101, loss=None)]), strict=False):
        made = log(header(cell.run), *rows, *more, end(100))
        record(study, cell.run, made, updates=100 + len(more))
    figure, _ = drawn(study, "instability")
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert sorted(texts) == ["100", "99 !"]
    with store.connect(study / "store") as db:
        table = next(t for t in report_tables.tables(db) if t.name == "cells")
    told = dict(zip(table.head, table.rows[4], strict=True)).values()
    assert {"99.0", "1.00"} & {*told} or {"99", "1.00"} <= {*told}  # one in 101 updates


def test_the_times_of_a_run_add_up_to_its_attempts(study):
    run, *_ = lay_out(study, budget="90 minutes").cells
    made = log(header(run), update(1), end(1))
    record(study, run, made, train_seconds=3600.0, lost_seconds=1800.0, attempt_seconds=7200.0)
    _, rows = drawn(study, "budget_audit")
    columns = ["budget_hours", "productive_hours", "lost_hours", "other_hours"]
    assert rows[columns].to_numpy().tolist() == [[1.5, 1.0, 0.5, 0.5]]


def test_a_figure_is_drawn_from_a_notebook_with_any_backend_and_encoding(study):
    run, *_ = lay_out(study).cells
    record(study, run, log(header(run), update(1), end(1)))
    store.build(study)
    notebook = {"MPLBACKEND": "module://none.of_it", "LC_ALL": "C", "PYTHONUTF8": "0"}
    typed = [sys.executable, "-m", "lmscaling", "figure", str(study), "grid_status"]
    subprocess.run(typed, env=os.environ | notebook, check=True)
    assert (study / "figures" / "grid_status.png").is_file()


def test_loss_by_position_draws_four_contexts_and_two_texts_and_no_unsure_bin(study):
    values = json.loads((study / "study.json").read_text())["study"]
    axes = {"context": [2**i for i in range(7)], "size": ["s"], "seed": [0], "lr_scale": [1.0]}
    lay_out(study, axes=values["axes"] | axes)
    cells = cells_of(study)
    finish(study, cells)
    for cell in cells:
        for name in ("a", "b"):
            evaluated(study, cell.run, log(evaluation(cell.run, cell.context, dataset=name)), name)
    figure, rows = drawn(study, "loss_by_position")
    assert len(figure.axes) == 2 * 4 * 4  # losses, and below them gaps to the baseline
    assert [a.get_title() for a in figure.axes[:4]] == ["a", "a", "b", "b"]
    assert sorted(rows.dataset.unique()) == ["a", "b", "lines"]
    assert style.spread([1, 2, 4, 8, 16, 32, 64], 4) == [1, 4, 16, 64]
    assert style.spread([1, 2], 4) == [1, 2]
    run, context = cells[0].run, cells[0].context
    evaluated(study, run, log(
        evaluation(run, context, axis="sequence", start=8, loss_se=0.5, stop=16),
        evaluation(run, context, axis="document", start=64, loss_se=None, stop=128),
        evaluation(run, context, axis="document", start=128, loss=None, loss_se=None, stop=256),
        evaluation(run, context + 1, axis="document", start=16, stop=32),
    ), "more")  # fmt: skip
    assert len(queried(study, "loss_by_position")) == len(rows)  # known to a tenth alone
    evaluated(study, run, log(evaluation(run, context, loss_se=None)))  # no bin has an error
    for name in ("more", "a", "b"):
        (study / "evaluations" / run / f"{name}.jsonl").unlink()
    own = queried(study, "loss_by_position").groupby("run").size()
    assert own[run] == 1


def queried(study, name):
    store.build(study)
    with store.connect(study / "store") as db:
        return rows_of(name, db)


def gaps_by_position(losses):
    """Gaps and the ends of their bands in the panels of each context; losses are of one bin."""
    rows = DataFrame([
        {"dataset": "a", "context": context, "attention": attention, "size": "s", "params": 1e6,
         "seed": seed, "run": f"{context}{attention}{seed}", "axis": "sequence", "start": 8,
         "stop": 16, "position": 12.0, "loss": loss, "is_baseline": attention == "softmax"}
        for (context, attention), seeds in losses.items()
        for seed, loss in enumerate(seeds)
    ])  # fmt: skip
    with duckdb.connect() as db:  # without floors
        for name in ("floors", "planned"):
            db.register(name, DataFrame(columns=["dataset", "name", "context", "loss"], dtype=str))
        figure = figures.load("loss_by_position").draw(rows, db)
    panels = [axes for axes in figure.axes if axes.get_ylabel().startswith("Gap")]
    for axes in panels:
        bands = [path.vertices for band in axes.collections for path in band.get_paths()]
        (gap,) = np.asarray(axes.lines[-1].get_ydata(), dtype=float)
        ends = np.concatenate(bands)[:, 1] if bands else []
        yield gap, [min(ends), max(ends)] if bands else []


def test_gaps_by_position_are_those_of_pairs_and_have_bands_where_seeds_measured_them():
    several, one = gaps_by_position({
        (16, "softmax"): [3.0, 3.5, 3.2], (16, "linear"): [3.11, 3.59, 3.30],
        (64, "softmax"): [2.0], (64, "linear"): [2.2],
    })  # fmt: skip
    half = 4.3027 * 0.01 / 3**0.5  # two degrees of freedom
    assert several == (pytest.approx(0.1), pytest.approx([0.1 - half, 0.1 + half], abs=1e-5))
    assert one == (pytest.approx(0.2), [])
    assert not list(gaps_by_position({(16, "softmax"): [3.0], (64, "softmax"): [2.0]}))


@pytest.mark.parametrize(("seeds", "said"), [(3, "95"), (1, "0.0027")])
def test_multipliers_say_which_side_is_better_and_what_their_bars_are(seeds, said):
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
    with duckdb.connect() as db:
        found = comparisons.tables([], rows)
        for name in ("multipliers", "multiplier_levels"):
            db.register(name, DataFrame(found[name]))
        figure = figures.load("multiplier").draw(DataFrame(rows, columns=columns), db)
    assert len(figure.axes) == 1 + 3  # all contexts, and the curves of three
    assert figure.axes[0].get_ylabel().splitlines()[1].split()[-3:] == ["linear", "is", "better"]
    assert [a.get_title() for a in figure.axes[1:]] == ["context 64", "context 1k", "context 16k"]
    assert said in figure.get_supxlabel().split()[:16]
    sentence("figure", " ".join(figure.get_supxlabel().split()))


@pytest.mark.parametrize("losses", [[3.2, 3.0, 3.2], [3.2, 3.1, 3.0]])
def test_the_report_says_whether_the_best_rate_is_bracketed(study, losses):
    axes = {"attention": ["linear"], "size": ["s"], "context": [16], "lr_scale": [0.5, 1.0, 2.0]}
    cells = lay_out(study, axes=axes).cells.values()
    for cell, loss in zip(cells, losses, strict=True):
        record(study, cell.run, log(header(cell.run), update(1), validation(1, loss=loss), end(1)))
    store.build(study)
    with store.connect(study / "store") as db:
        table = next(t for t in report_tables.tables(db) if t.name == "rates")
        ((row),) = table.rows
        assert len(rows_of("learning_rates", db)) == 3
    sentence("rates", row[-1])
    assert ("0.01" in row) == (losses[1] < losses[2])
    assert ("2" in row[-1].split()) == (losses[1] > losses[2])  # lowest at that factor


def test_colours_of_a_study_are_far_apart_and_stand_out_from_the_page():
    assert style.palette(["linear"])["linear"] == style.palette(["a", "linear"])["linear"]
    names = [*style.COLOURS, "local.window128", "softmax.linear", "linear_x3.softmax", "mine"]
    colours = {name: np.array(to_rgb(code)) for name, code in style.palette(names).items()}
    for one, other in combinations(colours.values(), 2):
        assert np.linalg.norm(one - other) > 0.15
    shades = [style.shades(code, 4) + style.depths(4) for code in style.palette(names).values()]
    for code in {*style.palette(names).values(), *chain(*shades)}:
        rgb = np.array(to_rgb(code))
        linear = np.where(rgb <= 0.04, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        assert 1.05 / (linear @ [0.2126, 0.7152, 0.0722] + 0.05) >= 3, code
