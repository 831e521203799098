"""What bfloat16 loses of the gradient by the queries, on what trained models really see. Left is
the error from float64 against the context that a model was trained at, by way to compute: the
kernels, and in PyTorch the arithmetic of a kernel that takes the mean of the values out of its
state (centred) and of one that does not (uncentred). Right is what it grows with: the mean of the
values over their standard deviation. Points are medians over layers, bars reach from the best to
the worst layer; rows are sizes. On a CPU the kernels are plain PyTorch in float32.
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
VALUES = style.Method("0.3", "o")


def draw(rows: DataFrame, db: DuckDBPyConnection) -> Figure:
    rows = rows.assign(sweep="")  # models of all contexts make one line
    sizes = style.sizes_of(rows)
    figure, panels = speed.page(
        rows, 2 * len(sizes), columns=2, height=1.9, spread=SPREAD, sharey=False
    )
    for left, right, size in zip(panels[::2], panels[1::2], sizes, strict=True):
        part = rows.loc[rows["size"] == size]
        speed.lines(left, part, "percent", speed.looks(rows))
        speed.log_scale([left], "Error of dq (%)")
        left.set_title(size)
        # It is a property of the model: every way has seen the same values.
        for (source, setup, method), values in part.groupby(["source", "setup", "method"]):
            if method == part.method.iloc[0]:
                look = speed.looks(rows)[str(source), str(setup)]
                of_one = values.assign(status="done")
                speed.line(right, of_one, "context", "mean_over_sd", VALUES, look)
        speed.log_scale([right], "")
        right.set_ylabel("Mean of v (deviations)")
        right.set_title(size)
    speed.powers_of_two(panels, rows.context, "Context (tokens)")
    return figure
