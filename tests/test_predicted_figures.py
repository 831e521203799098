"""Figures of predicted times: who is predicted from whom, and what the shares add up to."""

import pytest
import speed_points
from speed_points import point
from test_speed_figures import draw, lines, pairs, panel, study

from lmscaling import figures
from lmscaling.figures.shared import style

__all__ = ["study"]


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
