"""One page about a study: its figures, the tables of its cells, and what made them.

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

from lmscaling import figures, grid, plan, published, registry, store
from lmscaling.config import Study
from lmscaling.errors import UserError
from lmscaling.files import write_text
from lmscaling.fits import lr_optimum

CELLS = """
    SELECT s.name, s.status, s.params, s.updates, s.tokens, s.train_seconds / 3600 AS hours,
        v.val_loss, s.attempts, c.spikes, c.spikes_per_10000_updates, c.highest_spike,
        coalesce(s.skipped, nullif(s.message, ''), '') AS note
    FROM status s
    LEFT JOIN last_validation v USING (run)
    LEFT JOIN stability c USING (run)
    ORDER BY s.place
"""

ENDPOINTS = """
    SELECT e.name, e.params, e.update AS updates, e.tokens, e.hours, e.flops, e.val_loss,
        e.trunk_val_loss, e.trunk_val_loss - e.val_loss AS gain
    FROM endpoints e JOIN cells c ON c.run = e.trunk
    ORDER BY c.place, e.share
"""


CROSSINGS = """
    SELECT kind, size, batch, challenger, baseline, status, context, low, high, shortest, longest,
        least_ratio, most_ratio, source, setup
    FROM crossings
    ORDER BY kind DESC, source, setup, challenger, baseline DESC, params, size, batch
