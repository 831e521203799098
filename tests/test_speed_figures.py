"""Figures of the speed study: who is on one line, where a line ends, what times and tasks take."""

import json
import math
import re

import numpy as np
import pytest
import speed_points
from conftest import STUDY, sentence
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from speed_points import DEVICE, OTHER_DEVICE, PUBLISHED, SETUP, point

from lmscaling import figures, registry
from lmscaling.figures import predicted
from lmscaling.figures.shared import speed, style
from lmscaling.store import build as store

QUERIES = {name: figures.load(name).QUERY for name in registry.figures()}
NAMES = [name for name, query in QUERIES.items() if re.search("FROM (speeds|measurements)", query)]
LAYER = {"size": "article", "passes": "forward", "n_layer": None}
THEIRS = [
    point(kind, f"{attention}{implementation}", context, context / 1e4)
    for context in (1024, 2048)
    for kind, names in (("time_step", (" flash", " chunked")), ("time_decode", ("", "")))
    for attention, implementation in zip(("softmax", "linear"), names, strict=True)
]


MORE = (
    point("time_step", "softmax cudnn", 2048, None, status="failed"),
    point("time_step", "linear chunked", 4096, 1e-9, OTHER_DEVICE),
    *(point("time_step", "linear chunked", 8192, None, size="m", chunk=n) for n in (16, 64)),
)
ENDED = (
    ("time_step", "softmax flash"), ("time_step", "linear chunked"), ("time_step", "linear state"),
    ("time_decode", "linear"), ("time_layer", "linear chunked"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The store of some points of every kind."""
    points = [*speed_points.tiny(), *MORE]
    yield from store_of(tmp_path_factory.mktemp("whole"), points, THEIRS)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The same of points that all ran out of memory."""
    points = [point(kind, method, 64, None) for kind, method in ENDED]
    points += [point("time_step", "linear chunked", 64, None, chunk=n) for n in (8, 16)]
    points.append(point("time_step", "linear", 64, None, size="copy"))
    yield from store_of(tmp_path_factory.mktemp("ended"), points, ())


def store_of(folder, points, published):
    (folder / "study.json").write_text(json.dumps({"command": "snakemake", "study": STUDY}))
    speed_points.write(folder, *points)
    store.build(folder)
    speed_points.publish(folder, *published)
    with store.connect(folder / "store") as db:
        yield db


@pytest.fixture
def draw(tmp_path):
    """Draws a figure of some points and published ones: its rows and itself."""

    def draw(name, *points, published=()):
        (found,) = (shown(db, name) for db in store_of(tmp_path, points, published))
        return found

    return draw


def shown(db, name):
    rows = db.sql(figures.load(name).QUERY).df()
    return rows, figures.load(name).draw(rows, db) if len(rows) else style.nothing("")


def panel(figure, title) -> Axes:
    return next(axes for axes in figure.axes if axes.get_title().startswith(title))


def lines(axes, method):
    """The lines of a method, by its colour and marker."""
    look = speed.METHODS[method]
    data = [container[0] for container in axes.containers]
    return [x for x in data if (x.get_color(), x.get_marker()) == (look.colour, look.marker)]


def marks(axes, mark):
    return [line for line in axes.lines if line.get_marker() == mark]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def flash(context, seconds, **values):
    return point("time_step", "softmax flash", context, seconds, **values)


def pairs(line):
    return [(x, pytest.approx(y)) for x, y in line.get_xydata().tolist()]


def test_other_devices_and_published_numbers_are_lines_of_their_own(whole):
    _, figure = shown(whole, "step_time")
    first, second, theirs = lines(panel(figure, "s"), "softmax flash")
    assert pairs(first) == [(1024, 10.48576), (2048, 41.94304), (4096, 167.77216)]
    assert pairs(second) == [(1024, 5.24288), (2048, 20.97152)]
    assert pairs(theirs) == [(1024, 102.4), (2048, 204.8)]
    assert len({line.get_linestyle() for line in (first, second, theirs)}) == 3
    assert to_hex(first.get_markerfacecolor()) == to_hex(first.get_color())
    assert to_hex(second.get_markerfacecolor()) == to_hex(theirs.get_markerfacecolor()) == "#ffffff"
    assert theirs.get_linewidth() < second.get_linewidth()
    assert legend(figure)[-6:-3] == ["setup 1", "setup 2", "published"]


def test_two_models_of_one_name_are_not_joined(draw):
    points = [flash(c, seconds, sweep=f"s-{seconds}") for seconds in (1, 2) for c in (64, 128)]
    _, figure = draw("step_time", *points)
    one, other = lines(panel(figure, "s"), "softmax flash")
    assert pairs(one) == [(64, 1000), (128, 1000)]
    assert pairs(other) == [(64, 2000), (128, 2000)]
    assert legend(figure) == ["softmax flash"]  # one setup is named in the note only
    assert figure.get_supxlabel().startswith(f"Measured on {SETUP};")


def test_what_was_not_timed_is_a_mark_at_the_upper_edge_and_has_no_height(whole):
    _, figure = shown(whole, "step_time")
    axes = panel(figure, "s")
    (oom,), (slow,), (failed,) = (marks(axes, mark) for mark in "x+1")
    assert [pairs(mark) for mark in (oom, slow, failed)] == [[(2048, 1)], [(4096, 1)], [(2048, 1)]]
    figure.canvas.draw()
    edge, inch = axes.bbox.y1, figure.dpi
    extents = [mark.get_window_extent() for mark in (oom, slow, failed)]
    heights = [extent.get_points().mean(axis=0)[1] for extent in extents]
    assert (edge - np.array(heights)) / inch == pytest.approx([speed.STEP, 0, 0], abs=0.02)
    assert slow.get_color() == speed.METHODS["linear state"].colour
    assert pairs(lines(axes, "linear state")[0])[-1][0] == 2048
    assert legend(figure)[-3:] == ["out of memory", "too slow", "failed"]


def test_bars_are_quartiles_and_published_numbers_have_none_and_the_note_names_all(draw):
    points = flash(64, 1.0, repeats=20), flash(128, None), flash(1024, 1.0, repeats=50)
    _, figure = draw("step_time", *points, published=THEIRS)
    words = " ".join(figure.get_supxlabel().split())
    assert re.search(rf"{re.escape(SETUP)}; .*\b20 to 50\b", words)
    assert re.search(rf"Published: {re.escape(PUBLISHED)}; ", words)
    sentence("figure", words)
    ours, theirs, _ = figure.axes[0].containers  # the last is published linear attention
    ((_, segment),) = (bars.get_segments() for bars in ours[2])
    assert segment.tolist() == [[1024, pytest.approx(900)], [1024, pytest.approx(1100)]]
    assert not any(len(bar) for bar in theirs[2][0].get_segments())


def test_guides_rise_with_the_context_and_its_square_below_all_lines(draw):
    contexts = (64, 1024, 16384)
    chunked = [point("time_step", "linear chunked", c, c / 1e5) for c in contexts]
    _, figure = draw("step_time", *chunked, *(flash(c, c**2 / 1e8) for c in contexts))
    axes = panel(figure, "s")
    guides = [line for line in axes.lines if line.get_linewidth() == 0.7]
    for slope, guide in zip((1, 2), guides, strict=True):
        (x0, y0), (x1, y1) = np.asarray(guide.get_xydata())
        assert math.log(y1 / y0) / math.log(x1 / x0) == pytest.approx(slope)
        assert (x1, y0) == (16384, pytest.approx(0.04096))
        assert y1 < 163
    assert [text.get_text() for text in axes.texts] == ["1", "2"]


def test_the_speed_up_compares_within_a_setup_and_a_size(whole):
    rows, figure = shown(whole, "speed_up")
    assert not rows.method.str.startswith("softmax").any()
    found = {
        (row.source, row.setup.partition(",")[0], row.size, row.context): row.speed_up
        for row in rows[rows.method == "linear chunked"].itertuples()
    }
    contexts = (1024, 2048, 4096)
    expected = {("measured", DEVICE, size, c): c / 1e3 for size in ("s", "m") for c in contexts}
    expected |= {("measured", OTHER_DEVICE, "s", c): 1.5 * c / 1e3 for c in (1024, 2048)}
    expected |= {("published", PUBLISHED, "s", c): 1.0 for c in (1024, 2048)}
    assert found == pytest.approx(expected)
    ours = rows[(rows.source == "measured") & (rows.method == "linear chunked")]
    assert (ours.lower_speed_up / ours.speed_up).tolist() == pytest.approx([9 / 11] * 8)
    assert (ours.upper_speed_up / ours.speed_up).tolist() == pytest.approx([11 / 9] * 8)
    for axes in figure.axes:
        assert [1.0, 1.0] in [np.asarray(line.get_ydata()).tolist() for line in axes.lines]


def test_the_speed_up_is_over_the_fastest_softmax_of_each_point_which_the_rows_name(draw):
    times = {
        "linear chunked": (1.0, 1.0, 1.0), "softmax flash": (4.0, 4.0, 4.0),
        "softmax cudnn": (5.0, 3.0), "softmax no_flash": (2.0,),
    }  # fmt: skip
    expected = {1024: ("softmax no_flash", 2.0), 2048: ("softmax cudnn", 3.0)}
    expected |= {4096: ("softmax flash", 4.0)}
    for name, kind, values in (("speed_up", "time_step", {}), ("layer_time", "time_layer", LAYER)):
        points = [
            point(kind, method, 1024 * 2**i, time, **values)
            for method, of in times.items()
            for i, time in enumerate(of)
        ]
        rows, figure = draw(name, *points)
        chunked = rows[rows.method == "linear chunked"]
        found = zip(chunked.baseline, chunked.speed_up.round(6), strict=True)
        assert dict(zip(chunked.context, found, strict=True)) == expected, name
    assert lines(figure.axes[1], "softmax flash")
    assert not lines(figure.axes[1], "softmax no_flash")


def test_a_device_is_filled_by_steps_of_several_sequences_at_three_contexts_at_most(draw):
    points = [
        flash(context, seconds, size=size, batch=8192 // context, flops_per_token=6e3)
        for context in (512, 1024, 2048, 4096, 8192)
        for size, seconds in (("s", 2.0), ("m", 4.0))
    ]
    _, figure = draw("throughput", *points)
    titles = [axes.get_title().split()[::3] for axes in figure.axes[:3]]
    assert titles == [["16", "512"], ["8", "1k"], ["4", "2k"]]
    assert pairs(lines(figure.axes[0], "softmax flash")[0]) == [(1000, 4096), (3000, 2048)]


def test_nothing_is_compared_where_softmax_is_missing(draw):
    assert draw("speed_up", point("time_step", "linear chunked", 64, 1.0))[0].empty
    _, figure = draw("layer_time", point("time_layer", "linear chunked", 64, 1.0, **LAYER))
    (text,) = (t.get_text() for t in figure.axes[1].texts)
    sentence("figure", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_where_it_was_measured_and_keeps_what_is_written_apart(whole, name):
    style.use()
    rows, figure = shown(whole, name)
    words = " ".join(figure.get_supxlabel().split())
    assert all(setup in words for setup in rows.setup)
    assert re.search(r"\b50 repeats", words)
    figure.canvas.draw()
    (below,) = (text.get_window_extent() for text in figure.texts)
    assert 0 <= below.x0 < below.x1 <= figure.bbox.x1
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box
        assert below.y1 <= box.y0
        assert box.y1 <= figure.legends[0].get_window_extent().y0


@pytest.mark.parametrize("name", NAMES)
def test_points_that_all_failed_are_drawn_as_marks(ended, name):
    rows, figure = shown(ended, name)
    if len(rows):
        assert any(marks(axes, "x") for axes in figure.axes)
    else:
        assert name in {"memory", "speed_up", "throughput", "predicted_time", "time_shares"}


def test_a_method_keeps_its_colour_and_each_has_a_marker_of_its_own(whole):
    for name in ("step_time", "chunked_against_all", "memory"):
        assert lines(shown(whole, name)[1].axes[0], "softmax flash"), name
    apart = {name: look for name, look in speed.METHODS.items() if " " in name}
    assert len({look.colour for look in apart.values()}) == len(apart)
    assert len({look.marker for look in apart.values()}) == len(apart)
    assert speed.METHODS["softmax"] == speed.METHODS["softmax flash"]
    assert speed.METHODS["linear"] == speed.METHODS["linear chunked"]
    assert list(speed.methods(["mine", "linear", "softmax"])) == ["softmax", "linear", "mine"]


def test_the_fastest_chunk_of_each_context_has_a_star(whole):
    _, figure = shown(whole, "chunk_time")
    stars = [pairs(star) for star in marks(panel(figure, "s, linear chunked"), "*")]
    assert stars == [[(64, context / 100) for context in (1024, 2048, 4096)]]
    assert legend(figure)[:4] == ["context 1k", "context 2k", "context 4k", "context 8k"]


def test_decode_times_have_a_panel_for_each_size_and_batch(draw):
    points = [
        point("time_decode", "softmax", c, 1e-3 * n, batch=n) for c in (64, 128) for n in (1, 16)
    ]
    _, figure = draw("decode_time", *points)
    assert [axes.get_title() for axes in figure.axes] == ["s, 1 sequence", "s, 16 sequences"]
    assert pairs(lines(figure.axes[1], "softmax")[0]) == [(64, 16.0), (128, 16.0)]


def test_a_layer_is_timed_by_its_mean_or_by_token_and_head(whole):
    rows, figure = shown(whole, "layer_time")
    labels = [axes.get_ylabel() for axes in figure.axes[::2]]
    assert labels == ["Time (ms)", "Time (ns per token, head)"]
    chunked = rows[(rows.method == "linear chunked") & (rows.context == 128)]
    fixed, shared = chunked.sort_values("size").itertuples()
    assert (fixed.time, fixed.upper_time) == (pytest.approx(1.02), pytest.approx(1.12))
    assert shared.time == pytest.approx(1e6 / (8 * 128 * 2))
    assert (fixed.speed_up, shared.speed_up) == (pytest.approx(1.28), pytest.approx(1.28))
    assert not lines(figure.axes[1], "softmax flash")


def test_time_and_memory_of_a_copy_are_those_of_a_sequence(whole):
    time, memory = shown(whole, "copy_task")[1].axes
    assert pairs(lines(time, "linear")[0]) == [(128, 10 / 4), (256, 10 / 2)]  # ms for a sequence
    assert pairs(lines(memory, "linear")[0]) == [(128, 228 / 4), (256, 356 / 2)]


def test_memory_that_is_not_known_is_not_drawn(draw):
    points = flash(64, 1.0), flash(128, 1.0, peak_memory_bytes=0)
    rows, figure = draw("memory", *points, published=THEIRS)
    assert set(rows.source) == {"measured"}
    assert pairs(lines(figure.axes[0], "softmax flash")[0]) == [(64, pytest.approx(0.164))]
    # Contexts are written in units of 1,024 where they are multiples.
    assert [style.tokens(n) for n in (0, 64, 1000, 1024, 65536)] == ["0", "64", "1000", "1k", "64k"]


def test_steps_are_predicted_on_listed_devices_and_for_known_methods(draw):
    points = flash(1024, 1.0), flash(2048, 1.0, device="a CPU"), flash(4096, None)
    rows, figure = draw("predicted_time", *points, point("time_step", "mine", 1024, 1.0))
    ratio = rows.set_index(["method", "context"]).ratio.dropna()
    assert list(ratio.index) == [("softmax flash", 1024)]
    assert rows.predicted_seconds.dropna().tolist() == [pytest.approx(ratio.iloc[0])]
    assert pairs(lines(panel(figure, "s"), "softmax flash")[0]) == [(1024, ratio.iloc[0])]
    assert rows.lower_ratio.min() < ratio.iloc[0] < rows.upper_ratio.max()


def test_a_published_size_is_predicted_from_the_other_sizes_alone(draw):
    found = []
    for seconds in (4.0, 8.0):  # the larger one took twice as long
        small, large = flash(1024, 2.0, n_layer=2), flash(1024, seconds, size="m", n_layer=4)
        rows, _ = draw("predicted_time", *speed_points.tiny(), published=(small, large))
        found.append(rows.loc[rows.source == "published"].set_index("size").predicted_seconds)
    assert found[1]["m"] == pytest.approx(found[0]["m"])
    assert found[1]["s"] > 1.3 * found[0]["s"]


def test_shares_of_time_add_up_to_all_of_it(draw):
    methods = ("softmax flash", "linear chunked", "linear state")
    rows, figure = draw("time_shares", *(point("time_step", name, 1024, 1.0) for name in methods))
    parts = [*predicted.PARTS]
    assert rows.method.tolist() == ["linear chunked", "softmax flash"]
    assert rows[parts].sum(axis=1).tolist() == [pytest.approx(1)] * 2
    assert [axes.get_title() for axes in figure.axes] == ["softmax flash, s", "linear chunked, s"]


def test_without_a_listed_device_nothing_is_drawn(draw):
    for name in ("predicted_time", "time_shares"):
        rows, _ = draw(name, flash(1024, 1.0, device="a CPU"))
        assert rows.empty
