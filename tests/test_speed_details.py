"""Figures of chunks, batches, layers, tasks, memory and predicted times."""

import pytest
import speed_points
from speed_points import point
from test_speed_figures import THEIRS, draw, legend, lines, marks, pairs, panel, study

from lmscaling import figures
from lmscaling.figures.shared import style

__all__ = ["study"]


def test_the_fastest_chunk_of_each_context_has_a_star(study):
    speed_points.write(study, *speed_points.tiny())
    speed_points.write(study, point("tune_chunk", "linear chunked", 8192, None, chunk=16))
    _, figure = draw(study, "chunk_time")
    axes = panel(figure, "s, linear chunked")
    assert [pairs(star) for star in marks(axes, "*")] == [
        [(64, context / 100)] for context in (1024, 2048, 4096)
    ]
    assert legend(figure)[:4] == ["context 1k", "context 2k", "context 4k", "context 8k"]


def test_decode_times_have_a_panel_for_each_size_and_batch(study):
    for batch in (1, 16):
        points = [point("time_decode", "softmax", c, 1e-3 * batch, batch=batch) for c in (64, 128)]
        speed_points.write(study, *points)
    _, figure = draw(study, "decode_time")
    assert [axes.get_title() for axes in figure.axes] == ["s, 1 sequence", "s, 16 sequences"]
    assert pairs(lines(figure.axes[1], "softmax")[0]) == [(64, 16.0), (128, 16.0)]


def test_a_layer_is_timed_by_its_mean_or_by_token_and_head(study):
    speed_points.write(study, *speed_points.tiny())
    rows, figure = draw(study, "layer_time")
    labels = [axes.get_ylabel() for axes in figure.axes[::2]]
    assert labels == ["Time (ms)", "Time (ns per token, head)"]
    chunked = rows[(rows.method == "linear chunked") & (rows.context == 128)]
    fixed, shared = chunked.sort_values("size").itertuples()
    assert (fixed.time, fixed.upper_time) == (pytest.approx(1.02), pytest.approx(1.12))
    assert shared.time == pytest.approx(1e6 / (8 * 128 * 2))
    assert (fixed.speed_up, shared.speed_up) == (pytest.approx(1.28), pytest.approx(1.28))
    assert not lines(figure.axes[1], "softmax flash")


def test_time_and_memory_of_a_copy_are_those_of_a_sequence(study):
    speed_points.write(study, *speed_points.tiny())
    _, figure = draw(study, "copy_task")
    time, memory = figure.axes
    assert pairs(lines(time, "linear")[0]) == [(128, 10 / 4), (256, 10 / 2)]  # ms for a sequence
    assert pairs(lines(memory, "linear")[0]) == [(128, 228 / 4), (256, 356 / 2)]


def test_memory_that_is_not_known_is_not_drawn(study):
    speed_points.write(
        study,
        point("time_step", "softmax flash", 64, 1.0),
        point("time_step", "softmax flash", 128, 1.0, peak_memory_bytes=0),
    )
    rows, figure = draw(study, "memory", THEIRS)
    assert set(rows.source) == {"measured"}
    assert pairs(lines(figure.axes[0], "softmax flash")[0]) == [(64, pytest.approx(0.164))]


def test_contexts_are_written_in_units_of_1024_where_they_are_multiples():
    assert [style.tokens(n) for n in (0, 64, 1000, 1024, 65536)] == ["0", "64", "1000", "1k", "64k"]


def test_steps_are_predicted_on_listed_devices_and_for_known_methods(study):
    speed_points.write(
        study,
        point("time_step", "softmax flash", 1024, 1.0),
        point("time_step", "mine", 1024, 1.0),
        point("time_step", "softmax flash", 2048, 1.0, device="a CPU"),
        point("time_step", "softmax flash", 4096, None),
    )
    rows, figure = draw(study, "predicted_time")
    ratio = rows.set_index(["method", "context"]).ratio.dropna()
    assert list(ratio.index) == [("softmax flash", 1024)]
    assert rows.predicted_seconds.dropna().tolist() == [pytest.approx(ratio.iloc[0])]
    assert pairs(lines(panel(figure, "s"), "softmax flash")[0]) == [(1024, ratio.iloc[0])]
    assert rows.lower_ratio.min() < ratio.iloc[0] < rows.upper_ratio.max()


def test_a_published_size_is_predicted_from_the_other_sizes_alone(study):
    speed_points.write(study, *speed_points.tiny())
    shapes = {"s": 2, "m": 4}
    theirs = [
        point("time_step", "softmax flash", 1024, seconds * n, size=size, n_layer=n)
        for seconds in (1.0, 2.0)
        for size, n in shapes.items()
    ]
    both, _ = draw(study, "predicted_time", theirs[:2])
    moved, _ = draw(study, "predicted_time", [theirs[0], theirs[3]])  # m took twice as long

    def times(rows):
        published = rows.loc[rows.source == "published"]
        return published.set_index("size").predicted_seconds

    assert times(moved)["m"] == pytest.approx(times(both)["m"])
    assert times(moved)["s"] > 1.3 * times(both)["s"]


def test_shares_of_time_add_up_to_all_of_it(study):
    speed_points.write(
        study,
        point("time_step", "softmax flash", 1024, 1.0),
        point("time_step", "linear chunked", 1024, 1.0),
        point("time_step", "linear state", 1024, 1.0),
    )
    rows, figure = draw(study, "time_shares")
    parts = [*figures.load("time_shares").PARTS]
    assert rows.method.tolist() == ["linear chunked", "softmax flash"]
    assert rows[parts].sum(axis=1).tolist() == [pytest.approx(1)] * 2
    assert [axes.get_title() for axes in figure.axes] == ["softmax flash, s", "linear chunked, s"]


@pytest.mark.parametrize("name", ["predicted_time", "time_shares"])
def test_without_a_listed_device_the_figure_says_so(study, name):
    speed_points.write(study, point("time_step", "softmax flash", 1024, 1.0, device="a CPU"))
    _, figure = draw(study, name)
    assert "listed" in " ".join(text.get_text() for text in figure.texts)
