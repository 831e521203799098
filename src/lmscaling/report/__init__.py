"""The report: one page that answers first, with all figures and tables of a study below.

``contest`` compares the attentions, ``answer`` says it in words, ``chart`` has the data of the
curves and of the map of gaps. The figures and tables of the study follow in closed sections, each
with its query. The page is a single file without external resources, so it can be mailed and read
offline; without scripts it lacks the curves, sorting and copying.
"""

import base64
import platform
import re
from collections.abc import Iterable
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from textwrap import dedent
from typing import Any

import jinja2
from duckdb import DuckDBPyConnection
from pandas import DataFrame

from lmscaling import __version__, claims, figures, registry
from lmscaling.claims import Judged
from lmscaling.config import study_file
from lmscaling.errors import UserError
from lmscaling.figures.shared import style
from lmscaling.files import write_text
from lmscaling.report import (
    answer,
    chart,
    checklist,
    contest,
    forecasts,
    provenance,
    question,
    rates,
    scoreboard,
    tables,
    verdicts,
    words,
)
from lmscaling.report.answer import Answer
from lmscaling.report.contest import Contest, Evidence
from lmscaling.report.table import SECTIONS, Table, query_rows
from lmscaling.store import published, whole
from lmscaling.store.build import connect

LONG = 24
"""Tables with more rows are folded."""

DASHES = ("none", "9 3", "2 3", "9 3 2 3", "5 2", "12 3 2 3 2 3")
"""Strokes of the attentions, the baseline first, pixels."""

BIBTEX = f"""@software{{lmscaling,
  title   = {{lmscaling: scaling-law studies of language models as one workflow}},
  version = {{{__version__}}}
}}
"""

CSV = ("candidate", "baseline", "size", "context", "axis", "spent", "gap_nats", "low", "high",
       "sd_of_a_pair", "noise", "seeds", "side")  # fmt: skip


def write(study: Path, verdicts_on: list[Judged] | None = None) -> Path:
    """Write ``results/<study>/report.html`` from the study's record, store and figures.

    ``results/published/`` has no record, and its page has no cells.

    Args:
        study: ``results/<study>``.
        verdicts_on: The claims as ``claims.write`` has judged them; judged anew by default.

    Returns:
        The path of the page.

    Raises:
        UserError: The record, the exports of the store or a figure are missing.
    """
    alone = published.is_folder(study)
    record = None if alone else study_file.read_record(study / "study.json").grid
    command = "" if alone else study_file.read_record(study / "study.json").command
    with connect(study / "store") as db:
        search_path = str(study).replace("'", "''")
        db.execute(f"SET file_search_path = '{search_path}'")  # the plan's query reads plan.json
        cites = bool(db.sql("FROM cells WHERE source = 'published' LIMIT 1").fetchall())
        shown = _figures(study / "figures", alone, cites)
        verdicts_on = claims.judge_all(db) if verdicts_on is None else verdicts_on
        known = [*tables.tables(db), *forecasts.tables(db), *verdicts.tables(verdicts_on)]
        known += provenance.plan_tables(study / "plan.json")
        if record:
            known.append(checklist.table(db, record.study, study, known))
        evidence = contest.read(db, "measured" if record else "published")
        judged = contest.judge(evidence)
        said = answer.write(
            judged,
            evidence,
            budget=record.study.budget if record else "24 hours",
            command=command,
            verdicts=[one.judgement.verdict for one in verdicts_on],
            rate_warnings=rates.warnings(db) if record else [],
            stale=db.sql(question.STALE).fetchall()[0][0] if record else 0,
            damaged=list(whole.problems(study)) if record else [],
            mixed=query_rows(db, question.MIXED),
            stalled=next(iter(query_rows(db, question.STALLED)), None),
            floor=next(iter(query_rows(db, answer.FLOOR)), None),
            no_law=next(iter(query_rows(db, answer.NO_LAW)), None),
            optimum=next(iter(query_rows(db, answer.OPTIMUM)), None),
        )
        board = scoreboard.table(db)
        text = page(
            judged,
            evidence,
            said,
            board=_table(db, board) if board else None,
            title=f"{record.study.study}: scaling study" if record else "Published numbers",
            commands=command or f"lmscaling figures {study}",
            paragraphs=question.paragraphs(db, record.study if record else None),
            sections=_sections(shown, [_table(db, t) for t in known if t.rows]),
            answers=[figure for figure in shown if figure["section"] == "answer"],
            cites=cites,
        )
        text = figures.in_bytes(text) if figures.reads_bytes(db) else text
    write_text(study / "report.html", text)
    return study / "report.html"


