"""Answers to the questions of questions.md, by the rules given there.

    python results/measured/cpu-python/cpu_study.py               # print them
    python results/measured/cpu-python/cpu_study.py results/cpu   # of a study that still runs
    python results/measured/cpu-python/cpu_study.py --write       # into answers.md

Every number is from a query of the store. A size is left out until all of its runs have finished:
intervals over the seeds that happen to be there first would be read as results.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import cpu_answers as rules
from cpu_answers import BASELINE, CONSTANT, CONTEXT, HELD_OUT_CONTEXT, LARGE, LONG, SMALL, Row

from lmscaling import Study

FOLDER = Path(__file__).parent
ENGLISH = FOLDER.with_name("cpu-english")
PAGE = FOLDER / "answers.md"
"""What docs/cpu_study.md includes."""

FINAL = """
    SELECT attention, size, context, seed, loss FROM final
    WHERE source = 'measured' AND status = 'done' ORDER BY ALL
"""
CURVES = f"""
    SELECT attention, size, context, seed, v.update, val_loss AS loss
    FROM validation v JOIN chosen USING (run)
    WHERE v.status = 'done' AND v.update <= {CONSTANT} ORDER BY ALL
"""
PACE = """
    WITH stretches AS (
        SELECT run, (train_seconds - lag(train_seconds) OVER own) / 10 AS seconds
        FROM updates WHERE surviving AND "update" % 10 = 0
        WINDOW own AS (PARTITION BY run ORDER BY "update")
    )
    SELECT attention, size, context, quantile_cont(seconds, 0.1) AS seconds
    FROM stretches JOIN status USING (run) JOIN chosen USING (run)
    WHERE status = 'done' AND seconds IS NOT NULL
    GROUP BY ALL ORDER BY ALL
"""
"""CPU seconds of an update."""
WINDOWS = f"""
    SELECT attention, seed, eval_context AS "window", sum(loss * tokens) / sum(tokens) AS loss
    FROM by_position
    WHERE axis = 'document' AND size = '{SMALL}' AND context = {LONG} AND "start" >= 2048
    GROUP BY ALL ORDER BY ALL
"""
PROGRESS = """
    WITH planned AS (
        SELECT size AS part, status, train_seconds FROM status
        UNION ALL SELECT task, status, train_seconds FROM tasks
    )
    SELECT part, count(*) FILTER (status = 'done') AS finished, count(*) AS runs,
        sum(train_seconds) / 3600 AS hours
    FROM planned WHERE status <> 'skipped' GROUP BY part ORDER BY part
"""
FORECASTS = """
    SELECT attention, size, seed, median, sd, degrees, measured, state
    FROM forecast_scores WHERE quantity = 'loss' AND median IS NOT NULL
    ORDER BY ALL
"""
LINE = f"""
    SELECT attention, size, avg(ln(params)) AS x, avg(ln(loss)) AS y, count(*) AS seeds
    FROM final WHERE source = 'measured' AND status = 'done' AND context = {HELD_OUT_CONTEXT}
        AND attention IN ('softmax', 'linear')
    GROUP BY ALL ORDER BY attention DESC, x
"""
RECALL = """
    SELECT attention, avg(score) AS recall
    FROM task_scores WHERE task = 'recall' GROUP BY attention ORDER BY attention
"""


def query(study: Study, text: str) -> list[Row]:
    return [{str(k): v for k, v in row.items()} for row in study.query(text).to_dict("records")]


class Finished:
    """The parts of the study whose runs have all finished, and the losses of these sizes."""

    def __init__(self, study: Study) -> None:
        self.progress = query(study, PROGRESS)
        self.parts = {row["part"] for row in self.progress if row["finished"] == row["runs"]}
        final, self.curves, self.pace = (
            [row for row in query(study, text) if row["size"] in self.parts]
            for text in (FINAL, CURVES, PACE)
        )
        self.losses = rules.by_cell(final)
        self.windows = query(study, WINDOWS) if SMALL in self.parts else []
        self.forecasts = [row for row in query(study, FORECASTS) if row["size"] in self.parts]
        self.sizes = [row for row in query(study, LINE) if row["size"] in self.parts]
        self.recall = query(study, RECALL) if "recall" in self.parts else []
        self.floors = query(study, "SELECT name, loss FROM floor_counts WHERE cells > 0")
        self.attentions = list(dict.fromkeys(row["attention"] for row in final))

    def mean(self, attention: str, context: int) -> float:
        """Mean final loss of 100k, nats per byte."""
        values = self.losses[attention, SMALL, context].values()
        return sum(values) / len(values)

    def at_equal_seconds(self, *names: str) -> rules.Losses:
        """Losses at equal CPU seconds of the named attentions, or of all."""
        return rules.at_equal_seconds(self.curves, self.pace, names or self.attentions)


def answers(study: Study, english: Study) -> Iterator[tuple[str, str]]:
    """Question and answer, from what has finished."""
    found = Finished(study)
    done, losses = found.parts, found.losses
    if SMALL in done:
        yield (
            "1. The gap of linear attention over context",
            rules.growth(
                {"updates": losses, "CPU seconds": found.at_equal_seconds(BASELINE, "linear")}
            ),
        )
        yield "2. Loss by window, and the window that is used", rules.windows(found.windows)
        yield f"3. What closes the gap at context {CONTEXT:,}", rules.closing(losses)
        yield (
            "4. The lowest loss at equal CPU seconds",
            rules.winners(found.at_equal_seconds(), found.pace),
        )
        yield "5. Noise between seeds", rules.noise(losses)
    if {SMALL, "recall"} <= done:
        yield "6. Recall and the gap", rules.predicts(losses, found.recall)
    if "300k" in done:
        yield "The sealed forecast of 300k", rules.held_out(found.forecasts, found.sizes)
    if {SMALL, "300k", LARGE, "2700k"} <= done:
        yield "The line to 2700k", rules.beyond(found.sizes)
    if SMALL in (other := Finished(english)).parts:
        yield "English", rules.confirmed({"Python": losses, "English": other.losses})


def page(study: Study, english: Study) -> str:
    """What the page says: the answers, and which runs are still to be trained."""
    parts = [f"### {question}\n\n{answer}" for question, answer in answers(study, english)]
    progress = query(study, PROGRESS)
    hours = sum(row["hours"] for row in progress if row["finished"])
    runs = sum(row["finished"] for row in progress)
    parts.append(f"The {runs} runs took {hours:.1f} CPU hours of training.")
    left = [row for row in progress if row["finished"] < row["runs"]]
    if left:
        said = ", ".join(
            f"{row['finished']} of {row['runs']} runs of {row['part']}" for row in left
        )
        parts.append(
            f"The study is not complete: {said} have finished. What needs them is left out above."
        )
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}")
    args = parser.parse_args()
    study, english = (Study(folder, fresh=True) for folder in (args.folder, ENGLISH))
    if args.write:
        PAGE.write_text(page(study, english) + "\n")
    else:
        print(page(study, english))


if __name__ == "__main__":
    main()
