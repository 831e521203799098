"""The reviewer's checklist: what a reader must know of a scaling-law study to judge or repeat it.

The questions are those of Li et al. 2025 ((Mis)Fitting, arXiv:2502.18969), in its four parts. Every
answer is computed from the study, its store, the record classes and the modules that fit.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from lmscaling import __version__, figures
from lmscaling.config.study import Study
from lmscaling.config.types import dump, less
from lmscaling.fits import context_law, isotime, loss_surface, lr_law, lr_optimum, power_law
from lmscaling.formatting import short
from lmscaling.report import question
from lmscaling.report.table import Table, query_rows
from lmscaling.store import meanings

LAWS = {
    "loss surface": loss_surface,
    "time law": power_law,
    "best size": isotime,
    "best context": context_law,
    "learning rate over sizes": lr_law,
}
"""Laws of the report by the module that fits them, which may state ``OBJECTIVE`` and
``STARTS_SAID``."""

NOT_STATED = "not stated"

QUERY = """
    SELECT
        p.attention, count(*) AS cells, count(*) FILTER (p.updates > 0) AS started,
        count(*) FILTER (p.status = 'done') AS done, min(p.params) AS smallest,
        max(p.params) AS largest, min(p.tokens) FILTER (p.status = 'done') AS fewest_tokens,
        max(p.tokens) FILTER (p.status = 'done') AS most_tokens,
        count(DISTINCT (p.size, p.context)) AS places,
        count(DISTINCT p.seed) AS seeds, list_sort(list(DISTINCT p.lr_scale)) AS lr_scales
    FROM planned p WHERE p.branch IS NULL AND p.skipped IS NULL
    GROUP BY p.attention ORDER BY p.attention DESC
"""

POINTS = """
    SELECT schedule, split, count(*) AS points, count(DISTINCT trunk) AS runs
    FROM law_points WHERE source = 'measured' GROUP BY ALL ORDER BY ALL
"""

EXCLUDED = """
    SELECT CASE
            WHEN status = 'skipped' THEN 'skipped: ' || skipped
            WHEN message <> '' THEN status || ': ' || message ELSE status
        END AS reason, count(*) AS runs
    FROM planned
    WHERE branch IS NULL AND run NOT IN (
        SELECT trunk FROM law_points WHERE source = 'measured'
    )
    GROUP BY ALL ORDER BY runs DESC, reason
"""

SEEDED = """
    SELECT count(*) FILTER (seeds > 1) AS repeated, count(*) AS cells, sum(seeds - 1) AS degrees
    FROM (
        SELECT count(DISTINCT seed) AS seeds FROM final
        WHERE source = 'measured' AND status = 'done' GROUP BY attention, size, context
    )
"""

EPOCHS = "SELECT max(epoch) FROM validations JOIN planned USING (run)"

COMMITS = """
    SELECT DISTINCT environment ->> 'git_commit' AS git_commit
    FROM (SELECT environment::JSON AS environment FROM runs WHERE in_study)
    WHERE environment IS NOT NULL ORDER BY ALL
