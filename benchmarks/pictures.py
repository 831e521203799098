"""The pictures of the README: the study on CPU cores, and published step times and loss gaps.

    python benchmarks/pictures.py    # writes docs/pictures/{cpu-study,published}-{light,dark}.svg

Losses of the study are those of ``cpu_answers.py``. Published gaps are those of the claims
(``claims/_contrasts.py``): between the training losses of two runs of one size and context, when
the one that lasted fewer hours ends. Speed-ups are those of the figure ``speed_up``: a training
step with softmax over one with chunked linear attention.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cpu_study
import matplotlib as mpl
import numpy as np
from cpu_answers import SMALL, Losses
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from pandas import DataFrame

from lmscaling import Study
from lmscaling.claims import _contrasts
from lmscaling.figures import speed_up
from lmscaling.figures.shared import style
from lmscaling.files import replacing
from lmscaling.records import exports
from lmscaling.store import build

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"

THEMES = {
    "light": {"text": "#1a1c20", "grid": "#dedbd3", "sizes": "#a084ca #8766b8 #62409a #3a1c6b"},
    "dark": {"text": "#edebe6", "grid": "#353a42", "sizes": "#7a66a3 #957fc0 #b8a3e0 #e0d3f8"},
}
BRIGHTER = {"local.window128": "#8FA8FF", "softmax": "#3DA5E0"}
"""Colours of attentions that a dark page hides."""
TIMES = "\N{MULTIPLICATION SIGN}"
MARKERS = {"124M": "o", "355M": "s", "774M": "^", "1558M": "D"}


def numbers() -> tuple[DataFrame, DataFrame]:
    """The gap of each size and context after equal hours (nats), and the speed-up of a step."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder, "published")
        study.mkdir()
        for stem in exports.PUBLISHED:
            shutil.copy(ROOT / "results" / "published" / f"{stem}.csv", study)
        build.build(study)
        with build.connect(study / "store") as db:
            roles = {"candidate": "linear", "baseline": "softmax"}
            curves = db.execute(_contrasts.CURVES, roles).df()
            steps = db.sql(speed_up.QUERY).df()
    losses = _contrasts.losses_at(curves, "hours", ["size", "context"])
    gaps = losses.pivot_table(index=["size", "context"], columns="role", values="loss").dropna()
    gaps["gap"] = gaps.candidate - gaps.baseline
    return gaps.reset_index(), steps.loc[steps.method == "linear chunked"]


@contextmanager
def picture(name: str, theme: str, **kwargs: Any) -> Iterator[tuple[Axes, Axes]]:
    """Two panels in the colours of a theme, which are written when the block ends."""
    style.use()
    keys = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    look = THEMES[theme]
    mpl.rcParams |= dict.fromkeys(keys, look["text"]) | {"grid.color": look["grid"]}
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained", **kwargs)
    yield left, right
    with replacing(FOLDER / f"{name}-{theme}.svg") as file:
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


def draw_study(panels: tuple[Axes, Axes], losses: Sequence[Losses], theme: str) -> None:
    """Losses of 100k over the context, after equal updates and after equal CPU seconds."""
    names = list(dict.fromkeys(name for each in losses for name, size, _ in each if size == SMALL))
    colours = style.palette(names) | (BRIGHTER if theme == "dark" else {})
    titles = "After equal updates", "After equal CPU seconds"
    for axes, each, title in zip(panels, losses, titles, strict=True):
        for name in names:
            own = {
                c: [*v.values()] for (n, size, c), v in each.items() if (n, size) == (name, SMALL)
            }
            means = [np.mean(own[context]) for context in sorted(own)]
            axes.plot(
                [*own], means, color=colours[name], marker=style.marker(name), markersize=4.5,
                linewidth=1.6, label=name,
            )  # fmt: skip
            for context, values in own.items():
                axes.vlines(context, min(values), max(values), color=colours[name], linewidth=1)
        _contexts(axes, sorted({context for *_, context in each}), "Context (bytes)")
        axes.set_title(title, loc="left", weight="bold")
    panels[0].set_ylabel("Validation loss (nats per byte)")
    panels[0].figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")


def draw_published(
    panels: tuple[Axes, Axes], gaps: DataFrame, steps: DataFrame, theme: str
) -> None:
    """Speed-ups of a training step, and gaps after equal hours."""
    look = THEMES[theme]
    colours = dict(zip(MARKERS, look["sizes"].split(), strict=True))
    left, right = panels
    for axes, rows, column, end in ((left, steps, "speed_up", 1), (right, gaps, "gap", 0)):
        axes.axhline(end, color=look["text"], linewidth=0.9)
        for size in MARKERS:
            part = rows.loc[rows["size"] == size].sort_values("context")
            if len(part):
                axes.plot(
                    part.context, part[column], marker=MARKERS[size], color=colours[size],
                    markersize=4.5, linewidth=1.6, label=size,
                )  # fmt: skip
        _contexts(axes, sorted(rows.context.unique())[::2], "Context (tokens)")
    left.set_yscale("log")
    left.yaxis.set_major_locator(FixedLocator([1, 2, 4, 8, 16, 32]))
    left.yaxis.set_minor_locator(NullLocator())
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{TIMES}"))
    left.set_title("A training step is faster at long contexts …", loc="left", weight="bold")
    left.set_ylabel("Time of softmax / time of linear")
    right.set_title("… but after equal hours the loss is higher", loc="left", weight="bold")
    right.set_ylabel("Loss of linear minus softmax (nats per token)")
    right.set_ylim(-0.015, None)
    left.legend(title="Model size", loc="upper left")


def _contexts(axes: Axes, contexts: list[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(contexts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(style.tokens))
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    published, found = numbers(), cpu_study.Finished(Study(cpu_study.FOLDER, fresh=True))
    study = found.losses, found.at_equal_seconds()
    for theme in THEMES:
        with picture("published", theme) as panels:
            draw_published(panels, *published, theme)
        with picture("cpu-study", theme, sharey=True) as panels:
            draw_study(panels, study, theme)


if __name__ == "__main__":
    main()
