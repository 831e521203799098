"""Time of a single attention layer against the context. Rows are presets and passes. Left: for a
fixed batch size the mean time of a pass with its standard deviation; otherwise the median time per
token and head with quartiles. Right: speed-up over the fastest softmax implementation
that was measured at the same context in the same setup; bars combine opposite ends of the two error
bars. A cross at the upper edge marks a context that ran out of memory, a plus one that exceeded the
time limit.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed, style

SECTION = "speed"

QUERY = """
    WITH layer AS (
        SELECT *, min(batch) OVER preset = max(batch) OVER preset AS fixed,
            1e9 / (batch * context * n_head) AS share
        FROM speeds
        WHERE kind = 'time_layer'
        WINDOW preset AS (PARTITION BY source, setup, sweep)
    ),
    timed AS (
        SELECT source, setup, sweep, size, passes, attention, method, context, batch, n_head,
            d_head, repeats, status, fixed,
            if(fixed, 1e3 * mean_seconds, share * seconds) AS time,
            if(fixed, 1e3 * (mean_seconds - sd_seconds), share * lower_seconds) AS lower_time,
            if(fixed, 1e3 * (mean_seconds + sd_seconds), share * upper_seconds) AS upper_time
        FROM layer
    )
    SELECT t.*, b.method AS baseline,
        b.time / t.time AS speed_up,
        b.lower_time / t.upper_time AS lower_speed_up,
        b.upper_time / t.lower_time AS upper_speed_up
    FROM timed t
    LEFT JOIN (
        FROM timed WHERE attention = 'softmax' AND time IS NOT NULL
        QUALIFY row_number() OVER (
            PARTITION BY source, setup, sweep, passes, context, batch ORDER BY time, method
        ) = 1
    ) b USING (source, setup, sweep, passes, context, batch)
    ORDER BY ALL
"""

SPREAD = "{} repeats: medians with quartiles; panels in ms: means with standard deviations"


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    wanted = sorted(set(rows[["size", "passes"]].itertuples(index=False, name=None)))
    figure, panels = speed.page(
        rows, 2 * len(wanted), columns=2, height=1.9, spread=SPREAD, sharex="row", sharey=False
    )
    pairs = zip(panels[::2], panels[1::2], strict=True)
    for (left, right), (size, passes) in zip(pairs, wanted, strict=True):
        part = rows.loc[(rows["size"] == size) & (rows.passes == passes)]
        speed.lines(left, part, "time", speed.looks(rows))
        left.set_title(f"{size}, {passes}, {_at_once(part)}")
        speed.log_scale([left], "Time (ms)" if part.fixed.all() else "Time (ns per token, head)")
        others = part.loc[part.method != part.baseline, "method"]
        compared = part[part.speed_up.notna() & part.method.isin(others)]
        speed.lines(right, compared, "speed_up", speed.looks(rows))
        speed.line_at_one(right)
        if compared.empty:
            right.annotate("softmax was not timed", (0.5, 0.5), xycoords="axes fraction",
                           ha="center", color="0.4")  # fmt: skip
        speed.log_scale([right], "")
        right.set_ylabel("Speed-up\n(fastest softmax = 1)")
        speed.powers_of_two([left, right], part.context, "Context (tokens)")
    return figure


def _at_once(rows: DataFrame) -> str:
    if rows.fixed.all():
        return f"{rows.batch.max()} sequences"
    return f"{style.tokens((rows.batch * rows.context).max())} tokens"
