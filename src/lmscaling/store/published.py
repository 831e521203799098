"""Published numbers to compare with: the files of ``results/published/`` as rows of the store.

They come from J. Buckman and C. Gelada, *Linear Transformers Are Faster After All* (Manifest AI,
2024); its README describes each file. Their rows have ``source = 'published'`` and are never
averaged or joined into one line with ours.
"""

import shutil
from importlib.resources import files
from pathlib import Path

import duckdb

from lmscaling import registry
from lmscaling.errors import UserError
from lmscaling.files import new_folder
from lmscaling.store import PUBLISHED

FOLDER = "published"
"""Folder of ``results/`` with the published numbers."""

MEASURED = "measured"
"""Folder of ``results/`` with a folder for each device that was measured."""

CITATION = "Buckman and Gelada, Linear Transformers Are Faster After All, Manifest AI 2024"

BIBTEX = """@misc{buckman2024linear,
  author    = {Buckman, Jacob and Gelada, Carles},
  title     = {Linear Transformers Are Faster After All},
  publisher = {Manifest AI},
  year      = {2024}
}
"""

REMEDY = (
    "delete the folder and type lmscaling claims results/published"
    if registry.PROJECT.is_relative_to(registry.PACKAGE)
    else "get the file from git again"
)


ROWS = "read_csv(?, header = true, delim = ',', all_varchar = true)"
"""The rows of a file, as text."""


def is_folder(folder: Path) -> bool:
    """Whether a folder of results holds the published numbers and no study."""
    return folder.resolve().name == FOLDER


def beside(study: Path) -> Path:
    """The folder of published numbers for a study or for the measurements of a device. For one that
    was copied without it, that of the package."""
    results = study.resolve().parent
    folder = (results.parent if results.name == MEASURED else results) / FOLDER
    return folder if folder.is_dir() else registry.PROJECT / "results" / FOLDER


def lay_out(results: Path) -> None:
    """Copy the numbers that come with the package to ``results/published/``, if it is not there."""
    target, source = results / FOLDER, registry.PROJECT / "results" / FOLDER
    if target.exists() or not source.is_dir():
        return
    with new_folder(target) as folder:
        for path in [*source.glob("*.csv"), source / "README.md"]:
            shutil.copyfile(path, folder / path.name)
        folder.rename(target)


def add(db: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Insert the published numbers into the tables of a store.

    Raises:
        UserError: A file is missing or damaged.
    """
    sql = files("lmscaling.store")
    db.execute(sql.joinpath("published_files.sql").read_text())
    for stem in PUBLISHED:
        path = folder / f"{stem}.csv"
        if not path.is_file():
            raise UserError(
                f"published numbers {path} do not exist; {REMEDY}, or set published: false in the "
                "study"
            )
        if not path.read_bytes().endswith(b"\n"):
            raise UserError(f"published numbers {path}: its last line is cut; {REMEDY}")
        try:
            db.execute(f"INSERT INTO published_{stem} BY NAME FROM {ROWS}", [str(path)])
        except duckdb.ConstraintException:
            raise UserError(f"published numbers {_refused(db, stem, path)}; {REMEDY}") from None
        except duckdb.Error as error:
            problem = str(error).splitlines()[0]
            raise UserError(f"published numbers {path}: {problem}; {REMEDY}") from None
    db.execute(sql.joinpath("published.sql").read_text())
    problems = db.sql("FROM published_problems ORDER BY file DESC, problem LIMIT 1")
    for stem, text in problems.fetchall():
        raise UserError(f"published numbers {folder / stem}.csv: it {text}; {REMEDY}")


def _refused(db: duckdb.DuckDBPyConnection, stem: str, path: Path) -> str:
    """The line of a file that its table refuses, and why."""
    rows = db.execute(f"FROM {ROWS}", [str(path)]).df()
    for i in range(len(rows)):
        one = rows.iloc[[i]]  # which the statement names
        try:
            db.execute(f"INSERT INTO published_{stem} BY NAME FROM one")
        except duckdb.ConstraintException as error:
            text = ",".join(one.iloc[0].fillna(""))
            is_missing = "NOT NULL" in str(error)
            why = "no number where one is needed" if is_missing else "a number that is not positive"
            return f"{path}:{i + 2}: the row {text!r} has {why}"
    raise AssertionError(path)
