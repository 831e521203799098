"""Figures: one module each, found by file name.

A module of this folder has a docstring (the caption; its first sentence is the title), a
``SECTION`` of the report (a key of ``tables.SECTIONS``), a ``QUERY`` over the views of the store
(its rows are exported beside the figure) and a function ``draw(rows, db) -> Figure``, which gets
those rows as a data frame. Figures whose ``SWITCH`` names the same group are shown one at a time,
each behind its own label. Theme, saving, caption and notes, such as that on missing
cells, happen here.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import matplotlib as mpl
import matplotlib.pyplot as plt
from pandas import DataFrame

from lmscaling import registry
from lmscaling.errors import UserError, choose
from lmscaling.figures.shared import own_context, style
from lmscaling.files import replacing, write_text
from lmscaling.store import build as store
from lmscaling.store import published

FORMATS = ("svg", "png", "csv")
"""What is written of each figure."""


@dataclass(frozen=True)
class Caption:
    """What a figure says of itself."""

    title: str
    text: str


def load(name: str) -> Any:
    """The module of a figure.

    Raises:
        UserError: There is no such file.
    """
    names = list(registry.figures())
    if name not in names:
        raise UserError(f"figure {name!r} has no file; {choose(name, names)}")
    return import_module(f"{__name__}.{name}")


def caption(name: str) -> Caption:
    """The docstring of a figure: its first sentence, and the rest on one line."""
    title, _, text = " ".join(load(name).__doc__.split()).partition(". ")
    return Caption(title.rstrip("."), text)


def says_nothing(name: str, folder: Path) -> bool:
    """Whether a figure that was saved has no row, because the study has nothing of its kind."""
    return n_rows(name, folder) == 0


def n_rows(name: str, folder: Path) -> int:
    """How many rows lie beside a figure that was saved."""
    with (folder / f"{name}.csv").open(newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def save(name: str, exports: Path, folder: Path) -> Path:
    """Draw a figure from the exports of the store into ``<folder>/<name>.{svg,png,csv}``.

    Returns:
        The path of the SVG.
    """
    module = load(name)
    mpl.use("agg")
    style.use()
    with store.connect(exports) as db:
        rows = db.sql(module.QUERY).df()
        figure = module.draw(rows, db) if len(rows) else style.nothing("Nothing to draw yet.")
        # Figures of times say themselves who measured; what is timed was not trained.
        notes = [] if "setup" in rows else [missing(db), own_context.words(db, rows), _cited(rows)]
        note = "\n".join(filter(None, notes))
    if note:
        figure.text(0.005, -0.01, note, ha="left", va="top", fontsize="small", color="0.35")
    write_text(folder / f"{name}.csv", rows.to_csv(index=False))
    for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        with replacing(folder / f"{name}.{kind}") as file:
            figure.savefig(file, format=kind, metadata=metadata, bbox_inches="tight")
    plt.close("all")
    return folder / f"{name}.svg"


def _cited(rows: DataFrame) -> str:
    """Whose numbers a figure shows beside or instead of ours; empty if it shows none."""
    is_cited = "source" in rows and rows.source.eq("published").any()
    return f"Published: {published.CITATION}." if is_cited else ""


def missing(db: duckdb.DuckDBPyConnection) -> str:
    """What the figures of a study do not show, in words; empty if they show all of it."""
    cells, branches = _undone(db, "cells", "IS NULL"), _undone(db, "branches", "IS NOT NULL")
    return f"{cells} {branches}".strip()


def _undone(db: duckdb.DuckDBPyConnection, what: str, branch: str) -> str:
    query = f"SELECT status, count(*) FROM planned WHERE branch {branch} GROUP BY status"
    counts = dict(db.sql(query).fetchall())
    planned = sum(counts.values()) - counts.get("skipped", 0)
    if counts.get("done", 0) == planned:
        return ""
    parts = [f"{counts[s]} {s.replace('_', ' ')}" for s in ORDER if counts.get(s)]
    return f"Of {planned} {what}: {', '.join(parts)}."


ORDER = (
    "done", "diverged", "oom", "out_of_tokens", "crashed", "no_trunk",
    "running", "interrupted", "pending",
)  # fmt: skip


def save_all(exports: Path, folder: Path, blank: bool) -> Iterable[Path]:
    """Draw every figure; yields the path of each that shows something when it is done.

    Args:
        blank: Whether a figure with nothing to show is written too, for rules that declare it.
    """
    for name in registry.figures():
        if blank or _shows(name, exports):
            path = save(name, exports, folder)
            if not says_nothing(name, folder):
                yield path
        else:
            for kind in FORMATS:
                (folder / f"{name}.{kind}").unlink(missing_ok=True)


def _shows(name: str, exports: Path) -> bool:
    with store.connect(exports) as db:
        return bool(db.sql(load(name).QUERY).limit(1).fetchall())