def page(
    judged: Contest,
    evidence: Evidence,
    said: Answer,
    *,
    title: str,
    commands: str,
    board: dict[str, Any] | None = None,
    paragraphs: Iterable[str] = (),
    answers: Iterable[dict[str, Any]] = (),
    sections: Iterable[dict[str, Any]] = (),
    cites: bool = False,
) -> str:
    """The page.

    Args:
        judged: Who is ahead.
        evidence: What it was judged by.
        said: The same in words.
        title: That of the page.
        commands: What makes the page again.
        board: The table of attentions by task, if the study has tasks.
        paragraphs: Question and design.
        answers: Figures of the first screen.
        sections: Figures and tables of closed sections.
        cites: Whether published numbers are shown.
    """
    names = [judged.baseline, *judged.candidates]
    style.choose(names)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lmscaling", "report"), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template("page.html").render(
        names=names, candidates=judged.candidates, baseline=judged.baseline, source=judged.source,
        sizes=list(judged.sizes), chart=chart.data(judged, evidence.curves, names),
        palette=style.palette(names), dashes=DASHES, answers=[*answers],
        title=title, answer=said, board=board, paragraphs=paragraphs,
        sections=list(sections), commands=commands,
        csv=_csv(judged),
        bibtex=BIBTEX + (published.BIBTEX if cites else ""),
        citation=published.CITATION if cites else "",
        versions=f"lmscaling {__version__}, duckdb {version('duckdb')}, "
        f"seaborn {version('seaborn')}, Python {platform.python_version()}",
    )  # fmt: skip


def _csv(judged: Contest) -> str:
    """The gaps of the map, one row for each candidate, cell and axis."""
    rows = []
    for axis, of in judged.edges.items():
        for candidate, edges in of.items():
            for cell, edge in edges.items():
                numbers = edge.gap, edge.interval.low, edge.interval.high, edge.spread.sd
                rows.append((
                    candidate, judged.baseline, *cell, axis, edge.spent or "",
                    *(f"{x:.5f}" for x in numbers), edge.spread.basis, edge.seeds, edge.side,
                ))  # fmt: skip
    return DataFrame(rows, columns=[*CSV]).to_csv(index=False) if rows else ""


def _sections(shown: list[dict[str, Any]], tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures and tables by section in the order of ``SECTIONS``, without empty sections; the
    figures of each switch are one group."""
    sections = []
    for name, heading in SECTIONS.items():
        own_figures = [figure for figure in shown if figure["section"] == name]
        own_tables = [table for table in tables if table["section"] == name]
        # The question always has paragraphs, the last section the commands.
        if name == "answer":
            continue
        if own_figures or own_tables or name in ("question", "audit"):
            groups = groupby(own_figures, lambda figure: figure["switch"] or figure["name"])
            counts = {"figure": len(own_figures), "table": len(own_tables)}
            sections.append({
                "name": name, "heading": heading, "tables": own_tables,
                "groups": [list(group) for _, group in groups],
                "holds": ", ".join(words.many(n, noun) for noun, n in counts.items() if n),
            })  # fmt: skip
    return sections


def _figures(folder: Path, alone: bool, cites: bool) -> list[dict[str, Any]]:
    """The figures that have data; of published numbers alone only some are drawn. Captions are
    silent about published numbers where there are none."""
    found = []
    for name in registry.figures():
        svg, rows = folder / f"{name}.svg", folder / f"{name}.csv"
        if alone and not svg.is_file():
            continue
        for path in (svg, rows):
            if not path.is_file():
                raise UserError(f"figure {path} does not exist; run snakemake figures to draw it")
        if n_rows := figures.n_rows(name, folder):
            module, caption = figures.load(name), figures.caption(name)
            lead, rest = words.parted(caption.text)
            if not cites:
                rest = re.sub(r"[^.]*\b[Pp]ublished\b[^.]*\.", "", rest).strip()
            group, label = getattr(module, "SWITCH", ("", ""))
            found.append({
                "name": name, "section": module.SECTION, "title": caption.title,
                "note": (lead, rest), "query": dedent(module.QUERY).strip(), "n_rows": n_rows,
                "svg": base64.b64encode(svg.read_bytes()).decode(),
                "switch": group, "label": label,
            })  # fmt: skip
    return found


def _table(db: DuckDBPyConnection, table: Table) -> dict[str, Any]:
    """A table for the template, with its query and the number of rows of that query; without the
    columns that are empty in every row."""
    query = dedent(table.query).strip()
    shown = [i for i in range(len(table.head)) if any(row[i] for row in table.rows)]
    status = table.head.index("status") if "status" in table.head else None
    return {
        "name": table.name, "section": table.section, "title": table.title,
        "note": words.parted(table.note), "query": query, "n_rows": len(db.sql(query)),
        "head": [table.head[i] for i in shown],
        "lines": [
            {
                "status": "" if status is None else row[status].replace(" ", "_"),
                "row": [row[i] for i in shown],
            }
            for row in table.rows
        ],
        "text": {place for place, i in enumerate(shown) if i in table.text},
        "folded": table.folded or len(table.rows) > LONG,
    }  # fmt: skip
