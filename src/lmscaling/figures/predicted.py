"""Figures of what the throughput model predicts for the steps of the speed study."""

from collections.abc import Iterator
from typing import Any

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed, style
from lmscaling.figures.shared.entry import Entry
from lmscaling.plan.throughput import timed_steps
from lmscaling.plan.throughput.model import Coefficients, Prediction, known_of

QUERY = f"""
    SELECT source, setup, sweep, size, params, method, context, batch, repeats, status, device,
        n_layer, n_head, n_head * d_head AS d_model, seconds
    FROM speeds
    WHERE kind = 'time_step' AND status = 'done'
        AND len([name FOR name IN {timed_steps.LISTED} IF starts_with(device, name)]) > 0
    ORDER BY ALL
"""
"""Measured steps. A method whose kind is not known, and a device that is not listed, have no
prediction."""

NO_PEAK = "No step was measured on a device whose peak is listed."

PARTS = {
    "matrix products": ("#4477AA", ("products",)),
    "logits": ("#66CCEE", ("logits",)),
    "elementwise": ("#CCBB44", ("elementwise",)),
    "attention": ("#EE6677", ("flash", "flash_elementwise", "chunks", "chunk_launches")),
    "optimizer": ("#AA3377", ("optimizer",)),
    "launches": ("#BBBBBB", ("launches", "start")),
}
"""Colour and terms of each part of a step, from below."""


def predicted(rows: DataFrame) -> Iterator[tuple[Any, Prediction]]:
    """Index and prediction of each row that has one.

    A published step is predicted from those of other sizes, so that no number predicts itself;
    others from the coefficients that come with the package.
    """
    steps = {
        (row["source"], row["size"], index): step
        for index, row in zip(rows.index, rows.to_dict("records"), strict=True)
        if (step := timed_steps.measured_step(row))
    }
    known: dict[tuple[Any, ...], Coefficients] = {}
    for (source, size, index), (kind, timing) in steps.items():
        if (source, size, kind) not in known and source == "published":
            others = [t for (of, at, _), (_, t) in steps.items() if of == source and at != size]
            known[source, size, kind] = Coefficients.counted().measured(others)
        fitted = known.get((source, size, kind)) or known_of(kind)
        yield index, fitted.predict(timing.x_K)


def draw_time(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    for index, prediction in predicted(rows):
        low, high = prediction.interval(0.8)
        ratios = [time / rows.at[index, "seconds"] for time in (prediction.seconds, low, high)]
        columns = ["predicted_seconds", "ratio", "lower_ratio", "upper_ratio"]
        rows.loc[index, columns] = prediction.seconds, *ratios
    if "ratio" not in rows:
        return style.nothing(NO_PEAK)
    shown = rows.loc[rows.ratio.notna()]
    spread = "medians of {} repeats, bars are 80 % prediction intervals"
    figure, panels = speed.by_size(shown, "ratio", "Time (predicted / measured)", spread=spread)
    for axes in panels.values():
        speed.line_at_one(axes)
    return figure


def draw_shares(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    for index, prediction in predicted(rows):
        for part, (_, terms) in PARTS.items():
            rows.loc[index, part] = sum(prediction.shares.get(term, 0.0) for term in terms)
    if not set(PARTS) & set(rows.columns):
        return style.nothing(NO_PEAK)
    shown = rows.loc[rows["attention"].notna()]
    sizes, names = style.sizes_of(shown), sorted(shown.method.unique(), reverse=True)
    figure, places = style.grid(len(names), len(sizes), 1.7, top=0.6, sharex="col", sharey=True)
    for name, row in zip(names, places, strict=True):
        for size, axes in zip(sizes, row, strict=True):
            part = shown.loc[(shown.method == name) & (shown["size"] == size)]
            part = part.groupby("context")[list(PARTS)].mean()
            colours = [colour for colour, _ in PARTS.values()]
            axes.stackplot(part.index, part.to_numpy().T * 100, colors=colours, labels=PARTS)
            axes.set_title(f"{style.folded(name)}, {size}")
            axes.set_ylim(0, 100)
            axes.grid(visible=False)
        row[0].set_ylabel("Share of the time (%)")
    speed.powers_of_two(list(places.flat), shown.context, "Context (tokens)")
    style.legend(figure, places.flat[0].get_legend_handles_labels()[0], len(PARTS))
    style.note(figure, speed.note(shown, "shapes of steps with {} repeats"))
    return figure


FIGURES = {
    "predicted_time": Entry(
        """\
Predicted over measured time of a training step against the context. The throughput model adds
the times of matrix products, attention, elementwise operations, logits, the optimizer and launches.
Published steps of a size are predicted from those of the other sizes, own steps from published ones
alone. Bars are 80 % prediction intervals: four of five should cross 1. A prediction above the line
is too slow. Devices without a listed peak and bandwidth are left out.
""",
        QUERY,
        draw_time,
        "speed",
    ),
    "time_shares": Entry(
        """\
What a training step spends its time on, by context. Shares are predicted, not measured, for the
shapes and devices of the speed study. One panel for each size of softmax (flash) and linear
attention (chunked). Attention is all that belongs to its kernels: scores or chunks, and the
elementwise operations beside them. Launches are the time in which the device waits for the next
kernel.
""",
        f"SELECT * FROM ({QUERY}) WHERE method IN ('softmax flash', 'linear chunked')",
        draw_shares,
        "speed",
    ),
}
