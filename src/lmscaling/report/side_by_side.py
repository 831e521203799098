"""Two folders of results on one page: the same cells, trained twice.

A cell is the same if attention, size, context and learning-rate factor are, and the models have the
same shape. The runs of the second folder play the candidate, those of the first the baseline, and
runs of the same seed are paired.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from duckdb import DuckDBPyConnection

from lmscaling import report
from lmscaling.config import study_file
from lmscaling.config.study import Study
from lmscaling.errors import UserError
from lmscaling.files import read_json, write_text
from lmscaling.report import answer, contest
from lmscaling.report.contest import Evidence, Row
from lmscaling.report.question import join_names
from lmscaling.report.table import query_rows
from lmscaling.store import published
from lmscaling.store.build import connect

LOSSES = """
    SELECT f.size, f.params, f.context, f.attention, f.seed, f.loss,
        f.hours / k.budget_hours AS share
    FROM final f JOIN known k USING (source, run)
    WHERE source = $source AND f.status = 'done' AND isfinite(f.loss)
"""

PATHS = """
    SELECT size, params, context, attention, seed, updates, hours, flops, loss
    FROM law_curves
    WHERE source = $source AND schedule IN ('constant', 'unknown')
    ORDER BY attention, size, context, seed, updates
"""

CODES = """
    SELECT DISTINCT c.attention, r.code FROM runs r JOIN cells c USING (run, source)
    WHERE r.code <> '' ORDER BY ALL
