"""The pictures of the README and of the pages of studies.

    python results/measured/pictures.py    # writes docs/pictures/*.svg

Numbers of the law study are those of ``law_answers.py``, and its lines those of the figure
``loss_over_compute``. Those of the study of forgetting are of ``forgetting_answers.py``. Published
gaps are those of the claims (``claims/_contrasts.py``): between the training losses of two runs of
one size and context, when the one that lasted fewer hours ends.
Speed-ups are those of the figure ``speed_up``: a training step with the fastest softmax over one
with chunked linear attention.
"""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from forgetting import forgetting_answers
from law import law_answers
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from pandas import DataFrame

from lmscaling import Study, figures
from lmscaling.claims import _contrasts
from lmscaling.figures import loss_over_compute
from lmscaling.figures.shared import style
from lmscaling.files import replacing
from lmscaling.fits import loss_surface, points, seeds
from lmscaling.store import PUBLISHED, build

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
THEMES = {
    "light": {"text": "#1a1c20", "grid": "#dedbd3", "sizes": "#a084ca #8766b8 #62409a #3a1c6b"},
    "dark": {"text": "#edebe6", "grid": "#353a42", "sizes": "#7a66a3 #957fc0 #b8a3e0 #e0d3f8"},
}
BRIGHTER = {"softmax": "#3DA5E0", "linear": "#F0A030", "retention": "#C98F6B"}
"""Colours of attentions on a dark page."""
TIMES = "\N{MULTIPLICATION SIGN}"
MARKERS = {"124M": "o", "355M": "s", "774M": "^", "1558M": "D"}
ATTENTIONS = ("linear", "retention", "softmax")
"""From the highest loss to the lowest, as their lines lie."""
FORMS = {"sum": "linear", "gate": "gated", "softmax": "softmax"}
"""Forms of the study of forgetting, with the attentions whose colours and markers they have."""
DECAYED = points.QUERY_OF.format(view="(FROM law_points WHERE schedule = 'decayed')")
MEANS = """
    SELECT attention, params, share, avg(flops) AS flops, avg(loss) AS loss
    FROM law_points WHERE schedule = 'decayed' GROUP BY ALL ORDER BY ALL
"""
LAWS = "SELECT attention FROM surfaces WHERE schedule = 'decayed' AND a_opt_low IS NOT NULL"
"""Those whose parameters the runs determine."""


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


def draw_law(panels: tuple[Axes, Axes], study: Study, theme: str) -> None:
    """Losses over compute with the fitted laws, and compute multipliers by size."""
    left, right = panels
    colours = style.palette(ATTENTIONS) | (BRIGHTER if theme == "dark" else {})
    decayed = study.query(DECAYED).itertuples(index=False, name=None)
    means, laws = study.query(MEANS), {*study.query(LAWS).attention}
    for (*_, name, _), group in points.groups(points.read(decayed), "attention", "context").items():
        look = {"color": colours[name], "marker": style.marker(name), "alpha": 0.6}
        flops, losses = group.column("flops"), group.column("loss")
        left.plot(flops, losses, linestyle="", markersize=4, label=name, **look)
        for _, own in means.query("attention == @name").groupby("params"):
            left.plot(own.flops, own.loss, color=colours[name], linewidth=0.7, alpha=0.6)
        if name in laws:
            sizes, read = group.column("params"), group.column("tokens")
            path = loss_over_compute.path(loss_surface.fit_group(group), sizes, read, flops)
            reach = path.quantile * path.error
            left.plot(path.flops, path.loss, color=colours[name], linewidth=1.8)
            ends = path.loss - reach, path.loss + reach
            left.fill_between(path.flops, *ends, color=colours[name], alpha=0.2, linewidth=0)
    left.set_xscale("log")
    left.set_xlabel("Compute (FLOPs)")
    left.set_ylabel("Validation loss (nats per byte)")
    left.set_title("The loss falls with the compute …", loc="left", weight="bold")
    multiples = study.query(law_answers.MULTIPLIERS)
    sizes = [*dict.fromkeys(multiples["size"])]
    right.axhline(1, color=THEMES[theme]["text"], linewidth=0.9)
    for i, name in enumerate(law_answers.OTHERS):
        own = multiples[multiples.attention == name].set_index("size").reindex(sizes)
        at = [place + 0.12 * (i - 0.5) for place in range(len(sizes))]
        ends = [(own.flops - own.flops_low), (own.flops_high - own.flops)]
        right.errorbar(
            at, own.flops, ends, color=colours[name], marker=style.marker(name), label=name,
            markersize=4.5, linewidth=1.2, elinewidth=1.2,
        )  # fmt: skip
    right.set_xticks(range(len(sizes)), sizes)
    right.set_ylim(0, None)
    right.set_xlabel("Parameters without embeddings")
    right.set_ylabel("Compute multiplier")
    right.set_title("… and softmax needs this share of it", loc="left", weight="bold")
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    left.legend()


