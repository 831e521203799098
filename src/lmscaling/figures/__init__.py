"""Figures: usually one module each; the file name is the name of the figure.

A module in this folder has a docstring (the caption; its first sentence is the title), a
``SECTION`` of the report (a key of ``report.table.SECTIONS``), a ``QUERY`` over the views of the
store, whose rows are exported as CSV, and a function ``draw(rows, db) -> Figure``, which receives
these rows as a data frame. ``SWITCH = (group, label)`` is optional: the report shows one figure of
a group at a time. A module with a table ``FIGURES`` of ``shared.entry.Entry`` has a figure for each
key. This module applies the style, saves the files and adds the notes on unfinished
runs, text and sources.
"""

import csv
import hashlib
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from pandas import DataFrame

from lmscaling import registry
from lmscaling.errors import UserError, choose
from lmscaling.figures.shared import floors, own_context, style
from lmscaling.figures.shared.entry import Entry
from lmscaling.files import read_json, replacing, sha256_of, write_json, write_text
from lmscaling.store import published
from lmscaling.store.build import connect

FORMATS = ("svg", "png", "csv")
"""Files of each figure."""

MARGIN = 0.06
"""White around a figure, inches."""

DRAWN = "drawn.json"

MASKED = "In the runs of this study, attention does not cross documents."

COUNTS = """
    SELECT what, map_from_entries(list((status, n)))
    FROM (
        SELECT if(branch IS NULL, 'cells', 'branches') AS what, status, count(*) AS n
        FROM planned GROUP BY ALL
    )
    GROUP BY what ORDER BY what DESC
"""

ORDER = (
    "done", "diverged", "exploded", "oom", "out_of_tokens", "no_trunk", "damaged",
    "held", "running", "interrupted", "pending",
)  # fmt: skip


@dataclass(frozen=True)
class Caption:
    """Title and text from the docstring of a figure."""

    title: str
    text: str


def load(name: str) -> Any:
    """The module of a figure, or its entry in that of several.

    Raises:
        UserError: No figure has this name.
    """
    modules = registry.figures()
    if name not in modules:
        raise UserError(f"figure {name!r} has no file; {choose(name, list(modules))}")
    module = import_module(f"{__name__}.{modules[name].stem}")
    return module.FIGURES[name] if hasattr(module, "FIGURES") else module


def caption(name: str) -> Caption:
    """The first sentence of a figure's caption as title, the others as text on one line."""
    found = load(name)
    words = (found.caption if isinstance(found, Entry) else found.__doc__).split()
    title, _, text = " ".join(words).partition(". ")
    return Caption(title.rstrip("."), text)


def n_rows(name: str, folder: Path) -> int:
    """Number of rows in the CSV of a saved figure."""
    with (folder / f"{name}.csv").open(newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def draw(
    name: str, db: duckdb.DuckDBPyConnection, rows: DataFrame | None = None
) -> tuple[Figure, DataFrame]:
    """A figure with the notes below it, and the rows of its query, which it shows."""
    rows = _rows(name, db) if rows is None else rows
    style.choose(name for (name,) in db.sql("SELECT attention FROM known GROUP BY ALL").fetchall())
    figure = load(name).draw(rows, db) if len(rows) else style.nothing("No data yet.")
    for text in figure.findobj(Text) if reads_bytes(db) else ():
        text.set_text(in_bytes(text.get_text()))
    # Figures of times have their own note, those of the first screen none.
    notes = [] if "setup" in rows else [*_notes(db, rows), floors.note(figure)]
    note = "\n".join(filter(None, notes if load(name).SECTION != "answer" else ()))
    if note:
        figure.text(0.005, -0.01, note, ha="left", va="top", fontsize="small", color="0.35")
    return figure, rows


def reads_bytes(db: duckdb.DuckDBPyConnection) -> bool:
    """Whether the tokens of all runs are bytes."""
    ((found,),) = db.sql("SELECT bool_and(encoding = 'bytes') FROM known").fetchall()
    return bool(found)


def in_bytes(text: str) -> str:
    """A text with the units of runs whose tokens are bytes."""
    return re.sub(r"(?<=per )token\b|(?<=\()token(?=s\))", "byte", text)


def save(name: str, exports: Path, folder: Path) -> Path:
    """Draw a figure from the exports of the store into ``<folder>/<name>.{svg,png,csv}``.

    Returns:
        The path of the SVG.
    """
    load(name)  # a wrong name is said before a missing store is
    with connect(exports) as db:
        return _save(name, db, folder, _rows(name, db))


def _save(name: str, db: duckdb.DuckDBPyConnection, folder: Path, rows: DataFrame) -> Path:
    mpl.use("agg")
    style.use()
    figure, _ = draw(name, db, rows)
    write_text(folder / f"{name}.csv", rows.to_csv(index=False))
    _lay_out(figure)
    _write(figure, folder / f"{name}.svg", {"Date": None, "Creator": None})
    title = f"{caption(name).title}."  # of a figure that is shown alone; the report has its own
    figure.text(0.005, 1.01, title, ha="left", va="bottom", fontweight="bold")
    _write(figure, folder / f"{name}.png", {"Software": None})
    plt.close("all")
    return folder / f"{name}.svg"


def _lay_out(figure: Figure) -> None:
    """Place the panels of a figure. ``savefig`` would do so again for each file, with two further
    drawings of which nothing is kept."""
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    figure.set_layout_engine(None)  # has reserved the place of the legends
    for legend in figure.legends:  # otherwise at the edge of the saved page, on a note or the title
        legend.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)


