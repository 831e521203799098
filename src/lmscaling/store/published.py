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


def is_folder(folder: Path) -> bool:
    """Whether a folder of results holds the published numbers and no study."""
    return folder.resolve().name == FOLDER


def beside(study: Path) -> Path:
    """The folder of published numbers for a study or for the measurements of a device."""
    results = study.resolve().parent
    return (results.parent if results.name == MEASURED else results) / FOLDER


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
        rows = "read_csv(?, header = true, delim = ',', all_varchar = true)"
        try:
            db.execute(f"INSERT INTO published_{stem} BY NAME FROM {rows}", [str(path)])
        except duckdb.Error as error:
            problem = str(error).splitlines()[0]
            raise UserError(f"published numbers {path}: {problem}; {REMEDY}") from None
    db.execute(sql.joinpath("published.sql").read_text())
    problems = db.sql("FROM published_problems ORDER BY file DESC, problem LIMIT 1")
    for stem, text in problems.fetchall():
        raise UserError(f"published numbers {folder / stem}.csv: it {text}; {REMEDY}")