"""


def table(db: duckdb.DuckDBPyConnection, study: Study, folder: Path, others: list[Table]) -> Table:
    """The checklist.

    Args:
        db: The store.
        study: The study.
        folder: ``results/<study>``.
        others: The other tables of the report, which show uncertainty and goodness of fit.
    """
    rows = [
        *(("law", *row) for row in _laws()),
        *(("training", *row) for row in _training(db, study)),
        *(("points", *row) for row in _points(db, study)),
        *(("fit", *row) for row in _fits(db, others)),
        *(("availability", *row) for row in _availability(db, folder)),
    ]
    return Table(
        name="checklist",
        section="audit",
        title="Reviewer's checklist",
        note="The questions of Li et al. 2025 ((Mis)Fitting, arXiv:2502.18969), answered from the "
        "study, its records and the code that fits.",
        query=QUERY,
        head=("part", "question", "answer"),
        rows=tuple((part, question, answer or NOT_STATED) for part, question, answer in rows),
        text=frozenset({0, 1, 2}),
    )


def _laws() -> Iterator[tuple[str, str]]:
    for name, module in LAWS.items():
        classes: list[Any] = [kind for _, kind in inspect.getmembers(module, inspect.isclass)]
        yield (
            f"form of the {name}",
            "; ".join(
                f"{kind.formula} ({kind.source})" if hasattr(kind, "source") else kind.formula
                for kind in classes
                if hasattr(kind, "formula")
            ),
        )


def _models(db: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, str]]:
    for row in query_rows(db, QUERY):
        sizes = tokens = ""
        if row["smallest"] is not None:
            sizes = f", N {_range(row['smallest'], row['largest'])}"
        if row["most_tokens"] is not None:
            tokens = f", {_range(row['fewest_tokens'], row['most_tokens'])} tokens each"
        yield (
            f"models with {row['attention']}",
            f"{row['done']} of {row['cells']} done{sizes}{tokens}; {row['places']} sizes and "
            f"contexts, {row['seeds']} seeds",
        )


def _training(db: duckdb.DuckDBPyConnection, study: Study) -> Iterator[tuple[str, str]]:
    yield from _models(db)
    yield "parameters counted in N", meanings.meaning("runs", "params")
    yield "FLOPs counted", meanings.meaning("runs", "flops_per_token")
    row = study.datasets[study.dataset]
    yield "text", f"{study.dataset}: {_said(row.identity())}; tokenizer {study.tokenizer}"
    ((epochs,),) = db.sql(EPOCHS).fetchall()
    yield "passes over the text", f"at most {study.epochs}" + (f", {epochs} reached" * bool(epochs))
    yield "optimizer", f"AdamW, {_said(dump(study.optimizer))}"
    options = less(dump(study.schedule), "kind")
    yield "learning-rate schedule", f"{study.schedule.kind} {_said(options)}".rstrip()
    yield "learning rates", "; ".join(_rates(study))
    yield "learning rates tuned", "; ".join(_tuned(db, study))
    yield (
        "batch",
        f"{study.update_tokens:,} tokens an update at every size"
        + "".join(
            f"; {part.describe() or 'all'}: {_said(part.overrides)} ({part.reason})"
            for part in study.exceptions
        ),
    )
    yield "budget", study.budget
    yield (
        "layers, heads and width",
        "; ".join(
            f"{name} {size.n_layer}, {size.n_head}, {size.d_model}"
            for name, size in study.sizes.items()
            if name in study.axes.size
        ),
    )
    matched = f"as many as {study.compared_with}" if study.match else "MLPs of equal width"
    yield "parameters of the attentions", matched
    yield "positions, documents", f"{study.position}, {study.documents}"


def _rates(study: Study) -> Iterator[str]:
    for name in study.axes.size:
        lr = study.sizes[name].lr
        yield f"{name} {_said(lr) if isinstance(lr, dict) else f'{lr:g}'}"
    if study.lr_law:
        yield f"fitted sizes by {study.lr_law}"


def _tuned(db: duckdb.DuckDBPyConnection, study: Study) -> Iterator[str]:
    groups = lr_optimum.groups(db.sql(lr_optimum.QUERY).fetchall())
    tried: dict[str, set[int]] = {name: set() for name in study.axes.values("attention")}
    for group in groups:
        tried.setdefault(group.attention, set()).add(group.optimum.tried)
    for name, counts in tried.items():
        most = max(counts, default=1)
        yield f"{name}: {f'over {most} rates' if most > 1 else 'no, one rate a size'}"
    yield from lr_optimum.warnings(groups)


def _points(db: duckdb.DuckDBPyConnection, study: Study) -> Iterator[tuple[str, str]]:
    counts = [
        f"{row['points']} {row['schedule']} ({row['split']} loss) of {row['runs']} runs"
        for row in query_rows(db, POINTS)
    ]
    yield "points that laws are fitted to", "; ".join(counts) or "none"
    yield "what a point is", meanings.meaning("law_points", "loss")
    yield "at which schedules", meanings.meaning("law_points", "schedule")
    size, every = study.validation.tokens, study.validation.every_tokens
    yield "loss", f"on {size:,} validation tokens, the same for all, every {every:,} tokens"
    out = [f"{row['runs']} runs {row['reason']}" for row in query_rows(db, EXCLUDED)]
    yield "runs without a point", "; ".join(out) or "none"
    yield "failed runs", " ".join(question.failures(db)) or "none has ended"
    yield "unfinished", figures.unfinished_note(db) or "none"


def _fits(db: duckdb.DuckDBPyConnection, others: list[Table]) -> Iterator[tuple[str, str]]:
    for name, module in LAWS.items():
        objective = getattr(module, "OBJECTIVE", NOT_STATED)
        starts = getattr(module, "STARTS_SAID", NOT_STATED)
        yield f"objective of the {name}", objective
        yield f"starts of the {name}", starts
    (seeds,) = query_rows(db, SEEDED)
    yield (
        "seeds",
        f"{seeds['repeated']} of {seeds['cells']} finished sizes, contexts and attentions have "
        f"several, {seeds['degrees'] or 0} degrees of freedom",
    )
    shown = [table.title for table in others if table.section == "laws" and table.rows]
    yield "tables with intervals and goodness of fit", "; ".join(shown) or "none"


def _availability(db: duckdb.DuckDBPyConnection, folder: Path) -> Iterator[tuple[str, str]]:
    commits = [commit or "not in git" for (commit,) in db.sql(COMMITS).fetchall()]
    code = f"lmscaling {__version__}; runs by commit {', '.join(commits) or 'none'}"
    yield "code", code
    yield "study", str(folder / "study.json")
    logs = len(list(folder.glob("runs/*/log.jsonl")))
    weights = len(list(folder.glob("runs/*/model.safetensors")))
    yield "losses of every update", f"{logs} logs in {folder / 'runs'}"
    yield "checkpoints", f"final weights of {weights} runs in {folder / 'runs'}"
    manifests = map(str, sorted(folder.glob("tokens/*/manifest.json")))
    yield "SHA-256 of the tokens", "; ".join(manifests) or "not in this folder"


def _range(low: float, high: float) -> str:
    return short(low) if low == high else f"{short(low)} to {short(high)}"


def _said(value: Any) -> str:
    """``betas 0.9 and 0.95, eps 1e-08``."""
    match value:
        case dict():
            return ", ".join(f"{key} {_said(one)}" for key, one in value.items())
        case list() | tuple():
            return " and ".join(map(_said, value))
        case float():
            return f"{value:g}"
        case _:
            return str(value)
