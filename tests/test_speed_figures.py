"""Figures of the speed study: who is on one line, where a line ends, and what the page says."""

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
from speed_points import OTHER_DEVICE, PUBLISHED, SETUP, point

from lmscaling import figures, registry
from lmscaling.figures.shared import speed, style
from lmscaling.store import build as store

NAMES = [name for name in registry.figures() if "FROM speeds" in figures.load(name).QUERY]

THEIRS = [
    point(kind, f"{attention}{implementation}", context, context / 1e4)
    for context in (1024, 2048)
    for kind, names in (("time_step", (" flash", " chunked")), ("time_decode", ("", "")))
    for attention, implementation in zip(("softmax", "linear"), names, strict=True)
]


@pytest.fixture
def study(tmp_path, values):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({"command": "snakemake", "study": values}))
    yield folder
    plt.close("all")


def draw(study, name, published=()):
    """Rows and figure from the points that were written, and published ones."""
    store.build(study)
    speed_points.publish(study, *published)
    with store.connect(study / "store") as db:
        rows = db.sql(figures.load(name).QUERY).df()
        return rows, figures.load(name).draw(rows, db) if len(rows) else style.nothing("")


def panel(figure, title) -> Axes:
    return next(axes for axes in figure.axes if axes.get_title().startswith(title))


def lines(axes, method):
    """The lines of a method, by its colour and marker."""
    look = style.METHODS[method]
    data = [container[0] for container in axes.containers]
    return [x for x in data if (x.get_color(), x.get_marker()) == (look.colour, look.marker)]


def marks(axes, mark):
    return [line for line in axes.lines if line.get_marker() == mark]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def pairs(line):
    return [(x, pytest.approx(y)) for x, y in line.get_xydata().tolist()]


def test_other_devices_and_published_numbers_are_lines_of_their_own(study):
    speed_points.write(study, *speed_points.tiny())
    _, figure = draw(study, "step_time", THEIRS)
    first, second, theirs = lines(panel(figure, "s"), "softmax flash")
    assert pairs(first) == [(1024, 10.48576), (2048, 41.94304), (4096, 167.77216)]
    assert pairs(second) == [(1024, 5.24288), (2048, 20.97152)]
    assert pairs(theirs) == [(1024, 102.4), (2048, 204.8)]
    assert len({line.get_linestyle() for line in (first, second, theirs)}) == 3
    assert to_hex(first.get_markerfacecolor()) == to_hex(first.get_color())
    assert to_hex(second.get_markerfacecolor()) == to_hex(theirs.get_markerfacecolor()) == "#ffffff"
    assert theirs.get_linewidth() < second.get_linewidth()
    assert legend(figure)[-5:] == ["setup 1", "setup 2", "published", "out of memory", "too slow"]


def test_one_setup_is_named_in_the_note_only(study):
    speed_points.write(study, point("time_step", "softmax flash", 64, 1.0))
    _, figure = draw(study, "step_time")
    assert legend(figure) == ["softmax flash"]
    assert figure.get_supxlabel().startswith(f"Measured on {SETUP};")


def test_two_models_of_one_name_are_not_joined(study):
    for sweep, seconds in (("s-1", 1.0), ("s-2", 2.0)):
        points = [point("time_step", "softmax flash", c, seconds, sweep=sweep) for c in (64, 128)]
        speed_points.write(study, *points)
    _, figure = draw(study, "step_time")
    one, other = lines(panel(figure, "s"), "softmax flash")
    assert pairs(one) == [(64, 1000), (128, 1000)]
    assert pairs(other) == [(64, 2000), (128, 2000)]


def test_what_was_not_timed_is_a_mark_at_the_upper_edge_and_has_no_height(study):
    speed_points.write(study, *speed_points.tiny())
    speed_points.write(study, point("time_step", "softmax cudnn", 2048, None, status="failed"))
    _, figure = draw(study, "step_time")
    axes = panel(figure, "s")
    (oom,), (slow,), (failed,) = (marks(axes, mark) for mark in "x+1")
    assert [pairs(mark) for mark in (oom, slow, failed)] == [[(2048, 1)], [(4096, 1)], [(2048, 1)]]
    figure.canvas.draw()
    edge, inch = axes.bbox.y1, figure.dpi
    heights = [
        mark.get_window_extent().get_points().mean(axis=0)[1] for mark in (oom, slow, failed)
    ]
    assert (edge - np.array(heights)) / inch == pytest.approx([speed.STEP, 0, 0], abs=0.02)
    assert slow.get_color() == style.METHODS["linear state"].colour
    assert pairs(lines(axes, "linear state")[0])[-1][0] == 2048
    assert legend(figure)[-3:] == ["out of memory", "too slow", "failed"]


