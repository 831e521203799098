"""One page about a study: its figures and tables in sections, each with the query behind it.

The page holds everything it shows, so it can be mailed and opened without a network, and it has no
script.
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

from lmscaling import claims, figures, registry
from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.files import write_text
from lmscaling.formatting import SECTIONS, Table
from lmscaling.report import cells, crossings, laws, losses, question, rates
from lmscaling.report import provenance as made
from lmscaling.store import build as store
from lmscaling.store import published

TABLES: tuple[Callable[[DuckDBPyConnection], list[Table]], ...] = (
    question.tables,
    cells.tables,
    losses.tables,
    rates.tables,
    crossings.tables,
    laws.tables,
    lambda db: [claims.table(db)],
    made.tables,
)
"""Who makes tables. Each table names its section; within one they stand in this order."""

LONG = 24
"""Rows from which on a table is folded."""


def write(study: Path) -> Path:
    """Write ``results/<study>/report.html`` from the study's record, store and figures.

    In ``results/published/`` there is no record, and the page has nothing about cells.

    Returns:
        The path of the page.

    Raises:
        UserError: The record, the exports or a figure are not there.
    """
    alone = published.is_folder(study)
    record = None if alone else study_file.read_record(study / "study.json")
    drawn = study / "figures"
    names = [n for n in registry.figures() if not alone or (drawn / f"{n}.svg").is_file()]
    with store.connect(study / "store") as db:
        folder = str(study).replace("'", "''")
        db.execute(f"SET file_search_path = '{folder}'")  # a query names plan.json alone
        shown = _figures(drawn, names)
        tables = [table for make in TABLES for table in make(db)] + made.planned(
            study / "plan.json"
        )
        text = _template().render(
            title=f"{record.grid.study.study}: scaling study" if record else "Published numbers",
            words=question.words(db, record.grid.study if record else None),
            sections=_sections(shown, [_table(db, t) for t in tables if t.rows]),
            here=f"lmscaling {version('lmscaling')}, duckdb {version('duckdb')}, "
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
    """What stands in each section, in the order of ``SECTIONS``; empty ones are left out."""
    made = []
    for name, heading in SECTIONS.items():
        here = [figure for figure in shown if figure["section"] == name]
        below = [table for table in tables if table["section"] == name]
        # The question has its words, and the last section what made the page.
        if here or below or name in ("question", "audit"):
            made.append(
                {"name": name, "heading": heading, "groups": _groups(here), "tables": below}
            )
    return made


def _groups(shown: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Figures one by one, and those of one switch together."""
    pairs = groupby(shown, lambda figure: figure["switch"] or figure["name"])
    return [list(group) for _, group in pairs]


def _figures(drawn: Path, names: list[str]) -> list[dict[str, Any]]:
    """Those of the figures that have something to say."""
    for name in names:
        for kind in ("svg", "csv"):
            path = drawn / f"{name}.{kind}"
            if not path.is_file():
                raise UserError(f"figure {path} does not exist; run snakemake figures to draw it")
    return [_figure(name, drawn) for name in names if not figures.says_nothing(name, drawn)]


def _figure(name: str, drawn: Path) -> dict[str, Any]:
    module, caption = figures.load(name), figures.caption(name)
    group, label = getattr(module, "SWITCH", ("", ""))
    return {
        "name": name,
        "section": module.SECTION,
        "title": caption.title,
        "text": caption.text,
        "query": dedent(module.QUERY).strip(),
        "n_rows": figures.n_rows(name, drawn),
        "svg": base64.b64encode((drawn / f"{name}.svg").read_bytes()).decode(),
        "switch": group,
        "label": label,
    }


def _table(db: DuckDBPyConnection, table: Table) -> dict[str, Any]:
    """A table with its query as it is printed, and how many rows that has."""
    query = dedent(table.query).strip()
    status = table.head.index("status") if "status" in table.head else None
    return {
        "name": table.name,
        "section": table.section,
        "title": table.title,
        "note": table.note,
        "query": query,
        "n_rows": len(db.sql(query)),
        "head": table.head,
        "lines": [
            {"status": "" if status is None else row[status].replace(" ", "_"), "row": row}
            for row in table.rows
        ],
        "text": table.text,
        "folded": len(table.rows) > LONG,
    }
