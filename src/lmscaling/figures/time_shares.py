"""What a training step spends its time on, by context. Shares are predicted, not measured, for the
shapes and devices of the speed study. One panel for each size of softmax (flash) and linear
attention (chunked). Attention is all that belongs to its kernels: scores or chunks, and the
elementwise operations beside them. Launches are the time in which the device waits for the next
kernel.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import predictions, speed, style

SECTION = "speed"

QUERY = f"SELECT * FROM ({predictions.QUERY}) WHERE method IN ('softmax flash', 'linear chunked')"

PARTS = {
    "matrix products": ("#4477AA", ("products",)),
    "logits": ("#66CCEE", ("logits",)),
    "elementwise": ("#CCBB44", ("elementwise",)),
    "attention": ("#EE6677", ("flash", "flash_elementwise", "chunks", "chunk_launches")),
    "optimizer": ("#AA3377", ("optimizer",)),
    "launches": ("#BBBBBB", ("launches", "start")),
}
"""Colour and terms of each part, from below."""


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    for index, prediction in predictions.predicted(rows):
        for part, (_, terms) in PARTS.items():
            rows.loc[index, part] = sum(prediction.shares.get(term, 0.0) for term in terms)
    if not set(PARTS) & set(rows.columns):
        return style.nothing("No step was measured on a device whose peak is listed.")
    shown = rows.loc[rows["attention"].notna()]
    sizes, names = style.sizes_of(shown), sorted(shown.method.unique(), reverse=True)
    figure, places = style.grid(len(names), len(sizes), 1.7, top=0.6, sharex="col", sharey=True)
    for name, row in zip(names, places, strict=True):
        for size, axes in zip(sizes, row, strict=True):
            part = shown.loc[(shown.method == name) & (shown["size"] == size)]
            part = part.groupby("context")[list(PARTS)].mean()
            colours = [colour for colour, _ in PARTS.values()]
            axes.stackplot(part.index, part.to_numpy().T * 100, colors=colours, labels=PARTS)
            axes.set_title(f"{name}, {size}")
            axes.set_ylim(0, 100)
            axes.grid(visible=False)
        row[0].set_ylabel("Share of the time (%)")
    speed.powers_of_two(list(places.flat), shown.context, "Context (tokens)")
    style.legend(figure, places.flat[0].get_legend_handles_labels()[0], len(PARTS))
    style.note(figure, speed.note(shown, "shapes of steps with {} repeats"))
    return figure
