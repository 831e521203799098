"""Spikes of the training loss per 10,000 steps, and non-finite losses. Each field is a size and a
context, darker for more spikes; seeds and learning rates of a field are averaged. An exclamation
mark denotes an infinite or NaN loss. A Δ denotes that spikes were judged by the difference of the
loss from those of at least three other runs on the same text at the same step; without it they
were judged by the losses of the run alone. The note of the table of cells defines a spike. Spikes
of published runs were counted in means over 100 steps, which reduce a spike of a single step by
a factor of 100.
"""

import numpy as np
import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame

from lmscaling.figures.shared import heatmap, style

SECTION = "audit"

QUERY = """
    SELECT
        source, attention, size, params, context, seed, lr_scale, status,
        spikes, spikes_per_10000_updates, highest_spike, median_recovery, nonfinite_losses,
        compared_share
    FROM stability JOIN known USING (run)
    WHERE branch IS NULL
    UNION ALL
    SELECT
        r.source, r.attention, r.size, r.params, r.context, r.seed, lr_scale, status,
        r.spikes, r.spikes_per_10000_updates, r.highest_spike, NULL, NULL, NULL
    FROM spike_rates r JOIN known USING (run)
    WHERE r.source = 'published'
    ORDER BY ALL
"""

CLASSES = (0, 1, 10, 100, 1000)
"""Upper bounds of the colours, spikes per 10,000 updates."""

SHADES = [to_hex(rgb) for rgb in sns.light_palette("#A3000B", n_colors=len(CLASSES) + 1)]


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    labels = ["no spikes", *(f"up to {most:,}" for most in CLASSES[1:]), f"over {CLASSES[-1]:,}"]
    legend = [Patch(color=c, label=text) for c, text in zip(SHADES, labels, strict=True)]
    legend.append(Patch(color="none", label="!  non-finite loss"))
    if rows.compared_share.gt(0).any():
        legend.append(Patch(color="none", label="Δ  difference from other runs"))
    return heatmap.draw(rows, style.sizes_of(rows), _field, legend)


def _field(rows: DataFrame) -> tuple[str, str]:
    """Colour and text of one field."""
    rate = rows.spikes_per_10000_updates.mean()
    mark = " !" if rows.nonfinite_losses.gt(0).any() else ""
    mark += " Δ" if rows.compared_share.gt(0).any() else ""
    return SHADES[int(np.searchsorted(CLASSES, rate))], f"{float(f'{rate:.2g}'):,g}{mark}"
