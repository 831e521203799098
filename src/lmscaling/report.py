"""One page about a study: its figures, the table of its cells, and what made them.

The page holds everything it shows, so it can be mailed and opened without a network.
"""

import base64
import json
import platform
from collections import Counter
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import jinja2

from lmscaling import figures, grid, registry, store
from lmscaling.config import Study
from lmscaling.errors import UserError
from lmscaling.files import write_text

CELLS = """
    SELECT s.name, s.status, s.params, s.updates, s.tokens, s.train_seconds / 3600 AS hours,
        v.val_loss, s.attempts, coalesce(s.skipped, nullif(s.message, ''), '') AS note
    FROM status s
    LEFT JOIN (
        SELECT run, val_loss FROM validation
        QUALIFY row_number() OVER (PARTITION BY run ORDER BY update DESC) = 1
    ) v USING (run)
    ORDER BY place
"""


def write(study: Path) -> Path:
    """Write ``results/<study>/report.html`` from the study's record, store and figures.

    Returns:
        The path of the page.

    Raises:
        UserError: The record, the exports or a figure are not there.
    """
    record = grid.read_record(study / "study.json")
    with store.connect(study / "store") as db:
        val_tokens = _rows(db, "SELECT coalesce(max(val_tokens), 0) AS n FROM validations")[0]["n"]
        text = _template().render(
            study=record.grid.study.study,
            summary=_summary(db, record.grid.study),
            figures=[_figure(name, study / "figures") for name in registry.figures()],
            cells=[_show(cell) for cell in _rows(db, CELLS)],
            val_tokens=f"{val_tokens:,}",
            damage=_damage(db),
            environments=_environments(db),
            here=f"lmscaling {version('lmscaling')}, duckdb {version('duckdb')}, "
            f"seaborn {version('seaborn')}, Python {platform.python_version()}",
            commands=record.command,
        )
    write_text(study / "report.html", text)
    return study / "report.html"


def _template() -> jinja2.Template:
    source = files("lmscaling").joinpath("report.html").read_text()
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(source)


def _rows(db: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    result = db.execute(query)
    names = [column[0] for column in result.description or []]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _summary(db: duckdb.DuckDBPyConnection, study: Study) -> str:
    n_cells = _rows(db, "SELECT count(*) AS n FROM cells WHERE skipped IS NULL")[0]["n"]
    return (
        f"{n_cells} cells, each with a budget of {study.budget} and {study.update_tokens:,} tokens "
        f"per update. {figures.missing(db) or 'All are done.'}"
    )


def _figure(name: str, drawn: Path) -> dict[str, str]:
    path = drawn / f"{name}.svg"
    if not path.is_file():
        raise UserError(f"figure {path} does not exist; run snakemake figures to draw it")
    caption = figures.caption(name)
    return {
        "name": name,
        "title": caption.title,
        "text": caption.text,
        "svg": base64.b64encode(path.read_bytes()).decode(),
    }


def _show(cell: dict[str, Any]) -> dict[str, str]:
    """Numbers as a reader wants them; nothing where there is none."""
    formats = {
        "params": ",",
        "updates": ",",
        "tokens": ".3g",
        "hours": ".3g",
        "val_loss": ".4f",
        "attempts": "",
    }
    shown = {k: "" if v is None else format(v, formats.get(k, "")) for k, v in cell.items()}
    if shown["attempts"] == "1":
        shown["attempts"] = ""
    return shown


def _damage(db: duckdb.DuckDBPyConnection) -> str:
    """What was found broken in the logs, in words; empty if nothing was."""
    damaged, superseded = db.execute(
        "SELECT coalesce(sum(damaged_lines), 0), coalesce(sum(superseded_rows), 0) FROM runs"
    ).fetchall()[0]
    if not damaged + superseded:
        return ""
    return (
        f"The logs hold {damaged} damaged lines, which are left out, and {superseded} rows that a "
        "later attempt trained again, which are kept but not shown."
    )


def _environments(db: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Distinct environments of the runs, the most frequent first."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for (text,) in db.execute(
        "SELECT environment FROM runs WHERE in_study AND environment IS NOT NULL ORDER BY run"
    ).fetchall():
        made = json.loads(text)
        versions = {"python": made["python"], **made["versions"]}
        seen[
            f"{made['devices']} x {made['device']}",
            ", ".join(f"{name} {number}" for name, number in versions.items()),
            made["git_commit"] or "not in git",
        ] += 1
    keys = ("device", "versions", "git_commit")
    return [{"runs": n, **dict(zip(keys, made, strict=True))} for made, n in seen.most_common()]
