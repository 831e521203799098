"""What became of a run: failed runs are counted, shown, and enter no law."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import STUDY, sentence
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from test_figures import lay_out
from test_own_context import published
from test_store import ask, end, header, log, record, update, validation

from lmscaling import figures
from lmscaling.figures.shared import style
from lmscaling.report import question
from lmscaling.store import build as store
from lmscaling.store import spikes

__all__ = ["published"]
N = 200
ONE = {"attention": ["linear"], "size": ["s"], "context": [16], "seed": [0, 1]}


def new(folder, **axes):
    """The tiny study with such axes, without a run."""
    folder.mkdir()
    axes = STUDY["axes"] | {"seed": [0, 1, 2]} | axes
    values = STUDY | {"budget": f"{N} updates", "axes": axes}
    (folder / "study.json").write_text(json.dumps({"command": "", "study": values}))
    return folder


@pytest.fixture
def study(tmp_path):
    return new(tmp_path / "tiny")


def curve(seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.01, N)
    return 3 + np.exp(-np.arange(1, N + 1) / 20) + noise


def train(study, run, loss, val_loss=None, status="done"):
    """A run with these training losses, and a validation every ten updates with these or others."""
    val_loss = loss if val_loss is None else val_loss
    rows = []
    for n in range(1, len(loss) + 1):
        rows.append(update(n, loss=float(loss[n - 1])))
        if n % 10 == 0 or n == len(loss):
            rows.append(validation(n, loss=float(val_loss[n - 1])))
    made = log(header(run), *rows, end(len(loss), status=status))
    record(study, run, made, status, updates=len(loss))


@contextmanager
def built(folder):
    """The store of a study, built anew."""
    store.build(folder)
    with store.connect(folder / "store") as db:
        yield db


def drawn(db, name):
    """A figure of a study."""
    module = figures.load(name)
    return module.draw(db.sql(module.QUERY).df(), db)


def cells(study):
    return list(lay_out(study).cells.values())


def risen(loss: np.ndarray, start: int, height: float) -> np.ndarray:
    return loss + np.where(np.arange(len(loss)) >= start, height, 0)


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """The store of six runs, one NaN, one exploded, four well, and their names in this order."""
    study = new(tmp_path_factory.mktemp("failed") / "tiny")
    of = sorted(cells(study), key=lambda cell: (cell.attention, cell.seed))
    first, second, *others = [cell.run for cell in of]
    train(study, first, curve(0)[: N // 2], status="diverged")
    train(study, second, risen(curve(1), 150, 0.6))
    for seed, run in enumerate(others, 2):
        train(study, run, curve(seed))
    with built(study) as db:
        yield db, [first, second, *others]


@pytest.fixture(scope="module")
def well(tmp_path_factory):
    """The store of six runs that end well."""
    study = new(tmp_path_factory.mktemp("well") / "tiny")
    for seed, cell in enumerate(cells(study)):
        train(study, cell.run, curve(seed))
    with built(study) as db:
        yield db


def test_a_run_whose_loss_rises_for_good_counts_as_failed_and_enters_no_law_but_has_a_curve(failed):
    db, (diverged, exploded, healthy, *_) = failed

    def rows(query):
        return db.sql(query).fetchall()

    for view in ("final", "law_curves"):
        runs = {run for (run,) in rows(f"SELECT DISTINCT run FROM {view}")}
        assert len(runs) == 4
        assert runs.isdisjoint([diverged, exploded])
    assert {run for (run,) in rows("SELECT trunk FROM law_points")}.isdisjoint([diverged, exploded])
    assert {run for (run,) in rows("SELECT run FROM curves")} >= {diverged, exploded}
    found = rows("SELECT run, status, outcome, loss, n_ok, n_started FROM outcomes")
    by_run = {run: rest for run, *rest in found}
    assert by_run[diverged] == ["diverged", "failed", float("inf"), 1, 3]
    assert by_run[exploded] == ["exploded", "failed", float("inf"), 1, 3]
    assert by_run[healthy] == ["done", "ok", pytest.approx(3, abs=0.05), 1, 3]
    ((message,),) = rows(f"SELECT message FROM status WHERE run = '{exploded}'")
    assert float(message.split()[3]) == pytest.approx(0.6, abs=0.05)
    medians = dict(rows("SELECT attention, median(loss) FROM outcomes GROUP BY ALL"))
    assert medians == {"linear": float("inf"), "softmax": pytest.approx(3, abs=0.05)}


def test_at_another_rate_a_failure_hides_nothing(tmp_path):
    study = new(tmp_path / "tiny", lr_scale=[1.0, 2.0], attention=["linear"])
    for i, cell in enumerate(cells(study)):
        train(study, cell.run, risen(curve(i), 150, 0.6 * (cell.lr_scale == 2) - 0.7))
    assert ask(study, "SELECT lr_scale FROM final") == [(1.0,)] * 3


RISES = {  # by context: start, rises of the training and validation loss, scatter of seeds
    2: (150, 0.5, 0.0, 0.0, "done"),  # hard text
    4: (150, 0.0, 0.5, 0.0, "done"),  # a model that learns its text by heart
    8: (150, 0.05, 0.05, 0.0, "done"),
    16: (N - 3, 2.0, 2.0, 0.0, "done"),  # a spike at the end
    32: (150, 0.3, 0.3, 0.0, "exploded"),
    64: (150, 0.3, 0.3, 0.1, "done"),  # where seeds scatter more
}


def test_a_rise_of_both_losses_beyond_the_scatter_of_seeds_is_an_explosion(tmp_path):
    study = new(tmp_path / "tiny", attention=["linear"], context=list(RISES))
    for cell in cells(study):
        start, train_rise, val_rise, scatter, _ = RISES[cell.context]
        loss = curve(cell.seed)
        if cell.seed == 0:
            train(study, cell.run, risen(loss, start, train_rise), risen(loss, start, val_rise))
        else:
            train(study, cell.run, loss + scatter * (-1) ** cell.seed)
    found = ask(study, "SELECT context, status FROM status WHERE seed = 0")
    assert dict(found) == {context: status for context, (*_, status) in RISES.items()}


def test_seeds_of_a_task_do_not_say_how_far_a_loss_of_text_may_rise(tmp_path):
    study = new(tmp_path / "tiny", seed=[0])
    row = {"kind": "recall", "pairs": [2, 4], "queries": 4, "keys": 8, "values": 8}
    task = {
        "dataset": "recall", "size": "w", "context": 17, "seed": [0, 1], "update_tokens": 68,
        "validation": {"tokens": 136, "every_tokens": 136},
    }  # fmt: skip
    made = lay_out(
        study, datasets=STUDY["datasets"] | {"recall": row}, tasks={"recall": task},
        sizes=STUDY["sizes"] | {"w": STUDY["sizes"]["s"]},
    )  # fmt: skip
    for i, run in enumerate((*made.cells, *made.tasks)):
        train(study, run, curve(i) + i)
    limits = dict(ask(study, "SELECT run, most_rise FROM runs"))
    assert {limits[run] for run in made.cells} == {0.1}
    assert all(limits[run] > 3 for run in made.tasks)


def test_the_rise_is_that_of_medians_of_twentieths():
    loss = np.repeat(np.arange(20.0, 0, -1), 10)
    assert spikes.rise(loss) == 0
    loss[-6:] += 3
    assert spikes.rise(loss) == 2  # 1 + 3 above the 2 of the twentieth before
    loss[-6] -= 3
    assert spikes.rise(loss) == 0.5
    assert spikes.rise(loss[:19]) is None


def test_the_report_counts_failures_and_compares_attentions(study, well, failed):
    with built(study) as db:
        assert question.failures(db) == []
    of_failed = ["softmax 0 of 3,", "linear 2 of 3 ", "p 0.4"]
    for db, numbers in ((well, ["none of 6"]), (failed[0], of_failed)):
        (line,) = question.failures(db)
        assert all(number in line for number in numbers)
        sentence("report", line)


def test_a_failed_run_is_an_arrow_at_the_upper_edge(failed):
    panels = drawn(failed[0], "parameter_scaling").axes
    lines = [(axes, line) for axes in panels for line in axes.lines]
    ends = [line.get_ydata()[-1] for axes, line in lines
            if line.get_transform() == axes.get_xaxis_transform()]  # fmt: skip
    assert ends == [1, 1]


def test_runs_of_unequal_budgets_are_marked_with_their_hours_and_not_joined(published):
    figure = drawn(published, "context_scaling")
    hours = ["29.3", "22.6", "21.5", "15", "22.3", "22.5", "21.9", "19.8", "21.8"]
    told = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert told == {f"{number} h" for number in hours}
    blue = style.palette(["softmax", "linear"])["softmax"]
    lines = [line for axes in figure.axes for line in axes.lines if line.get_color() == blue]
    joined = {x for line in lines if len(line.get_xdata()) > 2 for x in line.get_xdata()}
    assert 65536 not in joined
    assert 4096 in joined
    assert "0.0019 nats" in " ".join(figure.get_supxlabel().split())


@pytest.mark.parametrize("name", ["context_scaling", "parameter_scaling"])
def test_bars_of_different_lines_stand_side_by_side(published, name):
    panels = drawn(published, name).axes
    lines = [(i, line) for i, axes in enumerate(panels) for line in axes.lines]
    bars = [(i, line.get_xdata()[0]) for i, line in lines if line.get_marker() == "_"]
    assert len(bars) > len(panels)
    assert len(set(bars)) == len(bars)


def test_intervals_are_of_measured_seeds_where_there_are_enough(well):
    said = " ".join(drawn(well, "parameter_scaling").get_supxlabel().split())
    assert "95 %" in said
    assert "if seeds" not in said
    sentence("figure", said)


def test_a_spike_is_a_stroke_and_no_triangle(study):
    run = cells(study)[0].run
    loss = curve(0)
    loss[150] += 2
    train(study, run, loss)
    query = "SELECT max(spike), max(loss) FILTER (updates > 50) FROM curves"
    with built(study) as db:
        ((height, most),) = db.sql(query).fetchall()
        figure = drawn(db, "learning_curves")
    assert height == pytest.approx(loss[150])
    assert most < 3.2
    parts = [part for axes in figure.axes for part in axes.collections]
    lines = [part for part in parts if isinstance(part, LineCollection)]
    (stroke,) = (segment for part in lines for segment in part.get_segments())
    assert stroke[0][0] == stroke[1][0]
    assert stroke[1][1] == pytest.approx(loss[150])


def test_a_png_has_its_title_and_the_svg_of_the_report_has_not(study, monkeypatch):
    train(study, cells(study)[0].run, curve(0))
    store.build(study)
    said = {}
    plain = Figure.savefig

    def save(self, file, **options):
        said[options["format"]] = [text.get_text() for text in self.texts]
        return plain(self, file, **options)

    monkeypatch.setattr(Figure, "savefig", save)
    for name in ("context_scaling", "step_time"):
        figures.save(name, study / "store", study / "figures")
        title = f"{figures.caption(name).title}."
        assert [title in said.pop(kind) for kind in ("svg", "png")] == [False, True]


@pytest.mark.parametrize(("schedule", "ends"), [("constant", 1), ("cosine", 0)])
def test_a_run_whose_text_ended_counts_by_what_it_spent_unless_its_rate_had_to_decay(
    study, schedule, ends
):
    lay_out(study, schedule=schedule, axes=ONE)
    first, second = [cell.run for cell in cells(study)]
    train(study, first, curve(0))
    train(study, second, curve(1)[:150], status="out_of_tokens")
    query = f"SELECT spent, budget FROM law_points WHERE trunk = '{second}' AND share = 1"
    assert ask(study, query) == [(150, N)] * ends
