"""The pictures of the README and of the study on CPU cores.

    python results/measured/cpu-python/pictures.py    # writes docs/pictures/*.svg

Losses of the study are those of ``cpu_answers.py``. Published gaps are those of the claims
(``claims/_contrasts.py``): between the training losses of two runs of one size and context, when
the one that lasted fewer hours ends. Speed-ups are those of the figure ``speed_up``: a training
step with the fastest softmax over one with chunked linear attention.
"""

import math
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cpu_study
import matplotlib as mpl
import numpy as np
from cpu_answers import (
    CONTEXT,
    HELD_OUT_CONTEXT,
    IMPROVEMENT,
    LARGE,
    LONG,
    SMALL,
    Row,
    gaps,
    interval_of,
    line,
)
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MultipleLocator, NullLocator
from pandas import DataFrame

from lmscaling import Study, figures
from lmscaling.claims import _contrasts
from lmscaling.figures.shared import style
from lmscaling.files import replacing
from lmscaling.store import PUBLISHED, build

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "pictures"
RATES = ROOT / "results" / "measured" / "cpu-python-rates"
RATE_LOSSES = """
    SELECT attention, size, lr_scale, val_loss AS loss FROM last_validation
    WHERE status = 'done' ORDER BY ALL
"""

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
        for stem in PUBLISHED:
            shutil.copy(ROOT / "results" / "published" / f"{stem}.csv", study)
        build.build(study)
        with build.connect(study / "store") as db:
            roles = {"candidate": "linear", "baseline": "softmax"}
            curves = db.execute(_contrasts.CURVES, roles).df()
            steps = db.sql(figures.load("speed_up").QUERY).df()
    losses = _contrasts.losses_at(curves, "hours", ["size", "context"])
    wide = losses.pivot_table(index=["size", "context"], columns="role", values="loss").dropna()
    wide["gap"] = wide.candidate - wide.baseline
    return wide.reset_index(), steps.loc[steps.method == "linear chunked"]


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


def look_of(names: Iterable[str], theme: str) -> dict[str, dict[str, Any]]:
    """Colour, marker and label of each attention."""
    colours = style.palette([*names]) | (BRIGHTER if theme == "dark" else {})
    return {
        name: {"color": colours[name], "marker": style.marker(name), "label": name}
        for name in names
    }


def curve(axes: Axes, values: Mapping[float, Sequence[float]], look: Mapping[str, Any]) -> None:
    """Means over seeds, with the range of the seeds."""
    points = sorted(values)
    means = [np.mean(values[x]) for x in points]
    axes.plot(points, means, markersize=4.5, linewidth=1.6, **look)
    for x in points:
        axes.vlines(x, min(values[x]), max(values[x]), color=look["color"], linewidth=1)


def legend(axes: Axes) -> None:
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


def draw_over_context(panels: tuple[Axes, Axes], found: cpu_study.Finished, theme: str) -> None:
    """Losses of 100k over the context, after equal updates and after equal CPU seconds."""
    names = found.attentions
    looks = look_of(sorted(names, key=lambda name: -found.mean(name, LONG)), theme)
    several = found.losses, found.at_equal_seconds()
    for axes, losses, title in zip(panels, several, ("updates", "CPU seconds"), strict=True):
        for name, look in looks.items():
            contexts = [c for one, size, c in losses if (one, size) == (name, SMALL)]
            curve(axes, {c: [*losses[name, SMALL, c].values()] for c in contexts}, look)
        _contexts(axes, sorted({context for *_, context in losses}), "Context (bytes)")
        axes.set_title(f"After equal {title}", loc="left", weight="bold")
    low, high = panels[0].get_ylim()  # of both
    for floor in found.floors:
        if low < floor["loss"] < high:
            for axes in panels:
                axes.axhline(floor["loss"], color="0.5", linewidth=1, linestyle="--", zorder=0)
            at = panels[1].get_yaxis_transform()
            panels[1].text(0.99, floor["loss"] + 0.01, floor["name"], transform=at, ha="right")
    panels[0].set_ylabel("Validation loss (nats per byte)")
    legend(panels[0])


def draw_memory(panels: tuple[Axes, Axes], found: cpu_study.Finished, theme: str) -> None:
    """What longer windows gain, and the gap over the recall of 16 pairs."""
    left, right = panels
    looks = look_of(sorted(found.attentions, key=lambda name: -found.mean(name, LONG)), theme)
    rows = found.windows
    for name, look in looks.items():
        own = [row for row in rows if row["attention"] == name]
        least = {
            seed: min(row["loss"] for row in own if row["seed"] == seed)
            for seed in {row["seed"] for row in own}
        }
        above: dict[float, list[float]] = defaultdict(list)
        for row in own:
            above[row["window"]].append(row["loss"] - least[row["seed"]])
        curve(left, above, look)
    left.axhline(IMPROVEMENT, color=THEMES[theme]["text"], linewidth=0.9, linestyle=":")
    windows = sorted({row["window"] for row in rows})
    _contexts(left, windows[1::2], "Window (bytes)")
    left.set_ylabel("Loss above that of the best window (nats)")
    left.set_title("What longer windows gain", loc="left", weight="bold")
    for row in found.recall:
        gap = [*gaps(found.losses, row["attention"], SMALL, CONTEXT).values()]
        look = looks[row["attention"]]
        right.plot([row["recall"]] * len(gap), gap, **{**look, "label": None}, linestyle="")
    right.axhline(0, color=THEMES[theme]["text"], linewidth=0.9)
    right.set_xlabel("Recall of 16 pairs (share)")
    right.set_ylabel(f"Gap to softmax at {CONTEXT:,} (nats)")
    right.set_title("Recall does not predict the gap", loc="left", weight="bold")
    right.spines[["top", "right"]].set_visible(False)
    legend(left)


