"""The plan of a study and the environments in which it was trained."""

import json
from collections import Counter
from pathlib import Path

import duckdb

from lmscaling.plan import documents, study_plan
from lmscaling.report.table import Table

ENVIRONMENTS = """
    SELECT environment FROM runs
    WHERE in_study AND environment IS NOT NULL
    ORDER BY run
"""

CODES = """
    SELECT
        c.attention, r.code, r.code_differs, r.code = any_value(c.present_code) AS is_present,
        count(*) AS runs
    FROM runs r JOIN cells c USING (run, source)
    WHERE in_study AND r.code <> ''
    GROUP BY c.attention, r.code, r.code_differs
    ORDER BY c.attention, runs DESC, r.code, r.code_differs
"""

GIT = {None: "not in git", True: "differs from the commit", False: "that of the commit"}

PLAN = "SELECT unnest(forecasts, max_depth := 2) FROM read_json('plan.json')"


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Environments of the runs, the most frequent first, and code."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for (text,) in db.execute(ENVIRONMENTS).fetchall():
        environment = json.loads(text)
        versions = {"python": environment["python"], **environment["versions"]}
        counts[
            f"{environment['devices']} x {environment['device']}",
            ", ".join(f"{name} {number}" for name, number in versions.items()),
            environment["git_commit"] or "not in git",
        ] += 1
    return [
        Table(
            name="environments",
            section="audit",
            title="Environments",
            note="Finished runs of the study by hardware and software.",
            query=ENVIRONMENTS,
            head=("device", "versions", "git commit", "runs"),
            rows=tuple((*environment, str(n)) for environment, n in counts.most_common()),
            text=frozenset({0, 1, 2}),
        ),
        Table(
            name="code",
            section="audit",
            title="Code of the attentions",
            note="Runs by the fingerprint of the source of their attention and its kernels, which "
            "is in code/ of the study. Comments do not count.",
            query=CODES,
            head=("attention", "code", "source", "git", "runs"),
            rows=tuple(
                (attention, code, "present" if is_present else "another", GIT[differs], f"{n:,}")
                for attention, code, differs, is_present, n in db.execute(CODES).fetchall()
            ),
            text=frozenset({0, 1, 2, 3}),
        ),
    ]


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
