"""The research question and the design of a study, written from its values."""

import duckdb
from scipy.stats import fisher_exact

from lmscaling import figures
from lmscaling.config import code
from lmscaling.config.study import Study
from lmscaling.fits.rows import Row
from lmscaling.report import rates
from lmscaling.report.sentences import Sentences
from lmscaling.report.table import query_rows
from lmscaling.report.words import join_names
from lmscaling.store import published

FAILURES = """
    SELECT
        attention, attention = baseline AS is_baseline,
        count(*) FILTER (outcome = 'failed') AS failed,
        count(*) FILTER (outcome <> 'unfinished') AS ended
    FROM outcomes WHERE source = 'measured' AND branch IS NULL
    GROUP BY ALL HAVING ended > 0 ORDER BY is_baseline DESC, attention DESC
"""

STALE = "SELECT count(*) FROM planned WHERE is_stale"

MIXED = """
    WITH environments AS (
        SELECT size, context, unnest(coalesce(r.environments::JSON[], [r.environment::JSON])) AS e
        FROM status JOIN runs r USING (run) WHERE status.status = 'done'
    ),
    found AS (
        SELECT size, context, unnest([
            {'what': 'device', 'found': e ->> 'device'},
            {'what': 'torch', 'found': 'PyTorch ' || (e -> 'versions' ->> 'torch')}
        ], recursive := true)
        FROM environments
    )
    SELECT size, context, list_sort(list(DISTINCT found)) AS found
    FROM found WHERE found IS NOT NULL GROUP BY size, context, what HAVING count(DISTINCT found) > 1
    ORDER BY ALL
"""
"""Sizes and contexts whose runs were trained on several devices, or by several versions."""

STALLED = """
    SELECT count(*) AS runs, sum(stalled_seconds) / 3600 AS hours
    FROM runs WHERE in_study AND stalled_seconds > 0 HAVING count(*) > 0
"""

CITED = """
    SELECT
        (SELECT count(*) FROM runs WHERE source = 'published') AS runs,
        (SELECT count(*) FROM speeds WHERE source = 'published' AND status = 'done') AS times
"""


def paragraphs(db: duckdb.DuckDBPyConnection, study: Study | None) -> list[str]:
    """The question, the design, runs that other code has trained, and the published numbers, if
    any; without a study the published numbers alone."""
    facts = {"study": study, "join_names": join_names, "cited": query_rows(db, CITED)[0],
             "source": published.CITATION, "ended": []}  # fmt: skip
    if study:
        block = study.datasets[study.dataset].blocks(
            study.protocol.get("all", 1), study.axes.context[0]
        )
        ((stale,),) = db.sql(STALE).fetchall()
        ((cells,),) = db.sql("SELECT count(*) FROM status WHERE skipped IS NULL").fetchall()
        facts |= {
            "cells": cells, "block": block, "unfinished": figures.unfinished_note(db),
            "contexts": [f"{context:,}" for context in study.axes.context], "ended": _ended(db),
            "stale": code.stale_line(study.study, stale), "warnings": rates.warnings(db),
        }  # fmt: skip
    return Sentences("question", **facts).all("paragraphs")


def failures(db: duckdb.DuckDBPyConnection) -> list[str]:
    """A sentence on how many runs of each attention have failed, with p-values against the
    baseline; none before a run has ended."""
    return Sentences("question", ended=_ended(db)).all("failures")


def _ended(db: duckdb.DuckDBPyConnection) -> list[Row]:
    """Failures by attention, with Fisher's ``p`` against the baseline."""
    rows = query_rows(db, FAILURES)
    counts = [[row["failed"], row["ended"] - row["failed"]] for row in rows]
    for row, own in zip(rows, counts, strict=True):
        compared = rows[0]["is_baseline"] and not row["is_baseline"]
        row["p"] = fisher_exact([counts[0], own]).pvalue if compared else None  # pyright: ignore
    return rows
