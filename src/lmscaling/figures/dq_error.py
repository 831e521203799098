"""Error of the query gradient in bfloat16, on the inputs of trained models. Left: error of dq
relative to float64 against the training context, for each kernel and for two PyTorch references in
the arithmetic of a kernel, which subtracts the mean of the values from its state (centred) or does
not (uncentred). Right: the quantity that the error grows with, the mean of the values divided by
their standard deviation. Points are medians over layers, bars the range over layers; rows are
sizes. On a CPU the kernels are plain PyTorch in float32.
"""

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling.figures.shared import speed, style

SECTION = "learning"

QUERY = """
    SELECT 'measured' AS source, n.setup, n.run AS sweep, size, params, n.tokens AS context,
        if(implementation IN ('centred', 'uncentred'), implementation, 'linear ' || implementation)
            AS method,
        count(*) AS layers, count(*) AS repeats,
        if(count(dq_error) = count(*), 'done', max(n.status)) AS status,
        100 * median(dq_error) AS percent, 100 * min(dq_error) AS lower_percent,
        100 * max(dq_error) AS upper_percent,
        median(mean_over_sd) AS mean_over_sd, min(mean_over_sd) AS lower_mean_over_sd,
        max(mean_over_sd) AS upper_mean_over_sd
    FROM numerics n JOIN known k USING (run)
    GROUP BY ALL
    ORDER BY ALL
"""

SPREAD = "{} layers"
VALUES = speed.Method("0.3", "o")


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    rows = rows.assign(sweep="")  # one line joins the models of all contexts
    sizes = style.sizes_of(rows)
    figure, panels = speed.page(
        rows, 2 * len(sizes), columns=2, height=1.9, spread=SPREAD, sharey=False
    )
    for left, right, size in zip(panels[::2], panels[1::2], sizes, strict=True):
        part = rows.loc[rows["size"] == size]
        speed.lines(left, part, "percent", speed.looks(rows))
        speed.log_scale([left], "Error of dq (%)")
        left.set_title(size)
        # The values are the same for every method, so those of one method are drawn.
        values = part.loc[part.method == part.method.iloc[0]].assign(status="done", method="v")
        speed.lines(right, values, "mean_over_sd", speed.looks(rows), known={"v": VALUES})
        speed.log_scale([right], "")
        right.set_ylabel("Mean of v (standard deviations)")
        right.set_title(size)
    speed.powers_of_two(panels, rows.context, "Context (tokens)")
    return figure