"""

ENVIRONMENTS = "SELECT DISTINCT environment FROM runs WHERE environment IS NOT NULL ORDER BY ALL"

UNSAID = {"study", "published", "speed", "evaluate", "datasets", "tokenizers", "sizes", "axes"}
"""Keys of a study file that do not say how a cell is trained, or that are compared elsewhere."""

LABEL = re.compile(r"[\w.-]{1,24}", re.ASCII)


class Side(NamedTuple):
    """What a folder holds."""

    folder: Path
    label: str
    study: Study | None
    """None of published numbers."""
    values: dict[str, Any]
    evidence: Evidence
    losses: list[Row]
    paths: list[Row]
    facts: dict[str, str]
    """Code, hardware and versions of its runs."""


def write(one: Path, two: Path, output: Path | None = None) -> tuple[Path, str]:
    """Compare two folders of results.

    Args:
        one: Its runs are the baseline.
        two: Its runs are the candidate.
        output: The page; ``<one>-against-<two>.html`` in the working directory by default.

    Returns:
        The path of the page, and the answer in one sentence.

    Raises:
        UserError: The folders cannot be compared; the message says why.
    """
    if one.resolve() == two.resolve():
        raise UserError(f"{one} and {two} are the same folder; name two folders")
    studies = [_study(folder) for folder in (one, two)]
    _check(one, two, *studies)
    labels = [folder.resolve().name for folder in (one, two)]
    if labels[0] == labels[1] or not all(map(LABEL.fullmatch, labels)):
        labels = ["A", "B"]
    sides = [_read(*side) for side in zip((one, two), labels, studies, strict=True)]
    evidence = _paired(*sides)
    judged = contest.judge(evidence)
    where = f"{labels[0]} is {one}, {labels[1]} is {two}."
    said = answer.write(
        judged, evidence, _budget(sides), "", [("What A and B stand for", where)] * ("A" in labels)
    )
    asked = f"Which reaches the lower loss in the same cells, {labels[0]} or {labels[1]}?"
    text = report.page(
        judged,
        evidence,
        replace(said, question=asked),
        title=f"{labels[1]} against {labels[0]}",
        commands=f"lmscaling compare {one} {two}",
        differences=list(_differences(*sides)),
        cites=evidence.source == "published",
    )
    path = output or Path(f"{labels[0]}-against-{labels[1]}.html")
    write_text(path, text)
    return path, said.heading


def _study(folder: Path) -> Study | None:
    if published.is_folder(folder):
        return None
    return study_file.read_record(folder / "study.json").grid.study


def _read(folder: Path, label: str, study: Study | None) -> Side:
    values = {} if study is None else read_json(folder / "study.json", "study record")["study"]
    source = "published" if study is None else "measured"
    of_source = {"source": source}
    with connect(folder / "store") as db:
        return Side(
            folder, label, study, values, contest.read(db, source),
            query_rows(db, LOSSES, of_source), query_rows(db, PATHS, of_source), _facts(db),
        )  # fmt: skip


def _facts(db: DuckDBPyConnection) -> dict[str, str]:
    facts: dict[str, set[str]] = {}
    for row in query_rows(db, CODES):
        facts.setdefault(f"code of {row['attention']}", set()).add(row["code"])
    for (text,) in db.sql(ENVIRONMENTS).fetchall():
        known = json.loads(text)
        facts.setdefault("hardware", set()).add(f"{known['devices']} x {known['device']}")
        facts.setdefault("git commit", set()).add(known["git_commit"] or "not in git")
        versions = {"python": known["python"], **known["versions"]}
        for name, number in versions.items():
            facts.setdefault(f"version of {name}", set()).add(number)
    return {name: ", ".join(sorted(values)) for name, values in facts.items()}


def _paired(one: Side, two: Side) -> Evidence:
    """The evidence of both as that of one contest.

    Raises:
        UserError: They share no cell.
    """
    cells = [_cells(side.evidence.cells) for side in (one, two)]
    common = {key for key, shape in cells[0].items() if cells[1].get(key) == shape}
    if not common:
        held = (f"{side.folder} has {_held(side.evidence.cells)}" for side in (one, two))
        raise UserError(f"{' and '.join(held)}: no common cell; name studies that share all three")
    several = len({attention for attention, *_ in common}) > 1

    def cast(side: Side, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if (row["attention"], row["size"], row["context"]) in common:
                size = f"{row['attention']} {row['size']}" if several else row["size"]
                own = {"attention": side.label, "method": side.label, "baseline": one.label}
                yield row | own | {"size": size}

    sides, source = (one, two), one.evidence.source
    ends = [row for side in sides for row in cast(side, side.losses)]
    paths = [row for side in sides for row in cast(side, side.paths)]
    # Both must have started with a budget of the same length for their ends to be equal.
    same = one.study is None or two.study is None or one.study.budget == two.study.budget
    return Evidence(
        source=source,
        cells=[row for side in sides for row in cast(side, side.evidence.cells)],
        curves=[
            row | {"run": f"{side.label}/{row['run']}"}
            for side in sides
            for row in cast(side, side.evidence.curves)
        ],
        losses=[
            (source, r["size"], r["params"], r["context"], r["attention"] == one.label,
             r["attention"], r["seed"], r["loss"], r["share"])
            for r in ends
        ] if same else [],
        paths=[
            (source, r["size"], r["params"], r["context"], r["attention"] == one.label,
             r["attention"], r["seed"], r["updates"], r["hours"], r["flops"], r["loss"])
            for r in paths
        ],
        speeds=[row for side in sides for row in cast(side, _fastest(side.evidence.speeds))],
    )  # fmt: skip


def _fastest(rows: Iterable[Row]) -> list[Row]:
    """The fastest implementation of each attention at each point."""
    best: dict[tuple, Row] = {}
    keys = ("source", "setup", "kind", "attention", "size", "batch", "context")
    for row in rows:
        key = tuple(row[name] for name in keys)
        if key not in best or row["seconds"] < best[key]["seconds"]:
            best[key] = row
    return list(best.values())


def _check(one: Path, two: Path, first: Study | None, second: Study | None) -> None:
    """Whether the losses of two folders are of the same kind and text.

    Raises:
        UserError: They are not.
    """
    if first is None and second is None:
        return
    if first is None or second is None:
        cited, own = (one, two) if first is None else (two, one)
        raise UserError(
            f"{cited} holds published training losses, {own} validation losses; "
            "name two studies; published: true in a study shows these numbers beside its own"
        )
    texts = [
        {"tokenizer": s.tokenizer, "dataset": s.dataset, "documents": s.documents,
         "validation.tokens": s.validation.tokens}
        for s in (first, second)
    ]  # fmt: skip
    for name, value in texts[0].items():
        if texts[1][name] != value:
            raise UserError(
                f"{name} is {value} in {one} and {texts[1][name]} in {two}; "
                "losses compare on the same text only, so train both on it"
            )


def _cells(rows: Iterable[Row]) -> dict[tuple, tuple]:
    return {
        (r["attention"], r["size"], r["context"]): (r["n_layer"], r["d_model"])
        for r in rows
        if not r["skipped"]
    }


def _held(rows: Iterable[Row]) -> str:
    rows = list(rows)
    parts = []
    for axis in ("attention", "size", "context"):
        values = sorted({str(row[axis]) for row in rows})
        parts.append(f"{axis} {join_names(values)}" if values else f"no {axis}")
    return ", ".join(parts)


def _budget(sides: Iterable[Side]) -> str:
    budgets = dict.fromkeys(s.study.budget if s.study else "24 hours" for s in sides)
    return join_names(list(budgets), "or")


def _differences(one: Side, two: Side) -> Iterator[tuple[str, str, str]]:
    """What differs in settings, code and environments; settings first."""
    first, second = ({k: v for k, v in s.values.items() if k not in UNSAID} for s in (one, two))
    yield from _settings("", first, second)
    sizes = [side.values.get("sizes", {}) for side in (one, two)]
    for name in sizes[0].keys() & sizes[1].keys():
        yield from _settings(f"sizes.{name}", sizes[0][name], sizes[1][name])
    axes = [side.values.get("axes", {}) for side in (one, two)]
    yield from _settings("axes", *axes)
    for name in one.facts | two.facts:
        if one.facts.get(name) != two.facts.get(name):
            yield name, one.facts.get(name, "unknown"), two.facts.get(name, "unknown")


def _settings(key: str, one: Any, two: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(one, dict) and isinstance(two, dict):
        for part in one | two:
            inner = f"{key}.{part}".lstrip(".")
            yield from _settings(inner, one.get(part), two.get(part))
    elif one != two:
        yield key, _value(one), _value(two)


def _value(value: Any) -> str:
    return "not given" if value is None else json.dumps(value).strip('"')
