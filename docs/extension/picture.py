"""The picture of the README: published step times and loss gaps, linear against softmax attention.

    python docs/extension/picture.py    # writes docs/pictures/published-{light,dark}.svg

Gaps are those of the claims (``claims/_contrasts.py``): between the training losses of two runs of
one size and context, when the one that lasted fewer hours ends. Speed-ups are those of the figure
``speed_up``: a training step with softmax over one with chunked linear attention.
"""

import shutil
import tempfile
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from pandas import DataFrame

from lmscaling.claims import _contrasts
from lmscaling.figures import speed_up
from lmscaling.figures.shared import style
from lmscaling.files import replacing
from lmscaling.records import exports
from lmscaling.store import build

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"

THEMES = {
    "light": {"text": "#1a1c20", "grid": "#dedbd3", "sizes": "#a084ca #8766b8 #62409a #3a1c6b"},
    "dark": {"text": "#edebe6", "grid": "#353a42", "sizes": "#7a66a3 #957fc0 #b8a3e0 #e0d3f8"},
}
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


def draw(gaps: DataFrame, steps: DataFrame, theme: str) -> None:
    """Write the picture for one theme."""
    look = THEMES[theme]
    style.use()
    keys = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    mpl.rcParams |= dict.fromkeys(keys, look["text"]) | {"grid.color": look["grid"]}
    colours = dict(zip(MARKERS, look["sizes"].split(), strict=True))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained")
    for axes, rows, column, end in ((left, steps, "speed_up", 1), (right, gaps, "gap", 0)):
        axes.axhline(end, color=look["text"], linewidth=0.9)
        for size in MARKERS:
            part = rows.loc[rows["size"] == size].sort_values("context")
            if len(part):
                axes.plot(
                    part.context, part[column], marker=MARKERS[size], color=colours[size],
                    markersize=4.5, linewidth=1.6, label=size,
                )  # fmt: skip
        _contexts(axes, sorted(rows.context.unique()))
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
    with replacing(FOLDER / f"published-{theme}.svg") as file:
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


def _contexts(axes: Axes, contexts: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(contexts[::2]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(style.tokens))
    axes.set_xlabel("Context (tokens)")
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    found = numbers()
    for name in THEMES:
        draw(*found, name)