def test_bars_are_quartiles_and_published_numbers_have_none(study):
    speed_points.write(study, point("time_step", "softmax flash", 1024, 1.0))
    _, figure = draw(study, "step_time", THEIRS)
    ours, theirs, _ = figure.axes[0].containers  # the last is published linear attention
    ((segment,),) = (bars.get_segments() for bars in ours[2])
    assert segment.tolist() == [[1024, pytest.approx(900)], [1024, pytest.approx(1100)]]
    assert not any(len(bar) for bar in theirs[2][0].get_segments())


def test_guides_rise_with_the_context_and_its_square_below_all_lines(study):
    for context in (64, 1024, 16384):
        flash = point("time_step", "softmax flash", context, context**2 / 1e8)
        speed_points.write(
            study, flash, point("time_step", "linear chunked", context, context / 1e5)
        )
    _, figure = draw(study, "step_time")
    axes = panel(figure, "s")
    guides = [line for line in axes.lines if line.get_linewidth() == 0.7]
    for slope, guide in zip((1, 2), guides, strict=True):
        (x0, y0), (x1, y1) = np.asarray(guide.get_xydata())
        assert math.log(y1 / y0) / math.log(x1 / x0) == pytest.approx(slope)
        assert (x1, y0) == (16384, pytest.approx(0.04096))
        assert y1 < 163
    assert [text.get_text() for text in axes.texts] == ["1", "2"]


def test_the_speed_up_compares_within_a_setup_and_a_size(study):
    speed_points.write(study, *speed_points.tiny())
    speed_points.write(study, point("time_step", "linear chunked", 4096, 1e-9, OTHER_DEVICE))
    rows, figure = draw(study, "speed_up", THEIRS)
    assert not rows.method.str.startswith("softmax").any()
    found = {
        (row.source, row.setup.partition(",")[0], row.size, row.context): row.speed_up
        for row in rows[rows.method == "linear chunked"].itertuples()
    }
    expected = {
        ("measured", "NVIDIA H100 80GB HBM3", size, context): context / 1e3
        for size in ("s", "m")
        for context in (1024, 2048, 4096)
    }
    expected |= {("measured", OTHER_DEVICE, "s", c): 1.5 * c / 1e3 for c in (1024, 2048)}
    expected |= {("published", PUBLISHED, "s", c): 1.0 for c in (1024, 2048)}
    assert found == pytest.approx(expected)
    ours = rows[(rows.source == "measured") & (rows.method == "linear chunked")]
    assert (ours.lower_speed_up / ours.speed_up).tolist() == pytest.approx([9 / 11] * 8)
    assert (ours.upper_speed_up / ours.speed_up).tolist() == pytest.approx([11 / 9] * 8)
    for axes in figure.axes:
        assert [1.0, 1.0] in [np.asarray(line.get_ydata()).tolist() for line in axes.lines]


def test_the_speed_up_is_over_the_fastest_softmax_of_each_point_which_the_rows_name(study):
    layer = {"size": "article", "passes": "forward", "n_layer": None}
    for kind, values in (("time_step", {}), ("time_layer", layer)):
        speed_points.write(
            study,
            *(point(kind, "linear chunked", c, 1.0, **values) for c in (1024, 2048, 4096)),
            *(point(kind, "softmax flash", c, 4.0, **values) for c in (1024, 2048, 4096)),
            *(point(kind, "softmax cudnn", c, s, **values) for c, s in ((1024, 5.0), (2048, 3.0))),
            point(kind, "softmax no_flash", 1024, 2.0, **values),
        )
    expected = {1024: ("softmax no_flash", 2.0), 2048: ("softmax cudnn", 3.0)}
    expected |= {4096: ("softmax flash", 4.0)}
    for name in ("speed_up", "layer_time"):
        rows, figure = draw(study, name)
        chunked = rows[rows.method == "linear chunked"]
        found = zip(chunked.baseline, chunked.speed_up.round(6), strict=True)
        assert dict(zip(chunked.context, found, strict=True)) == expected, name
    assert lines(figure.axes[1], "softmax flash")
    assert not lines(figure.axes[1], "softmax no_flash")


