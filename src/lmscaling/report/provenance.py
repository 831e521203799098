"""The plan of a study as a table."""

from pathlib import Path

from lmscaling.plan import documents, study_plan
from lmscaling.report.table import Table

PLAN = "SELECT unnest(forecasts, max_depth := 2) FROM read_json('plan.json')"


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
