"""What a study asks, in words made from its values, and what it asks it of."""

import duckdb

from lmscaling import figures
from lmscaling.config.study import Study
from lmscaling.formatting import Table
from lmscaling.report import queries
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

CITED = """
    SELECT
        (SELECT count(*) FROM runs WHERE source = 'published') AS runs,
        (SELECT count(*) FROM speeds WHERE source = 'published' AND status = 'done') AS times
"""


def words(db: duckdb.DuckDBPyConnection, study: Study | None) -> list[str]:
    """Paragraphs: the question, how it is asked, and whose numbers stand beside; no study is that
    of the published numbers alone."""
    cited = _published(db)
    if study is None:
        return [f"What others measured, drawn alone: no run of ours is shown. {cited}"]
    return [_asked(study), _laid_out(db, study), *([cited] if cited else [])]


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """The sizes of models, with what each was asked."""
    forms = {
        "size": "", "source": "", "n_layer": "", "d_model": ",", "params": ",", "shortest": ",",
        "longest": ",", "contexts": "", "seeds": "", "lr_scales": "", "runs": "",
    }  # fmt: skip
    return [
        Table(
            name="sizes",
            section="question",
            title="Models",
            note="N counts parameters without embeddings, and is known once a run of the size has "
            "begun; runs are those that the study plans, or that were published.",
            query=SIZES,
            head=("size", "source", "layers", "width", "N (parameters)",
                  "shortest context (tokens)", "longest context (tokens)", "contexts", "seeds",
                  "learning rates", "runs"),
            rows=tuple(queries.shown(row, forms) for row in queries.rows(db, SIZES)),
            text=frozenset({0, 1}),
        )
    ]  # fmt: skip


def _asked(study: Study) -> str:
    names = study.axes.attention
    if len(names) == 1:
        return f"What does a model with {names[0]} attention learn within {study.budget} a run?"
    return (
        f"Which of {listed(names)} attention learns more within {study.budget} a run, "
        "at which sizes and contexts, and what does each cost?"
    )


def _laid_out(db: duckdb.DuckDBPyConnection, study: Study) -> str:
    axes, n_cells = study.axes, 0
    for (n,) in db.sql("SELECT count(*) FROM status WHERE skipped IS NULL").fetchall():
        n_cells = n
    place = f"{study.gpus} GPUs" if study.gpus else "the CPU"
    rates = f", rates {listed(axes.lr_scale)} times their own" if len(axes.lr_scale) > 1 else ""
    return (
        f"{n_cells} cells, each with a budget of {study.budget} and {study.update_tokens:,} tokens "
        f"per update on {place}, train on {study.dataset} in tokens of {study.tokenizer}: sizes "
        f"{listed(axes.size)}, contexts {listed([f'{c:,}' for c in axes.context])}, seeds "
        f"{listed(axes.seed)}{rates}. {figures.missing(db) or 'All are done.'}"
    )


def _published(db: duckdb.DuckDBPyConnection) -> str:
    """How many numbers of others the page shows, and whose; empty if none."""
    counts = queries.rows(db, CITED)[0]
    if not counts["runs"] + counts["times"]:
        return ""
    return (
        f"Published are {counts['runs']} runs and {counts['times']} times of {published.CITATION}. "
        "They were copied, not measured again; their losses are those of training, means over the "
        "last updates."
    )


def listed(values: list) -> str:
    """``a, b and c``."""
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last