def test_a_device_is_filled_by_steps_of_several_sequences_at_three_contexts_at_most(study):
    for context in (512, 1024, 2048, 4096, 8192):
        for size, seconds in (("s", 2.0), ("m", 4.0)):
            full = {"size": size, "batch": 8192 // context, "flops_per_token": 6e3}
            speed_points.write(study, point("time_step", "softmax flash", context, seconds, **full))
    _, figure = draw(study, "throughput")
    assert [axes.get_title() for axes in figure.axes[:3]] == [
        f"{n} sequences of {tokens} tokens" for n, tokens in ((16, 512), (8, "1k"), (4, "2k"))
    ]
    assert pairs(lines(figure.axes[0], "softmax flash")[0]) == [(1000, 4096), (3000, 2048)]


def test_nothing_is_compared_where_softmax_is_missing(study):
    layer = {"size": "article", "passes": "forward", "n_layer": None}
    speed_points.write(
        study,
        point("time_step", "linear chunked", 64, 1.0),
        point("time_layer", "linear chunked", 64, 1.0, **layer),
    )
    store.build(study)
    figures.save("speed_up", study / "store", study / "figures")
    assert figures.is_empty("speed_up", study / "figures")
    _, figure = draw(study, "layer_time")
    (text,) = (t.get_text() for t in figure.axes[1].texts)
    sentence("figure", text)


def test_the_note_names_hardware_versions_and_repeats(study):
    points = [point("time_step", "softmax flash", c, 1.0, repeats=c) for c in (20, 50)]
    speed_points.write(study, *points, point("time_step", "softmax flash", 64, None))
    _, figure = draw(study, "step_time", THEIRS)
    words = " ".join(figure.get_supxlabel().split())
    assert re.search(rf"{re.escape(SETUP)}; .*\b20 to 50\b", words)
    assert re.search(rf"Published: {re.escape(PUBLISHED)}; ", words)
    sentence("figure", words)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The rows of every figure of some points of every kind, and the store."""
    yield from figures_of(tmp_path_factory.mktemp("whole"), speed_points.tiny(), THEIRS)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The same of points that all ran out of memory."""
    points = [point(**made) for made in failed()]
    yield from figures_of(tmp_path_factory.mktemp("ended"), points, ())


def figures_of(folder, points, published):
    (folder / "study.json").write_text(json.dumps({"command": "snakemake", "study": STUDY}))
    speed_points.write(folder, *points)
    store.build(folder)
    speed_points.publish(folder, *published)
    with store.connect(folder / "store") as db:
        yield db, {name: db.sql(figures.load(name).QUERY).df() for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_where_it_was_measured_and_keeps_what_is_written_apart(study, whole, name):
    db, rows = whole
    style.use()
    figure = figures.load(name).draw(rows[name], db)
    words = " ".join(figure.get_supxlabel().split())
    assert all(setup in words for setup in rows[name].setup)
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
def test_points_that_all_failed_are_drawn_as_marks(study, ended, name):
    db, rows = ended
    if len(rows[name]):
        figure = figures.load(name).draw(rows[name], db)
        assert any(marks(axes, "x") for axes in figure.axes)
    else:
        assert name in {"memory", "speed_up", "throughput", "predicted_time", "time_shares"}


def failed():
    """One point of each kind that ran out of memory."""
    for kind, method in (
        ("time_step", "softmax flash"), ("time_step", "linear chunked"),
        ("time_step", "linear state"), ("tune_chunk", "linear chunked"),
        ("time_decode", "linear"), ("time_layer", "linear chunked"), ("copy_task", "linear"),
    ):  # fmt: skip
        yield {"kind": kind, "method": method, "context": 64, "seconds": None, "chunk": 16}


def test_published_numbers_are_drawn_without_any_of_ours(study):
    store.build(study)
    speed_points.publish(study, *THEIRS)
    with store.connect(study / "store") as db:
        for name in ("step_time", "speed_up", "chunked_against_all", "decode_time"):
            rows = db.sql(figures.load(name).QUERY).df()
            figure = figures.load(name).draw(rows, db)
            assert set(rows.source) == {"published"}
            assert legend(figure)[-1] == "published"
            assert len(figure.axes) == 1


def test_a_method_keeps_its_colour_and_each_has_a_marker_of_its_own(study, whole):
    for name in ("step_time", "chunked_against_all", "memory"):
        figure = figures.load(name).draw(whole[1][name], whole[0])
        assert lines(figure.axes[0], "softmax flash"), name
    apart = {name: look for name, look in style.METHODS.items() if " " in name}
    assert len({look.colour for look in apart.values()}) == len(apart)
    assert len({look.marker for look in apart.values()}) == len(apart)
    assert style.METHODS["softmax"] == style.METHODS["softmax flash"]
    assert style.METHODS["linear"] == style.METHODS["linear chunked"]
    assert list(style.methods(["mine", "linear", "softmax"])) == ["softmax", "linear", "mine"]
