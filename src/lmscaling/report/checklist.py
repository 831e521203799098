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
from lmscaling.fits import context_law, isotime, loss_surface, power_law
from lmscaling.formatting import short
from lmscaling.report import question, rates
from lmscaling.report.table import Table, query_rows
from lmscaling.store.meanings import meaning
from lmscaling.types import dump, less

LAWS = {
    "loss surface": loss_surface,
    "time law": power_law,
    "best size": isotime,
    "best context": context_law,
}
"""Laws of the report by the module that fits them."""

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
    SELECT format('{} {} ({} loss) of {} runs', count(*), schedule, split, count(DISTINCT trunk))
    FROM law_points WHERE source = 'measured' GROUP BY schedule, split ORDER BY schedule, split
"""

EXCLUDED = """
    SELECT format('{} runs {}', count(*), reason) FROM (
        SELECT concat_ws(': ', status, coalesce(skipped, nullif(message, ''))) AS reason
        FROM planned
        WHERE branch IS NULL AND run NOT IN (SELECT trunk FROM law_points WHERE source = 'measured')
    ) GROUP BY reason ORDER BY count(*) DESC, reason
"""

SEEDED = """
    SELECT format(
        '{} of {} finished sizes, contexts and attentions have several, {} degrees of freedom',
        count(*) FILTER (seeds > 1), count(*), coalesce(sum(seeds - 1), 0)
    ) FROM (
        SELECT count(DISTINCT seed) AS seeds FROM final
        WHERE source = 'measured' AND status = 'done' GROUP BY attention, size, context
    )
"""

COMMITS = """
    SELECT DISTINCT coalesce(nullif(environment::JSON ->> 'git_commit', ''), 'not in git')
    FROM runs WHERE in_study AND environment IS NOT NULL ORDER BY ALL