"""

KINDS = {"time_step": "Time of a training step", "time_decode": "Time of a sampled token"}

FASTER = {
    "always": "at all",
    "never": "at none",
    "from": "from {at} on",
    "until": "up to {at}",
    "several": "changes, last at {at}",
}
"""Where the first way of a pair is faster, by the status of a crossing."""


def write(study: Path) -> Path:
    """Write ``results/<study>/report.html`` from the study's record, store and figures.

    In ``results/published/`` there is no record, and the page has nothing about cells.

    Returns:
        The path of the page.

    Raises:
        UserError: The record, the exports or a figure are not there.
    """
    alone = published.is_folder(study)
    record = None if alone else grid.read_record(study / "study.json")
    drawn = study / "figures"
    names = [n for n in registry.figures() if not alone or (drawn / f"{n}.svg").is_file()]
    with store.connect(study / "store") as db:
        val_tokens = _rows(db, "SELECT coalesce(max(val_tokens), 0) AS n FROM validations")[0]["n"]
        text = _template().render(
            title=f"{record.grid.study.study}: scaling study" if record else "Published numbers",
            summary=_summary(db, record.grid.study) if record else "",
            published=_published(db),
            figures=_figures(drawn, names),
            crossings=[_crossing(row) for row in _rows(db, CROSSINGS)],
            cells=[_show(cell) for cell in _rows(db, CELLS)],
            spiked=_rows(db, "SELECT 1 FROM status JOIN stability USING (run) WHERE spikes > 0"),
            lost=_lost(db),
            endpoints=[_show(end) for end in _rows(db, ENDPOINTS)],
            rates=_rates(db),
            plan=_plan(study / "plan.json"),
            val_tokens=f"{val_tokens:,}",
            damage=_damage(db),
            environments=_environments(db),
            here=f"lmscaling {version('lmscaling')}, duckdb {version('duckdb')}, "
            f"seaborn {version('seaborn')}, Python {platform.python_version()}",
            commands=record.command if record else f"python -m lmscaling figures {study}",
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
    n_cells = _rows(db, "SELECT count(*) AS n FROM status WHERE skipped IS NULL")[0]["n"]
    return (
        f"{n_cells} cells, each with a budget of {study.budget} and {study.update_tokens:,} tokens "
        f"per update. {figures.missing(db) or 'All are done.'}"
    )


def _published(db: duckdb.DuckDBPyConnection) -> str:
    """How many numbers of others the page shows, and whose; empty if none."""
    counts = db.sql("""
        SELECT
            (SELECT count(*) FROM runs WHERE source = 'published'),
            (SELECT count(*) FROM speeds WHERE source = 'published' AND status = 'done')
    """).fetchall()
    runs, times = counts[0]
    if not runs + times:
        return ""
    return (
        f"Published are {runs} runs and {times} times of {published.CITATION}. They were copied, "
        "not measured again; their losses are those of training, means over the last updates."
    )


def _crossing(row: dict[str, Any]) -> dict[str, str]:
    """A row of the view as a reader wants it; a context between two that were measured is rough."""
    at = "" if row["context"] is None else f"{float(format(row['context'], '.2g')):,.0f}"
    between = "" if row["low"] is None else _range(row["low"], row["high"])
    return {
        "group": f"{KINDS[row['kind']]}, {row['source']}: {row['setup']}",
        "size": row["size"],
        "batch": str(row["batch"]),
        "pair": f"{row['challenger']} against {row['baseline']}",
        "faster": FASTER[row["status"]].format(at=at),
        "between": between,
        "compared": _range(row["shortest"], row["longest"]),
        "ratios": f"{row['least_ratio']:.3g} to {row['most_ratio']:.3g}",
    }


def _range(low: int, high: int) -> str:
    """Two contexts, powers of two as ``1k to 512k``."""
    return " to ".join(f"{n // 1024}k" if n % 1024 == 0 else f"{n:,}" for n in (low, high))


def _figures(drawn: Path, names: list[str]) -> list[dict[str, str]]:
    """Those of the figures that have something to say."""
    for name in names:
        for kind in ("svg", "csv"):
            path = drawn / f"{name}.{kind}"
            if not path.is_file():
                raise UserError(f"figure {path} does not exist; run snakemake figures to draw it")
    return [_figure(name, drawn) for name in names if not figures.says_nothing(name, drawn)]


def _figure(name: str, drawn: Path) -> dict[str, str]:
    caption = figures.caption(name)
    return {
        "name": name,
        "title": caption.title,
        "text": caption.text,
        "svg": base64.b64encode((drawn / f"{name}.svg").read_bytes()).decode(),
    }


FORMATS = {
    "params": ",",
    "updates": ",",
    "tokens": ".3g",
    "hours": ".3g",
    "flops": ".3g",
    "val_loss": ".4f",
    "trunk_val_loss": ".4f",
    "gain": ".4f",
    "spikes_per_10000_updates": ".3g",
    "highest_spike": ".2f",
    "lr": ".3g",
    "scale": ".3g",
}


def _show(row: dict[str, Any]) -> dict[str, str]:
    """Numbers as a reader wants them; nothing where there is none."""
    shown = {k: "" if v is None else format(v, FORMATS.get(k, "")) for k, v in row.items()}
    if shown.get("attempts") == "1":
        shown["attempts"] = ""
    return shown


def _plan(path: Path) -> plan.Plan | None:
    """What the study was expected to take; a study that never ran here may have no plan."""
    return plan.read(path) if path.is_file() else None


def _rates(db: duckdb.DuckDBPyConnection) -> list[dict[str, str]]:
    """The best learning rate of every group of cells in which several are done."""
    made = []
    for group in lr_optimum.groups(db.sql(lr_optimum.QUERY).fetchall()):
        best = group.optimum
        lr = [None if s is None else s * group.study_lr for s in (best.scale, best.low, best.high)]
        status = lr_optimum.STATUSES[best.status]
        if best.scale is None and best.lowest_scale is not None:
            status += f"; lowest at {best.lowest_scale:g} x"
        row = _show({"lr": lr[0], "scale": best.scale, "gain": best.gain, "status": status})
        if lr[1] is not None and lr[2] is not None:
            row["lr"] += f" ({lr[1]:.3g} to {lr[2]:.3g})"
        made.append(
            row
            | {"attention": group.attention, "size": group.size, "context": f"{group.context:,}"}
        )
    return made


def _lost(db: duckdb.DuckDBPyConnection) -> str:
    """How many losses are no number, in words; empty if all are."""
    losses, runs = db.execute(
        "SELECT coalesce(sum(nonfinite_losses), 0), count(*) FILTER (nonfinite_losses > 0) "
        "FROM stability JOIN status USING (run)"
    ).fetchall()[0]
    return f"Training losses that are no number: {losses} (runs: {runs})." if losses else ""


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