def _write(figure: Figure, path: Path, metadata: dict[str, None]) -> None:
    """Write a figure whose panels are placed, with the texts around it."""
    inches = figure.dpi_scale_trans.inverted()
    around = [*figure.texts, *figure.legends]
    boxes = [artist.get_window_extent().transformed(inches) for artist in around]
    page = Bbox.union([Bbox.from_bounds(0, 0, *figure.get_size_inches()), *boxes]).padded(MARGIN)
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:], metadata=metadata, bbox_inches=page)


def _notes(db: duckdb.DuckDBPyConnection, rows: DataFrame) -> list[str]:
    """Unfinished runs, the text that losses were measured on, whether attention crosses its
    documents, and the source of published rows."""
    ((masked,),) = db.sql("SELECT bool_or(masked) FROM planned").fetchall()
    is_cited = "source" in rows and rows.source.eq("published").any()
    citation = f"Published: {published.CITATION}." if is_cited else ""
    return [unfinished_note(db), own_context.note(db, rows), MASKED if masked else "", citation]


def unfinished_note(db: duckdb.DuckDBPyConnection) -> str:
    """Cells and branches of the study by status; empty if all are done."""
    sentences = []
    for what, counts in db.sql(COUNTS).fetchall():
        planned = sum(counts.values()) - counts.get("skipped", 0)
        parts = [f"{counts[s]} {s.replace('_', ' ')}" for s in ORDER if s in counts]
        if counts.get("done", 0) < planned:
            sentences.append(f"Of {planned} {what}: {', '.join(parts)}.")
    return " ".join(sentences)


def save_all(exports: Path, folder: Path, blank: bool = True) -> Iterator[Path]:
    """Draw each figure whose code, data or files have changed, and yield its path if it has data.

    ``drawn.json`` in the folder has the digests of when each was last drawn. The times of the other
    files become those of now, for a workflow that compares times.

    Args:
        exports: Folder of the store.
        folder: Where figures are written.
        blank: Whether figures without data are written too, for rules that declare them as
            outputs; otherwise the files of such a figure are removed.

    Raises:
        UserError: Figures cannot be drawn; it names them. The others are drawn all the same.
    """
    record, faults = folder / DRAWN, []
    known = read_json(record, "record of figures") if record.is_file() else {}
    tables = [sha256_of(path) for path in sorted(exports.glob("*.parquet"))]
    with connect(exports) as db:
        for name in registry.figures():
            files = [folder / f"{name}.{kind}" for kind in FORMATS]
            sources = [*map(sha256_of, registry.figure_sources(name)), *tables]
            if all(file.is_file() for file in files) and known.get(name) == _state(sources, files):
                for file in files:
                    file.touch()
                continue
            try:
                rows = _rows(name, db)
                if not (blank or len(rows)):
                    for file in files:
                        file.unlink(missing_ok=True)
                    continue
                path = _save(name, db, folder, rows)
            except Exception as error:
                traceback.print_exc()
                faults.append(f"{name} ({type(error).__name__}: {error})")
                continue
            known[name] = _state(sources, files)
            write_json(record, known)
            if len(rows):
                yield path
    if faults:
        told = f"{len(faults)} of the figures cannot be drawn: {'; '.join(faults)}"
        raise UserError(f"{told}; correct their files in figures/, then run snakemake figures")


def _state(sources: list[str], files: list[Path]) -> list[str]:
    """Digests of what a figure is drawn from, and of the figure."""
    return [hashlib.sha256("".join(sources).encode()).hexdigest(), *map(sha256_of, files)]


def _rows(name: str, db: duckdb.DuckDBPyConnection) -> DataFrame:
    return db.sql(load(name).QUERY).df()
