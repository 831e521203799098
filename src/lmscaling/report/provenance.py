"""What a study was expected to take, and what made it."""

import json
from collections import Counter
from pathlib import Path

import duckdb

from lmscaling.formatting import Table
from lmscaling.plan import study_plan

ENVIRONMENTS = """
    SELECT environment FROM runs
    WHERE in_study AND environment IS NOT NULL
    ORDER BY run
"""

PLAN = "SELECT unnest(forecasts, max_depth := 2) FROM read_json('plan.json')"


def tables(db: duckdb.DuckDBPyConnection) -> list[Table]:
    """Distinct environments of the runs, the most frequent first."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for (text,) in db.execute(ENVIRONMENTS).fetchall():
        made = json.loads(text)
        versions = {"python": made["python"], **made["versions"]}
        seen[
            f"{made['devices']} x {made['device']}",
            ", ".join(f"{name} {number}" for name, number in versions.items()),
            made["git_commit"] or "not in git",
        ] += 1
    return [
        Table(
            name="environments",
            section="audit",
            title="Made with",
            note="Runs of the study that are over, by what trained them.",
            query=ENVIRONMENTS,
            head=("device", "versions", "git commit", "runs"),
            rows=tuple((*made, str(n)) for made, n in seen.most_common()),
            text=frozenset({0, 1, 2}),
        )
    ]


def planned(path: Path) -> list[Table]:
    """What every cell was expected to take; a study that never ran here may have no plan."""
    if not path.is_file():
        return []
    made = study_plan.read(path)
    head, *rows = made.lines()
    return [
        Table(
            name="plan",
            section="audit",
            title="Plan",
            note=" ".join(f"{sentence}." for sentence in made.summary())
            + " Memory is that of one device; tokens end with the budget or the data; epochs are "
            "what the budget would read; GPU-hours leave out the branches.",
            query=PLAN,
            head=tuple(head),
            rows=tuple(map(tuple, rows)),
            text=frozenset({0, len(head) - 1}),
        )
    ]
