"""The report: one page with all figures and tables of a study, each with its query.

The page is a single file without scripts or external resources, so it can be mailed and read
offline.
"""

import base64
import platform
from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from textwrap import dedent
from typing import Any

import jinja2
from duckdb import DuckDBPyConnection

from lmscaling import __version__, figures, registry
from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.files import write_text
from lmscaling.report import (
    attentions,
    cells,
    checklist,
    comparisons,
    laws,
    losses,
    provenance,
    question,
    rates,
    speed_crossings,
    verdicts,
)
from lmscaling.report.table import SECTIONS, Table
from lmscaling.store import published
from lmscaling.store.build import connect

TABLES: tuple[Callable[[DuckDBPyConnection], list[Table]], ...] = (
    question.tables,
    attentions.tables,
    cells.tables,
    losses.tables,
    rates.tables,
    speed_crossings.tables,
    laws.tables,
    comparisons.tables,
    verdicts.tables,
    provenance.tables,
)
"""Sources of tables, in the order of the tables within a section."""

LONG = 24
"""Tables with more rows are folded."""


def write(study: Path) -> Path:
    """Write ``results/<study>/report.html`` from the study's record, store and figures.

    ``results/published/`` has no record, and its page has no cells.

    Returns:
        The path of the page.

    Raises:
        UserError: The record, the exports of the store or a figure are missing.
    """
    alone = published.is_folder(study)
    record = None if alone else study_file.read_record(study / "study.json")
    folder = study / "figures"
    names = [n for n in registry.figures() if not alone or (folder / f"{n}.svg").is_file()]
    with connect(study / "store") as db:
        search_path = str(study).replace("'", "''")
        db.execute(f"SET file_search_path = '{search_path}'")  # the plan's query reads plan.json
        shown = _figures(folder, names)
        tables = [table for tables_of in TABLES for table in tables_of(db)]
        tables += provenance.plan_tables(study / "plan.json")
        if record:
            tables.append(checklist.table(db, record.grid.study, study, tables))
        text = _template().render(
            title=f"{record.grid.study.study}: scaling study" if record else "Published numbers",
            paragraphs=question.paragraphs(db, record.grid.study if record else None),
            sections=_sections(shown, [_table(db, t) for t in tables if t.rows]),
            versions=f"lmscaling {__version__}, duckdb {version('duckdb')}, "
            f"seaborn {version('seaborn')}, Python {platform.python_version()}",
            commands=record.command if record else f"python -m lmscaling figures {study}",
        )
    write_text(study / "report.html", text)
    return study / "report.html"


def _template() -> jinja2.Template:
    source = files("lmscaling.report").joinpath("page.html").read_text()
    return jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(source)


def _sections(shown: list[dict[str, Any]], tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures and tables by section in the order of ``SECTIONS``, without empty sections."""
    sections = []
    for name, heading in SECTIONS.items():
        own_figures = [figure for figure in shown if figure["section"] == name]
        own_tables = [table for table in tables if table["section"] == name]
        # The first section always has paragraphs, the last one the commands.
        if own_figures or own_tables or name in ("question", "audit"):
            groups = _groups(own_figures)
            section = {"name": name, "heading": heading, "groups": groups, "tables": own_tables}
            sections.append(section)
    return sections


def _groups(shown: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Single figures, and the figures of each switch as one group."""
    pairs = groupby(shown, lambda figure: figure["switch"] or figure["name"])
    return [list(group) for _, group in pairs]


def _figures(folder: Path, names: list[str]) -> list[dict[str, Any]]:
    """The figures that have data."""
    for name in names:
        for kind in ("svg", "csv"):
            path = folder / f"{name}.{kind}"
            if not path.is_file():
                raise UserError(f"figure {path} does not exist; run snakemake figures to draw it")
    return [_figure(name, folder) for name in names if not figures.is_empty(name, folder)]


def _figure(name: str, folder: Path) -> dict[str, Any]:
    module, caption = figures.load(name), figures.caption(name)
    group, label = getattr(module, "SWITCH", ("", ""))
    return {
        "name": name,
        "section": module.SECTION,
        "title": caption.title,
        "text": caption.text,
        "query": dedent(module.QUERY).strip(),
        "n_rows": figures.n_rows(name, folder),
        "svg": base64.b64encode((folder / f"{name}.svg").read_bytes()).decode(),
        "switch": group,
        "label": label,
    }


def _table(db: DuckDBPyConnection, table: Table) -> dict[str, Any]:
    """A table for the template, with its query and the number of rows of that query; without the
    columns that are empty in every row."""
    query = dedent(table.query).strip()
    status = table.head.index("status") if "status" in table.head else None
    shown = [i for i in range(len(table.head)) if any(row[i] for row in table.rows)]
    return {
        "name": table.name,
        "section": table.section,
        "title": table.title,
        "note": table.note,
        "query": query,
        "n_rows": len(db.sql(query)),
        "head": [table.head[i] for i in shown],
        "lines": [
            {
                "status": "" if status is None else row[status].replace(" ", "_"),
                "row": [row[i] for i in shown],
            }
            for row in table.rows
        ],
        "text": {place for place, i in enumerate(shown) if i in table.text},
        "folded": len(table.rows) > LONG,
    }
