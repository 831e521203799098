"""The attentions by task: the first table of the report of a study that has tasks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from lmscaling.fits import seeds
from lmscaling.fits.uncertainty import LEVEL
from lmscaling.report.table import Table, format_context, query_rows, with_interval

SCORES = """
    WITH scored AS (
        SELECT
            task, attention, size, NULL AS context, place, seed, measure, "group" AS of_group,
            score, learned, min(place) OVER (PARTITION BY task) AS task_place
        FROM task_scores
    ),
    grid AS (
        SELECT
            dataset AS task, attention, size, context, place, seed, 'loss' AS measure,
            NULL AS of_group, loss AS score, true AS learned, -1 AS task_place,
            count(DISTINCT attention) OVER (PARTITION BY size, context) AS attentions, largest
        FROM final JOIN (
            SELECT run, place, dataset, max(params) OVER (PARTITION BY size) AS largest FROM status
        ) USING (run)
        WHERE EXISTS (FROM tasks) AND final.status IN ('done', 'out_of_tokens')
    ),
    text AS (
        FROM grid QUALIFY rank() OVER (ORDER BY attentions DESC, largest DESC, context DESC) = 1
    )
    FROM (FROM scored UNION ALL BY NAME FROM text)
    QUALIFY min(place) OVER (PARTITION BY task, attention, seed) = place
        AND min(place) OVER (PARTITION BY task, attention)
            = min(place) OVER (PARTITION BY task, attention, size)
    ORDER BY task_place, place
"""
"""One row for each finished run that the table shows: of each task and attention the first size of
the task that it has, and of the grid the largest size and context that most attentions have."""

HIGHER = {"accuracy": True, "bits": False, "loss": False}
"""Whether more of a measure is better."""

NOTE = (
    "Means over seeds with their 95 % intervals, Student's t of these seeds; intervals of "
    "accuracies are cut at 0 and 1, near which they are not normal. ★ marks the best of a column, "
    "and ≈ those whose difference from it over the same seeds is not significant (paired t test, "
    "5 %, for each pair alone). Seeds that have not learned recall the fewest pairs no more often "
    "than by chance; they are counted and never averaged. Each task takes the first of its "
    "sizes that an attention has, at the best factor of its learning rate; losses are of the "
    "largest size and context that most attentions have."
)


@dataclass(frozen=True)
class _Column:
    """One task: scores of the seeds that have learned, by attention."""

    task: str
    place: str
    """Size and context of the grid; empty for a task."""
    measure: str
    group: str
    scores: dict[str, dict[int, float]]
    lost: dict[str, int]
    """Seeds that have not learned."""

    @property
    def head(self) -> str:
        unit = {
            "accuracy": f"accuracy at {self.group} pairs" if self.group.isdigit() else "accuracy",
            "bits": "bits per pixel",
            "loss": "nats per token",
        }[self.measure]
        return f"{self.task}{self.place}: {unit} {'↑' if HIGHER[self.measure] else '↓'}"

    def best(self) -> str:
        """The attention with the best mean; empty if no seed has learned."""
        means = {name: seeds.mean([*own.values()])[0] for name, own in self.scores.items() if own}
        sign = -1 if HIGHER[self.measure] else 1
        return min(means, key=lambda name: sign * means[name], default="")

    def ties(self, name: str) -> bool:
        """Whether an attention does not differ significantly from the best one."""
        found = seeds.differences(self.scores[name], self.scores[self.best()])
        p = seeds.p_value(found)
        return p is not None and p >= 1 - LEVEL

    def text(self, name: str) -> str:
        """The cell of an attention."""
        own, lost = self.scores.get(name, {}), self.lost.get(name, 0)
        if not own:
            return "not learned" if lost else ""
        mean, interval = seeds.mean([*own.values()])
        most = 1.0 if self.measure == "accuracy" else float("inf")
        shown = with_interval(mean, interval, lambda x: f"{min(max(x, 0.0), most):.3f}")
        sign = "≈ " if self.ties(name) else ""
        if name == self.best() and interval:
            sign = "★ "
        return sign + shown + (f", {len(own)} of {len(own) + lost} seeds learned" if lost else "")


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[_Column]:
    columns: dict[str, _Column] = {}
    for row in rows:
        place = f", {row['size']} at {format_context(row['context'])}" if row["context"] else ""
        column = columns.setdefault(
            row["task"], _Column(row["task"], place, row["measure"], row["of_group"] or "", {}, {})
        )
        own = column.scores.setdefault(row["attention"], {})
        if row["learned"]:
            own[row["seed"]] = row["score"]
        else:
            column.lost[row["attention"]] = column.lost.get(row["attention"], 0) + 1
    return list(columns.values())


def table(db: duckdb.DuckDBPyConnection) -> Table | None:
    """Attentions by task; None if no task has a finished run."""
    rows = query_rows(db, SCORES)
    if all(row["task_place"] < 0 for row in rows):
        return None
    columns = _columns(rows)
    ordered = sorted(rows, key=lambda row: (row["task_place"] < 0, row["place"]))
    names = list(dict.fromkeys(row["attention"] for row in ordered))
    return Table(
        name="tasks",
        section="tasks",
        title="Attentions by task",
        note=NOTE,
        query=SCORES,
        head=("attention", *(column.head for column in columns)),
        rows=tuple((name, *(column.text(name) for column in columns)) for name in names),
    )