def draw_rates(panels: tuple[Axes, Axes], rows: Sequence[Row], theme: str) -> None:
    """Losses of the search for learning rates above the best of each attention, by size."""
    looks = look_of(sorted({row["attention"] for row in rows}), theme)
    for axes, size in zip(panels, (SMALL, LARGE), strict=True):
        for name, look in looks.items():
            own = {
                row["lr_scale"]: [row["loss"]]
                for row in rows
                if (row["attention"], row["size"]) == (name, size)
            }
            least = min((loss for (loss,) in own.values()), default=0.0)
            curve(axes, {scale: [loss - least] for scale, (loss,) in own.items()}, look)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{TIMES}"))
        axes.set_xlabel("Learning rate, of the first guess")
        axes.set_title(f"{size} parameters", loc="left", weight="bold")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("Loss above that of the best rate (nats)")
    legend(panels[0])


def draw_sizes(panels: tuple[Axes, Axes], found: cpu_study.Finished, theme: str) -> None:
    """Losses over parameters, with the sealed intervals of 300k and the line to 2700k."""
    plain = THEMES[theme]["text"]
    for axes, (name, look) in zip(
        panels, look_of(("softmax", "linear"), theme).items(), strict=True
    ):
        own = [row for row in found.sizes if row["attention"] == name]
        places = {row["size"]: math.exp(row["x"]) for row in own}
        losses = {size: found.losses[name, size, HELD_OUT_CONTEXT].values() for size in places}
        points = [(places[size], loss) for size in places for loss in losses[size]]
        xs, ys = np.array(points).T
        axes.plot(xs, ys, linestyle="", **{**look, "label": "measured"})
        (sealed, *_) = (
            row for row in found.forecasts if (row["attention"], row["size"]) == (name, "300k")
        )
        low, high = interval_of(sealed)
        median = sealed["median"]
        axes.errorbar(
            0.87 * places["300k"], median, [[median - low], [high - median]],
            fmt="_", capsize=4, color=plain, label="sealed, 95 %",
        )  # fmt: skip
        predicted, guess = line(found.sizes)[name]
        slope, offset = np.polyfit([row["x"] for row in own[:3]], [row["y"] for row in own[:3]], 1)
        axes.plot(
            [places[SMALL], places["2700k"]],
            [places[size] ** slope * math.exp(offset) for size in (SMALL, "2700k")],
            color=look["color"], linewidth=1, linestyle="--",
            label=f"line through three sizes: {predicted:.3f}",
        )  # fmt: skip
        axes.plot(
            places["2700k"], guess, marker="x", linestyle="", color=plain,
            label=f"guess: {guess:.3f}",
        )  # fmt: skip
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator([*places.values()]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([*places])
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(MultipleLocator(0.05))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}"))
        axes.set_xlabel("Parameters without embeddings")
        axes.set_title(name, loc="left", weight="bold")
        axes.legend()
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("Validation loss (nats per byte)")


def draw_published(
    panels: tuple[Axes, Axes], losses: DataFrame, steps: DataFrame, theme: str
) -> None:
    """Speed-ups of a training step, and gaps after equal hours."""
    look = THEMES[theme]
    colours = dict(zip(MARKERS, look["sizes"].split(), strict=True))
    left, right = panels
    for axes, rows, column, end in ((left, steps, "speed_up", 1), (right, losses, "gap", 0)):
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
    left.set_ylabel("Time of the fastest softmax / time of linear")
    right.set_title("… but after equal hours the loss is higher", loc="left", weight="bold")
    right.set_ylabel("Loss of linear minus softmax (nats per token)")
    right.set_ylim(-0.015, None)
    left.legend(title="Model size", loc="upper left")


def _contexts(axes: Axes, contexts: list[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(contexts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.tokens(value)))
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    published, found = numbers(), cpu_study.Finished(Study(cpu_study.FOLDER, fresh=True))
    rates = cpu_study.query(Study(RATES, fresh=True), RATE_LOSSES)
    for theme in THEMES:
        with picture("published", theme) as panels:
            draw_published(panels, *published, theme)
        with picture("cpu-study", theme, sharey=True) as panels:
            draw_over_context(panels, found, theme)
        with picture("cpu-study-memory", theme) as panels:
            draw_memory(panels, found, theme)
        with picture("cpu-study-rates", theme, sharey=True) as panels:
            draw_rates(panels, rates, theme)
        with picture("cpu-study-sizes", theme) as panels:
            draw_sizes(panels, found, theme)


if __name__ == "__main__":
    main()
