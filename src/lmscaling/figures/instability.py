"""Spikes of the training loss and losses that are no number. A field is a size and a context; it
says how many spikes there were per 10,000 updates, the mean where seeds or learning rates share it,
and is darker for more. An exclamation mark stands where a loss was infinite or no number. What a
spike is stands below the table of cells; spikes of published runs were found in means over 100
updates, where a spike of one update is a hundred times lower.
"""

import numpy as np
import seaborn as sns
from duckdb import DuckDBPyConnection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame

from lmscaling.figures.shared import map as _map
from lmscaling.figures.shared import style

SECTION = "audit"

QUERY = """
    SELECT
        source, attention, size, params, context, seed, lr_scale, status,
        spikes, spikes_per_10000_updates, highest_spike, median_recovery, nonfinite_losses
    FROM stability JOIN known USING (run)
    WHERE branch IS NULL
    UNION ALL
    SELECT
        r.source, r.attention, r.size, r.params, r.context, r.seed, lr_scale, status,
        r.spikes, r.spikes_per_10000_updates, r.highest_spike, NULL, NULL
    FROM spike_rates r JOIN known USING (run)
    WHERE r.source = 'published'
    ORDER BY ALL
"""

CLASSES = (0, 1, 10, 100, 1000)
"""Rates at which the colour changes."""

SHADES = [to_hex(rgb) for rgb in sns.light_palette("#A3000B", n_colors=len(CLASSES) + 1)]


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    labels = ["no spike", *(f"up to {most:,}" for most in CLASSES[1:]), f"over {CLASSES[-1]:,}"]
    legend = [Patch(color=c, label=text) for c, text in zip(SHADES, labels, strict=True)]
    legend.append(Patch(color="none", label="!  no number"))
    return _map.draw(style.sizes_of(rows), _map.fields_of(rows, _field), legend)


def _field(rows: DataFrame) -> tuple[str, str]:
    """Colour and words of one field."""
    rate = rows.spikes_per_10000_updates.mean()
    mark = " !" if rows.nonfinite_losses.gt(0).any() else ""
    return SHADES[int(np.searchsorted(CLASSES, rate))], f"{float(f'{rate:.2g}'):,g}{mark}"