"""


def table(db: duckdb.DuckDBPyConnection, study: Study, folder: Path, others: list[Table]) -> Table:
    """The checklist.

    Args:
        db: The store.
        study: The study.
        folder: ``results/<study>``.
        others: The other tables of the report, which show uncertainty and goodness of fit.
    """
    rows = {
        "law": ((f"form of the {name}", _form(module)) for name, module in LAWS.items()),
        "training": _training(db, study),
        "points": _points(db, study),
        "fit": _fits(db, others),
        "availability": _availability(db, folder),
    }
    return Table(
        name="checklist",
        section="audit",
        title="Reviewer's checklist",
        note="The questions of Li et al. 2025 ((Mis)Fitting, arXiv:2502.18969), answered from the "
        "study, its records and the code that fits.",
        query=QUERY,
        head=("part", "question", "answer"),
        rows=tuple((part, *row) for part, answers in rows.items() for row in answers),
        text=frozenset({0, 1, 2}),
    )


def _form(module: Any) -> str:
    laws = [kind for _, kind in inspect.getmembers(module, inspect.isclass)]
    laws = [(law.formula, getattr(law, "source", "")) for law in laws if hasattr(law, "formula")]
    return "; ".join(f"{formula} ({source})" if source else formula for formula, source in laws)


def _training(db: duckdb.DuckDBPyConnection, study: Study) -> Iterator[tuple[str, str]]:
    for row in query_rows(db, QUERY):
        n = _range(", N {}", row["smallest"], row["largest"])
        tokens = _range(", {} tokens each", row["fewest_tokens"], row["most_tokens"])
        done = f"{row['done']} of {row['cells']} done{n}{tokens}"
        places = f"{row['places']} sizes and contexts, {row['seeds']} seeds"
        yield f"models with {row['attention']}", f"{done}; {places}"
    yield "parameters counted in N", meaning("runs", "params")
    yield "FLOPs counted", meaning("runs", "flops_per_token")
    text = _said(study.datasets[study.dataset].identity())
    yield "text", f"{study.dataset}: {text}; tokenizer {study.tokenizer}"
    ((epochs,),) = db.sql("SELECT max(epoch) FROM validations JOIN planned USING (run)").fetchall()
    yield "passes over the text", f"at most {study.epochs}" + (f", {epochs} reached" * bool(epochs))
    yield "optimizer", f"AdamW, {_said(dump(study.optimizer))}"
    options = _said(less(dump(study.schedule), "kind"))
    yield "learning-rate schedule", f"{study.schedule.kind} {options}".rstrip()
    sizes = {name: study.sizes[name] for name in study.axes.size}
    yield "learning rates", "; ".join(f"{name} {_said(size.lr)}" for name, size in sizes.items())
    yield "learning rates tuned", "; ".join(_tuned(db, study))
    exceptions = [
        f"; {part.describe() or 'all'}: {_said(part.overrides)} ({part.reason})"
        for part in study.exceptions
    ]
    yield "batch", f"{study.update_tokens:,} tokens an update at every size{''.join(exceptions)}"
    yield "budget", study.budget
    shapes = [
        f"{n} {s.n_layer}, {s.n_head}, {s.d_model}" for n, s in study.sizes.items() if n in sizes
    ]
    yield "layers, heads and width", "; ".join(shapes)
    matched = f"as many as {study.compared_with}" if study.match else "MLPs of equal width"
    yield "parameters of the attentions", matched
    yield "positions, documents", f"{study.position}, {study.documents}"


def _tuned(db: duckdb.DuckDBPyConnection, study: Study) -> list[str]:
    most = dict.fromkeys(study.axes.values("attention"), 1)
    for attention, tried in db.sql("SELECT attention, tried FROM best_rates").fetchall():
        most[attention] = max(most.get(attention, 0), tried)
    said = [
        f"{a}: {f'over {n} rates' if n > 1 else 'no, one rate a size'}" for a, n in most.items()
    ]
    return [*said, *rates.warnings(db)]


def _points(db: duckdb.DuckDBPyConnection, study: Study) -> Iterator[tuple[str, str]]:
    yield "points that laws are fitted to", _listed(db, POINTS)
    yield "what a point is", meaning("law_points", "loss")
    yield "at which schedules", meaning("law_points", "schedule")
    size, every = study.validation.tokens, study.validation.every_tokens
    yield "loss", f"on {size:,} validation tokens, the same for all, every {every:,} tokens"
    yield "runs without a point", _listed(db, EXCLUDED)
    yield "failed runs", " ".join(question.failures(db)) or "none has ended"
    yield "unfinished", figures.unfinished_note(db) or "none"


def _fits(db: duckdb.DuckDBPyConnection, others: list[Table]) -> Iterator[tuple[str, str]]:
    for name, module in LAWS.items():
        yield f"objective of the {name}", module.OBJECTIVE
        yield f"starts of the {name}", module.STARTS_SAID
    yield "seeds", _listed(db, SEEDED)
    shown = [table.title for table in others if table.section == "laws" and table.rows]
    yield "tables with intervals and goodness of fit", "; ".join(shown) or "none"


def _availability(db: duckdb.DuckDBPyConnection, folder: Path) -> Iterator[tuple[str, str]]:
    runs, commits = folder / "runs", _listed(db, COMMITS, ", ")
    yield "code", f"lmscaling {__version__}; runs by commit {commits}"
    yield "study", str(folder / "study.json")
    yield "losses of every update", f"{len([*runs.glob('*/log.jsonl')])} logs in {runs}"
    weights = len([*runs.glob("*/model.safetensors")])
    yield "checkpoints", f"final weights of {weights} runs in {runs}"
    manifests = map(str, sorted(folder.glob("tokens/*/manifest.json")))
    yield "SHA-256 of the tokens", "; ".join(manifests) or "not in this folder"


def _listed(db: duckdb.DuckDBPyConnection, query: str, between: str = "; ") -> str:
    return between.join(text for (text,) in db.sql(query).fetchall()) or "none"


def _range(form: str, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return form.format(short(low) if low == high else f"{short(low)} to {short(high)}")


def _said(value: Any) -> str:
    """``betas 0.9 and 0.95, eps 1e-08``."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return " and ".join(map(_said, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
