"""The research question and the design of a study, written from its values, and its models."""

import duckdb
from scipy.stats import fisher_exact

from lmscaling import figures
from lmscaling.config import code
from lmscaling.config.study import Study
from lmscaling.report import rates
from lmscaling.report.table import Table, format_row, query_rows
from lmscaling.store import published

SIZES = """
    SELECT
        source, size, max(n_layer) AS n_layer, max(d_model) AS d_model, max(params) AS params,
        min(context) AS shortest, max(context) AS longest, count(DISTINCT context) AS contexts,
        count(DISTINCT seed) AS seeds, count(DISTINCT lr_scale) AS lr_scales, count(*) AS runs
    FROM known
    WHERE branch IS NULL AND skipped IS NULL
    GROUP BY source, size
    ORDER BY source, n_layer, d_model, size
"""

MASKED = (
    "Attention does not cross documents and positions restart in each (documents: masked). Compute "
    "is counted at the lengths that documents of the training text have in windows of a context. "
)

FAILURES = """
    SELECT
        attention, attention = baseline AS is_baseline,
        count(*) FILTER (outcome = 'failed') AS failed,
        count(*) FILTER (outcome <> 'unfinished') AS ended
    FROM outcomes WHERE source = 'measured' AND branch IS NULL
    GROUP BY ALL HAVING ended > 0 ORDER BY is_baseline DESC, attention DESC
"""

STALE = "SELECT count(*) FROM planned WHERE is_stale"

CITED = """
    SELECT
        (SELECT count(*) FROM runs WHERE source = 'published') AS runs,
        (SELECT count(*) FROM speeds WHERE source = 'published' AND status = 'done') AS times
"""


def paragraphs(db: duckdb.DuckDBPyConnection, study: Study | None) -> list[str]:
    """The question, the design, runs that other code has trained, and the published numbers, if
    any; without a study the published numbers alone."""
    citation = _published(db)
    if study is None:
        return [f"Published numbers only, without runs of this project. {citation}"]
    ((stale,),) = db.execute(STALE).fetchall()
    return [
        _question(study),
        _design(db, study),
        *(f"{line}." for line in code.stale_line(study.study, stale)),
        *failures(db),
        *(f"Warning: {warning}." for warning in rates.warnings(db)),
        *([citation] if citation else []),
    ]


def failures(db: duckdb.DuckDBPyConnection) -> list[str]:
    """A sentence on how many runs of each attention have failed, with p-values against the
    baseline; none before a run has ended."""
    rows = query_rows(db, FAILURES)
    if not rows:
        return []
    if not any(row["failed"] for row in rows):
        return [f"Failures: none of {sum(row['ended'] for row in rows)} runs."]
    base = next((row for row in rows if row["is_baseline"]), None)
    parts = []
    for row in rows:
        text = f"{row['attention']} {row['failed']} of {row['ended']}"
        if base is not None and row is not base:
            counts = [[r["failed"], r["ended"] - r["failed"]] for r in (base, row)]
            text += f" (Fisher's p {fisher_exact(counts).pvalue:.2g})"  # pyright: ignore
        parts.append(text)
    return [f"Failures: {', '.join(parts)}. The note of the table of cells says what a failure is."]


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """The model sizes with the values of the other axes."""
    forms = {
        "size": "", "source": "", "n_layer": "", "d_model": ",", "params": ",", "shortest": ",",
        "longest": ",", "contexts": "", "seeds": "", "lr_scales": "", "runs": "",
    }  # fmt: skip
    return [
        Table(
            name="sizes",
            section="question",
            title="Models",
            note="N counts parameters without embeddings; it is known once a run of the size has "
            "started. Runs are the planned or published ones.",
            query=SIZES,
            head=("size", "source", "layers", "width", "N (parameters)",
                  "shortest context (tokens)", "longest context (tokens)", "contexts", "seeds",
                  "learning rates", "runs"),
            rows=tuple(format_row(row, forms) for row in query_rows(db, SIZES)),
            text=frozenset({0, 1}),
        )
    ]  # fmt: skip


def _question(study: Study) -> str:
    names = study.axes.values("attention")
    if len(names) == 1:
        return (
            f"Which loss does a model with {names[0]} attention reach within {study.budget} per "
            "run?"
        )
    return (
        f"Which attention, {join_names(names, 'or')}, reaches the lower loss within {study.budget} "
        "per run, at which sizes and contexts, and at what cost?"
    )


def _design(db: duckdb.DuckDBPyConnection, study: Study) -> str:
    axes, n_cells = study.axes, 0
    for (n,) in db.sql("SELECT count(*) FROM status WHERE skipped IS NULL").fetchall():
        n_cells = n
    device = f"{study.gpus} GPUs" if study.gpus else "the CPU"
    rates = ""
    if len(scales := axes.values("lr_scale")) > 1:
        rates = f", learning rates {join_names(scales)} times that of the size"
    masked = MASKED if study.documents == "masked" else ""
    source, protocol = study.datasets[study.dataset], study.protocol.get("all", 1)
    block = source.blocks(protocol, axes.context[0])
    order = f"blocks of {block:,} tokens, drawn from the seed" if block else "files from end to end"
    return (
        f"{n_cells} cells, each with a budget of {study.budget} and {study.update_tokens:,} tokens "
        f"per update on {device}, are trained on {study.dataset} with the tokenizer "
        f"{study.tokenizer}: sizes {join_names(axes.size)}, contexts "
        f"{join_names([f'{c:,}' for c in axes.context])}, seeds {join_names(axes.seed)}{rates}. "
        f"All cells of a seed read the same text in the same order: {order}. "
        f"{masked}{figures.unfinished_note(db) or 'All cells are done.'}"
    )


def _published(db: duckdb.DuckDBPyConnection) -> str:
    """Counts and source of the published numbers; empty if the store has none."""
    counts = query_rows(db, CITED)[0]
    if not counts["runs"] + counts["times"]:
        return ""
    return (
        f"The published numbers are {counts['runs']} runs and {counts['times']} times of "
        f"{published.CITATION}. They were copied, not reproduced; their losses are training "
        "losses, means over the last updates."
    )


def join_names(values: list, conjunction: str = "and") -> str:
    """``a, b and c``."""
    *first, last = map(str, values)
    return f"{', '.join(first)} {conjunction} {last}" if first else last
