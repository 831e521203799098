"""The reviewer's checklist: what a reader must know of a scaling-law study to judge or repeat it.

The questions are those of Li et al. 2025 ((Mis)Fitting, arXiv:2502.18969), in its four parts. They
stand in ``checklist.j2`` with their answers, which are computed from the study, its store, the
record classes and the modules that fit.
"""

import inspect
from pathlib import Path
from typing import Any

import duckdb

from lmscaling import __version__, figures
from lmscaling.config.study import Study
from lmscaling.fits import isotime, loss_surface, optimum, power_law
from lmscaling.formatting import short
from lmscaling.report import question, rates
from lmscaling.report.sentences import Sentences
from lmscaling.report.table import Table, query_rows
from lmscaling.store.meanings import meaning
from lmscaling.types import dump, less

LAWS = {
    "loss surface": loss_surface,
    "time law": power_law,
    "best size": isotime,
    "best context": optimum,
}
"""Laws of the report by the module that fits them."""

QUERY = """
    SELECT
        p.attention, count(*) AS cells, count(*) FILTER (p.updates > 0) AS started,
        count(*) FILTER (p.status = 'done') AS done, min(p.params) AS smallest,
        max(p.params) AS largest, min(p.tokens) FILTER (p.status = 'done') AS fewest,
        max(p.tokens) FILTER (p.status = 'done') AS most,
        count(DISTINCT (p.size, p.context)) AS places,
        count(DISTINCT p.seed) AS seeds, list_sort(list(DISTINCT p.lr_scale)) AS lr_scales
    FROM planned p WHERE p.branch IS NULL AND p.skipped IS NULL
    GROUP BY p.attention ORDER BY p.attention DESC
"""


def table(db: duckdb.DuckDBPyConnection, study: Study, folder: Path, others: list[Table]) -> Table:
    """The checklist.

    Args:
        db: The store.
        study: The study.
        folder: ``results/<study>``.
        others: The other tables of the report, which show uncertainty and goodness of fit.
    """
    tried = dict.fromkeys(study.axes.values("attention"), 1)
    for attention, rates_tried in db.sql("SELECT attention, tried FROM best_rates").fetchall():
        tried[attention] = max(tried.get(attention, 0), rates_tried)

    def listed(query: str) -> str:
        return "; ".join(str(value) for (value,) in db.sql(query).fetchall() if value) or "none"

    says = Sentences(
        "checklist", study=study, folder=folder, laws=LAWS, trained=query_rows(db, QUERY),
        tried=tried, warnings=rates.warnings(db), failures=question.failures(db),
        unfinished=figures.unfinished_note(db), version=__version__, dump=dump, less=less,
        shown=[one.title for one in others if one.section == "laws" and one.rows],
        meaning=meaning, listed=listed, formula=_formula, span=_span, said=_said,
    )  # fmt: skip
    entries = (entry.split("|", 2) for entry in says.all("entries"))
    return Table(
        name="checklist",
        section="audit",
        title="Reviewer's checklist",
        note="The questions of Li et al. 2025 ((Mis)Fitting, arXiv:2502.18969), answered from the "
        "study, its records and the code that fits.",
        query=QUERY,
        head=("part", "question", "answer"),
        rows=tuple(tuple(map(str.strip, entry)) for entry in entries),
        text=frozenset({0, 1, 2}),
    )


def _formula(module: Any) -> str:
    laws = [kind for _, kind in inspect.getmembers(module, inspect.isclass)]
    laws = [(law.formula, getattr(law, "source", "")) for law in laws if hasattr(law, "formula")]
    return "; ".join(f"{formula} ({source})" if source else formula for formula, source in laws)


def _span(low: float, high: float) -> str:
    return " to ".join(dict.fromkeys(map(short, (low, high))))


def _said(value: Any) -> str:
    """``betas 0.9 and 0.95, eps 1e-08``."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return " and ".join(map(_said, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
