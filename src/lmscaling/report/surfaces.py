"""Tables of the loss surface: parameters, both forms, influence of runs, conventions, forecasts."""

import duckdb

from lmscaling.fits.laws import FARTHER
from lmscaling.fits.loss_surface import LossSurface
from lmscaling.formatting import short
from lmscaling.report.table import (
    Column,
    Row,
    Table,
    format_context,
    format_number,
    of_rows,
)

INTERVALS = (
    "Brackets contain 95 % intervals from the influence of whole runs; docs/statistics.md has "
    "their coverage."
)


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """All tables of surfaces."""
    return [
        of_rows(db, columns, section="laws", **values)
        for columns, values in (
            (PARAMETERS, SURFACES),
            (BOTH, FORMS),
            (WITHOUT, INFLUENCE),
            (CONVENTION, CONVENTIONS),
            (FORECAST, FORECASTS),
        )
    ]


def _instead(name: str) -> Column:
    """An exponent without the run, and with it."""
    return Column(
        "a" if name == "a_opt" else name,
        lambda row: f"{format_number(row[name])} instead of {format_number(row['all_' + name])}",
    )


def _held_out(row: Row) -> str:
    if row["by"] == "size":
        return f"{short(row['beyond'])} parameters and more"
    return f"more than {row['beyond']:.2g} FLOPs"


CONTEXT = (Column("attention", "attention"), Column("context (tokens)", "context", format_context))
HEAD = (*CONTEXT, Column("schedule", "schedule"), Column("source", "source"))
EXPONENTS = (
    Column("alpha", "alpha", format_number),
    Column("beta", "beta", format_number),
    Column("a", "a_opt", format_number),
)
PARAMETERS = (
    *CONTEXT,
    Column("fitted losses", "losses"),
    Column("source", "source"),
    Column("points", "points", str),
    Column("runs", lambda row: str(row["runs"] or ""), str),
    Column("E (nats)", "E", format_number),
    Column("A", "A", format_number),
    Column("B", "B", format_number),
    *EXPONENTS,
    Column(f"loss at {FARTHER} x N and D (nats)", "farther", "{:.3f}".format),
    Column("tests", "tests"),
    Column("status", "why"),
)
SURFACES = {
    "name": "surfaces",
    "title": "Loss surface L(N, D)",
    "note": f"{LossSurface.formula}, fitted separately to each attention and context by a "
    "multivariate t distribution of whole runs; N counts parameters without embeddings, D "
    "training tokens. The compute-optimal size grows as C^a with a = beta / (alpha + beta). "
    f"{INTERVALS} The expected loss at {FARTHER} times the largest N and D is that of a larger "
    "model and a longer budget. Tests of the sum: F compares residuals with the scatter of "
    "seeds, t tests the interaction g.",
    "query": "FROM surfaces",
}
BOTH = (
    *HEAD,
    Column("form", "form"),
    Column("which", "which"),
    Column("g", "g", format_number),
    Column("E (nats)", "E", format_number),
    *EXPONENTS,
)
FORMS = {
    "name": "surface_forms",
    "title": "Surfaces with and without interaction",
    "note": f"{LossSurface.interacting}. Intervals of the sum hold if the sum is right; those "
    "with g hold for every g. A refused sum has no intervals.",
    "query": "FROM surface_forms",
}
WITHOUT = (
    *HEAD,
    Column("without", "run"),
    *map(_instead, ("alpha", "beta", "a_opt")),
    Column(
        "deviation", lambda row: f"{row['deviation']:+.1f}{', too far' if row['is_far'] else ''}"
    ),
)
INFLUENCE = {
    "name": "surface_influence",
    "title": "Surfaces without a run",
    "note": "Exponents without the most influential run, and without each run that lies farther "
    "from the surface of the others than chance explains (5 % for any run of a surface). The "
    "deviation is the mean residual of the run in standard errors. No run is removed.",
    "query": "SELECT i.*, s.alpha AS all_alpha, s.beta AS all_beta, s.a_opt AS all_a_opt\n"
    "FROM surface_influence i JOIN surfaces s USING (source, schedule, attention, context)",
}
CONVENTION = (
    *HEAD,
    Column("parameters in N", "convention"),
    *EXPONENTS,
    Column("status", "why"),
)
CONVENTIONS = {
    "name": "conventions",
    "title": "Exponents by convention for N",
    "note": "The same surfaces, fitted with other parameters counted in N; the exponents depend "
    f"on the convention (arXiv:2406.12907). {INTERVALS}",
    "query": "FROM surface_conventions",
}
FORECAST = (
    *HEAD,
    Column("held out", _held_out),
    Column("places", lambda row: str(row["places"] or ""), str),
    Column("RMS error (nats)", "rms", "{:.4f}".format),
    Column("largest error (nats)", "worst", "{:.4f}".format),
    Column("skill", "skill", "{:.2f}".format),
    Column("status", "why"),
)
FORECASTS = {
    "name": "held_out",
    "title": "Forecast of the largest size and the largest compute",
    "note": "The surface is fitted without what is held out and predicts the medians of its "
    "seeds. Errors are measured minus predicted losses. A forecast passes if all places lie "
    "within simultaneous 95 % prediction intervals and its error is below those of two "
    "baselines: a plane in ln N and ln D for ln L, and the nearest place that was kept. Skill "
    "is 1 minus the error over that of the better baseline.",
    "query": "FROM held_out",
}
