"""The plan of a study and the environments in which it was trained."""

from pathlib import Path

import duckdb

from lmscaling.plan import documents, study_plan
from lmscaling.report.table import Table, of_query

ENVIRONMENTS = """
    WITH known AS (
        SELECT run, environment::JSON AS e, e -> 'versions' AS v
        FROM runs WHERE in_study AND environment IS NOT NULL
    )
    SELECT
        format('{} x {}', e ->> 'devices', e ->> 'device') AS device,
        concat('python ', e ->> 'python', array_to_string(
            [format(', {} {}', k, v ->> k) for k in json_keys(v)], ''
        )) AS versions,
        coalesce(nullif(e ->> 'git_commit', ''), 'not in git') AS "git commit", count(*) AS runs
    FROM known GROUP BY ALL ORDER BY runs DESC, min(run)
"""

CODES = """
    SELECT
        c.attention, r.code,
        CASE WHEN r.code = any_value(c.present_code) THEN 'present' ELSE 'another' END AS source,
        CASE WHEN r.code_differs IS NULL THEN 'not in git'
            WHEN r.code_differs THEN 'differs from the commit' ELSE 'that of the commit' END AS git,
        count(*) AS runs
    FROM runs r JOIN cells c USING (run, source)
    WHERE in_study AND r.code <> ''
    GROUP BY c.attention, r.code, r.code_differs
    ORDER BY c.attention, runs DESC, r.code, r.code_differs
"""

PLAN = "SELECT unnest(forecasts, max_depth := 2) FROM read_json('plan.json')"


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Environments of the runs, the most frequent first, and code."""
    return [
        of_query(
            db, "environments", "audit", "Environments", query=ENVIRONMENTS,
            note="Finished runs of the study by hardware and software.",
        ),
        of_query(
            db, "code", "audit", "Code of the attentions", query=CODES,
            note="Runs by the fingerprint of the source of their attention and its kernels, which "
            "is in code/ of the study. Comments do not count.",
        ),
    ]  # fmt: skip


def plan_tables(path: Path) -> list[Table]:
    """The plan as a table; no table if the study has no plan, as after copying its results."""
    if not path.is_file():
        return []
    plan = study_plan.read(path)
    head, *rows = plan.lines()
    sentences = plan.summary()
    for folder in sorted(path.parent.glob("tokens/*")):  # tokenized after the plan was made
        left_out = documents.sentences(documents.read(folder))
        sentences += [sentence for sentence in left_out if sentence not in sentences]
    return [
        Table(
            name="plan",
            section="audit",
            title="Plan",
            note=" ".join(f"{sentence}." for sentence in sentences)
            + " Memory is per device; tokens are limited by the budget or by the data; epochs are "
            "those that the budget would read; GPU-hours exclude branches.",
            query=PLAN,
            head=tuple(head),
            rows=tuple(map(tuple, rows)),
            text=frozenset({0, len(head) - 1}),
        )
    ]
