"""Figures: one module each; the file name is the name of the figure.

A module in this folder has a docstring (the caption; its first sentence is the title), a
``SECTION`` of the report (a key of ``report.table.SECTIONS``), a ``QUERY`` over the views of the
store, whose rows are exported as CSV, and a function ``draw(rows, db) -> Figure``, which receives
these rows as a data frame. ``SWITCH = (group, label)`` is optional: the report shows one figure of
a group at a time. This module applies the style, saves the files and adds the notes on unfinished
runs, text and sources.
"""

import csv
import hashlib
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from pandas import DataFrame

from lmscaling import registry
from lmscaling.errors import UserError, choose
from lmscaling.figures.shared import own_context, style
from lmscaling.files import read_json, replacing, sha256_of, write_json, write_text
from lmscaling.store import published
from lmscaling.store.build import connect

FORMATS = ("svg", "png", "csv")
"""Files of each figure."""

DRAWN = "drawn.json"


@dataclass(frozen=True)
class Caption:
    """Title and text from the docstring of a figure."""

    title: str
    text: str


def load(name: str) -> Any:
    """The module of a figure.

    Raises:
        UserError: No figure has this name.
    """
    names = list(registry.figures())
    if name not in names:
        raise UserError(f"figure {name!r} has no file; {choose(name, names)}")
    return import_module(f"{__name__}.{name}")


def caption(name: str) -> Caption:
    """The first sentence of a figure's docstring as title, the others as text on one line."""
    title, _, text = " ".join(load(name).__doc__.split()).partition(". ")
    return Caption(title.rstrip("."), text)


def is_empty(name: str, folder: Path) -> bool:
    """Whether a saved figure has no data, because the study has no rows for its query."""
    return n_rows(name, folder) == 0


def n_rows(name: str, folder: Path) -> int:
    """Number of rows in the CSV of a saved figure."""
    with (folder / f"{name}.csv").open(newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def draw(name: str, db: duckdb.DuckDBPyConnection) -> tuple[Figure, DataFrame]:
    """A figure with the notes below it, and the rows of its query, which it shows."""
    module = load(name)
    rows = db.sql(module.QUERY).df()
    figure = module.draw(rows, db) if len(rows) else style.nothing("No data yet.")
    note = "" if "setup" in rows else _note(db, rows)  # figures of times have their own note
    if note:
        figure.text(0.005, -0.01, note, ha="left", va="top", fontsize="small", color="0.35")
    return figure, rows


def save(name: str, exports: Path, folder: Path) -> Path:
    """Draw a figure from the exports of the store into ``<folder>/<name>.{svg,png,csv}``.

    Returns:
        The path of the SVG.
    """
    mpl.use("agg")
    style.use()
    with connect(exports) as db:
        figure, rows = draw(name, db)
    write_text(folder / f"{name}.csv", rows.to_csv(index=False))
    for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        if kind == "png":
            _write_title(figure, f"{caption(name).title}.")
        with replacing(folder / f"{name}.{kind}") as file:
            figure.savefig(file, format=kind, metadata=metadata, bbox_inches="tight")
    plt.close("all")
    return folder / f"{name}.svg"


def _write_title(figure: Figure, title: str) -> None:
    """Write a title above a figure that is shown alone; the report has it above the figure."""
    figure.text(0.005, 1.01, title, ha="left", va="bottom", fontweight="bold")
    figure.set_layout_engine("none")  # has reserved the place of the legends
    for legend in figure.legends:  # otherwise at the edge of the saved page, on the title
        legend.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)


def _note(db: duckdb.DuckDBPyConnection, rows: DataFrame) -> str:
    """Unfinished runs, the text that losses were measured on, whether attention crosses its
    documents, and the source of published rows."""
    ((masked,),) = db.sql("SELECT bool_or(masked) FROM planned").fetchall()
    is_cited = "source" in rows and rows.source.eq("published").any()
    citation = f"Published: {published.CITATION}." if is_cited else ""
    notes = unfinished_note(db), own_context.note(db, rows), MASKED if masked else "", citation
    return "\n".join(filter(None, notes))


MASKED = "In the runs of this study, attention does not cross documents."


def unfinished_note(db: duckdb.DuckDBPyConnection) -> str:
    """Cells and branches of the study by status; empty if all are done."""
    cells = _count_statuses(db, "cells", "branch IS NULL")
    branches = _count_statuses(db, "branches", "branch IS NOT NULL")
    return f"{cells} {branches}".strip()


def _count_statuses(db: duckdb.DuckDBPyConnection, what: str, condition: str) -> str:
    query = f"SELECT status, count(*) FROM planned WHERE {condition} GROUP BY status"
    counts = dict(db.sql(query).fetchall())
    planned = sum(counts.values()) - counts.get("skipped", 0)
    if counts.get("done", 0) == planned:
        return ""
    parts = [f"{counts[s]} {s.replace('_', ' ')}" for s in ORDER if counts.get(s)]
    return f"Of {planned} {what}: {', '.join(parts)}."


ORDER = (
    "done", "diverged", "exploded", "oom", "out_of_tokens", "crashed", "no_trunk", "damaged",
    "held", "running", "interrupted", "pending",
)  # fmt: skip


def save_all(exports: Path, folder: Path, blank: bool) -> Iterable[Path]:
    """Draw every figure and yield the path of each that has data.

    Args:
        exports: Folder of the store.
        folder: Where figures are written.
        blank: Whether figures without data are written too, for rules that declare them as
            outputs; otherwise the files of such a figure are removed.
    """
    for name in registry.figures():
        if blank or _has_rows(name, exports):
            path = save(name, exports, folder)
            if not is_empty(name, folder):
                yield path
        else:
            for kind in FORMATS:
                (folder / f"{name}.{kind}").unlink(missing_ok=True)


def save_changed(exports: Path, folder: Path) -> Iterator[Path]:
    """Draw each figure whose code, data or files have changed, and yield its path.

    ``drawn.json`` in the folder has the digests of when each was last drawn. The times of the other
    files become those of now, for a workflow that compares times.

    Raises:
        UserError: Figures cannot be drawn; it names them. The others are drawn all the same.
    """
    record, faults = folder / DRAWN, []
    known = read_json(record, "record of figures") if record.is_file() else {}
    tables = [sha256_of(path) for path in sorted(exports.glob("*.parquet"))]
    for name in registry.figures():
        files = [folder / f"{name}.{kind}" for kind in FORMATS]
        sources = [*map(sha256_of, registry.figure_sources(name)), *tables]
        if all(file.is_file() for file in files) and known.get(name) == _state(sources, files):
            for file in files:
                file.touch()
            continue
        try:
            path = save(name, exports, folder)
        except Exception as error:
            traceback.print_exc()
            faults.append(f"{name} ({type(error).__name__}: {error})")
            continue
        known[name] = _state(sources, files)
        write_json(record, known)
        yield path
    if faults:
        told = f"{len(faults)} of the figures cannot be drawn: {'; '.join(faults)}"
        raise UserError(f"{told}; mend their files in figures/, then run snakemake figures")


def _state(sources: list[str], files: list[Path]) -> list[str]:
    """Digests of what a figure is drawn from, and of the figure."""
    return [hashlib.sha256("".join(sources).encode()).hexdigest(), *map(sha256_of, files)]


def _has_rows(name: str, exports: Path) -> bool:
    with connect(exports) as db:
        return bool(db.sql(load(name).QUERY).limit(1).fetchall())