def draw_forgetting(panels: tuple[Axes, Axes], theme: str) -> None:
    """Losses above what can be known by context, with what was sealed, and losses behind other
    documents; of models that go on from 512 tokens."""
    left, right = panels
    of, rises = forgetting_answers.losses_of("longer", None), forgetting_answers.rises()
    colours = style.palette(FORMS.values()) | (BRIGHTER if theme == "dark" else {})
    text = THEMES[theme]["text"]
    contexts = sorted({context for _, context in of.last})
    lag = [of.lag(context) for context in contexts]
    look: dict[str, Any] = {"color": text, "linewidth": 4, "alpha": 0.3}
    left.plot(contexts, lag, label="a reader that cannot forget", **look)
    for form, name in FORMS.items():
        look = {"color": colours[name], "marker": style.marker(name)}
        look |= {"markersize": 4.5, "linewidth": 1.4, "elinewidth": 1.4}
        look["label"] = form if form == name else f"linear, {form}"
        seen = [of.excess(form, context).values() for context in contexts]
        _with_intervals(left, contexts, seen, look)
        before = sorted(rises[form])
        _with_intervals(right, before, [rises[form][b] for b in before], look)
    sealed = json.loads(forgetting_answers.SEAL.read_text())
    known = [each[forgetting_answers.READER] for each in sealed.values()]
    left.plot([*map(int, sealed)], known, "_", color=text, markersize=16, label="sealed prediction")
    for axes in panels:
        axes.axhline(0, color=text, linewidth=0.9)
    _contexts(left, contexts, "Context (tokens)")
    left.set_ylabel("Loss above the exact one (nats per token)")
    left.set_title("With context, the sum falls behind …", loc="left", weight="bold")
    left.legend(loc="upper left")
    right.set_xlabel("Tokens of other documents before")
    right.set_ylabel("Loss minus that behind none (nats per token)")
    right.set_title("… as what is past misleads it", loc="left", weight="bold")
    right.spines[["top", "right"]].set_visible(False)


def _with_intervals(
    axes: Axes, x: Sequence[int], samples: Sequence[Iterable[float]], look: dict[str, Any]
) -> None:
    """Means over seeds with their 95 % intervals."""
    means = [seeds.mean([*sample]) for sample in samples]
    half = [ends.high - centre if ends and ends.high else 0.0 for centre, ends in means]
    axes.errorbar(x, [centre for centre, _ in means], half, **look)


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
    published, law = numbers(), Study(law_answers.FOLDER, fresh=True)
    for theme in THEMES:
        with picture("published", theme) as panels:
            draw_published(panels, *published, theme)
        with picture("law-study", theme) as panels:
            draw_law(panels, law, theme)
        with picture("forgetting", theme) as panels:
            draw_forgetting(panels, theme)


if __name__ == "__main__":
    main()
