"""Loss against the position of a token in its context. Left: position in the packed sequence;
right: position in the document, of which the sequence may contain only the end. Rows are training
contexts; each model is evaluated with its final weights at its training context. Colours are
attentions (each with its stroke), darker lines larger models. Losses are averaged over position
bins of doubling width and over seeds; bins of runs with a standard error above 10 % of the loss are
excluded. Below each row of losses are gaps to the baseline of the study, of the same bin, text and
seed, as means over seeds; below 0 the attention is better. Their bands are 95 % intervals from the
scatter of these gaps between seeds and are drawn where seeds have measured it; the widest, of the
first positions, may lie beyond the axis. At most four contexts and two datasets are drawn; the CSV
file contains all.
"""

from duckdb import DuckDBPyConnection
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from pandas import DataFrame

from lmscaling.figures.shared import floors, style
from lmscaling.fits.noise import Noise, Place
from lmscaling.fits.uncertainty import Interval

SECTION = "learning"

# Bins that only a few blocks reach depend on single documents more than on the model.
QUERY = """
    SELECT dataset, context, attention, size, params, seed, run, status, axis, "start", stop,
        position, tokens, loss, loss_se, attention = baseline AS is_baseline
    FROM by_position JOIN (SELECT run, baseline FROM cells) USING (run)
    WHERE eval_context = context AND loss IS NOT NULL AND run IN (SELECT run FROM final)
    QUALIFY loss_se < loss / 10 OR count(loss_se) OVER (PARTITION BY run, dataset, axis) = 0
    ORDER BY ALL
"""

AXES = {
    "sequence": "Position in sequence\n(tokens)",
    "document": "Position in document\n(tokens)",
}
MOST_CONTEXTS, MOST_DATASETS = 4, 2
"""Rows, and pairs of columns, that fit on a page."""
BIN, CELL = ["dataset", "axis", "start", "stop", "position"], ["context", "attention", "size"]


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    contexts = style.spread(sorted(rows.context.unique()), MOST_CONTEXTS)
    datasets = sorted(rows.dataset.unique())[:MOST_DATASETS]
    columns = [(dataset, axis) for dataset in datasets for axis in AXES]
    shades = style.shades_of(rows)
    gaps = _gaps(rows)
    kinds = 2 if len(gaps) else 1
    ratios = [1.9, 1.1][:kinds] * len(contexts)
    figure, panels = style.grid(
        len(ratios), len(columns), sum(ratios) / len(ratios), sharex="col", height_ratios=ratios
    )
    for shared in (panels[::kinds], panels[1::2] if kinds == 2 else panels[:0]):
        for axes in shared.flat[1:]:
            axes.sharey(shared.flat[0])
    for i, context in enumerate(contexts):
        for j, (dataset, axis) in enumerate(columns):
            top, bottom = panels[kinds * i, j], panels[kinds * i + kinds - 1, j]
            _draw_losses(top, _part(rows, context, dataset, axis), shades)
            if kinds == 2:
                _draw_gaps(bottom, _part(gaps, context, dataset, axis), shades)
        row = panels[kinds * i]
        row[0].set_ylabel("Loss\n(nats per token)")
        style.label_row(row[-1], f"context {context:,}")
        if kinds == 2:
            baseline = rows.loc[rows.is_baseline, "attention"].iloc[0]
            panels[kinds * i + 1, 0].set_ylabel(f"Gap to\n{baseline} (nats)")
    for j, (dataset, _) in enumerate(columns):
        floors.draw(panels[::kinds, j], db, rows, contexts, dataset)
    if kinds == 2:  # a few bins of few tokens must not make all others look equal
        widest = gaps[["gap", "low", "high"]].abs().max(axis=1).quantile(0.8)
        panels[1, 0].set_ylim(-1.3 * widest or None, 1.3 * widest or None)
    for (dataset, axis), top, bottom in zip(columns, panels[0], panels[-1], strict=True):
        bottom.set_xlabel(AXES[axis])
        if len(datasets) > 1:
            top.set_title(dataset)
    style.legend_of(figure, shades)
    return figure


def _part(rows: DataFrame, context: int, dataset: str, axis: str) -> DataFrame:
    wanted = (rows.context == context) & (rows.dataset == dataset) & (rows.axis == axis)
    return rows.loc[wanted]


def _gaps(rows: DataFrame) -> DataFrame:
    """Gaps to the baseline by bin, attention and size, with their intervals; NaN if unknown."""
    keys = [*BIN, "context", "size", "params", "seed"]
    both = rows[~rows.is_baseline].merge(rows[rows.is_baseline], on=keys, suffixes=("", "_of"))
    both["gap"] = both.loss - both.loss_of
    found = []
    for _, of_bin in both.groupby(BIN):  # cells share the noise of a bin
        cells = dict(list(of_bin.groupby(CELL)))
        places = {
            cell: Place(part.params.iloc[0], part.context.iloc[0], part.attention.iloc[0])
            for cell, part in cells.items()
        }
        samples = {cell: part.set_index("seed").gap.to_dict() for cell, part in cells.items()}
        noise = Noise.measure(samples, places, paired=True)
        for cell, part in cells.items():
            spread, mean = noise.at(cell), part.gap.mean()
            ends = spread.interval(mean) if spread.assumed is None else Interval(None, None)
            found.append([*part[BIN + CELL].iloc[0], mean, ends.low, ends.high])
    columns = [*BIN, *CELL, "gap", "low", "high"]
    return DataFrame(found, columns=columns).astype({"low": float, "high": float})


def _draw_losses(axes: Axes, rows: DataFrame, shades: dict[tuple[str, str], str]) -> None:
    for (attention, size), colour in shades.items():
        cell = rows.loc[(rows.attention == attention) & (rows["size"] == size)]
        means = cell.groupby("position").loss.mean()  # in the order of positions
        axes.plot(
            means.index, means, linestyle=style.dashes(attention), color=colour, linewidth=1.0
        )
    _scale(axes)
    style.loss_scale(axes)


def _draw_gaps(axes: Axes, gaps: DataFrame, shades: dict[tuple[str, str], str]) -> None:
    axes.axhline(0, color="0.35", linewidth=1.0, zorder=1)
    for (attention, size), colour in shades.items():
        cell = gaps.loc[(gaps.attention == attention) & (gaps["size"] == size)]
        line = cell.sort_values("position")
        axes.fill_between(line.position, line.low, line.high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(
            line.position, line.gap, linestyle=style.dashes(attention), color=colour, linewidth=1.0
        )
    _scale(axes)


def _scale(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(numticks=7))
    axes.xaxis.set_minor_locator(NullLocator())
