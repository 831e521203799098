"""The folder is the registry: a variant, a figure or a claim exists because its file does.

Names are read from file stems and imports from source text, so that planning a study never loads
torch or duckdb.
"""

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent

DRAWING = ("figures", "fits", "formatting", "store.spikes")
"""Packages and modules that decide what a figure shows, given the store."""

IMPORT = re.compile(r"^ *((?:import|from) +lmscaling\b(?:[^(\n]*\([^)]*\)|.*))$", re.MULTILINE)
"""A statement that imports from this package, at any indent."""


def sources(folder: str) -> dict[str, Path]:
    """Source files of ``lmscaling/<folder>/`` by stem, sorted, without those named ``_*``."""
    paths = sorted((PACKAGE / folder).glob("*.py"))
    return {p.stem: p for p in paths if not p.stem.startswith("_")}


def attentions() -> list[str]:
    """Names of the attention variants, which are the legal values of ``axes.attention``."""
    return list(sources("attention"))


def implementations(attention: str) -> list[str]:
    """Names of the implementations of an attention variant; empty if it has only its own."""
    return list(sources(f"kernels/{attention}"))


def kinds() -> list[str]:
    """Names of the kinds of measurements, which are the sections under ``speed:``."""
    return list(sources("bench/kinds"))


def figures() -> dict[str, Path]:
    """Figure modules by name."""
    return sources("figures")


def figure_sources(name: str) -> list[Path]:
    """The module of a figure and the modules of ``DRAWING`` that it imports, also indirectly.

    The workflow makes them inputs of the figure, so that an edit of one draws the figure again.
    """
    reached: set[Path] = set()
    pending = {PACKAGE / "figures" / f"{name}.py"}
    while pending:
        path = pending.pop()
        reached.add(path)
        pending |= _imported_files(path) - reached
    return sorted(reached)


def store_sources() -> list[Path]:
    """The code, the queries and the columns of the store.

    The workflow makes them inputs of the store, so that one of another version is built again.
    """
    folders = (PACKAGE / "store", PACKAGE / "records")
    suffixes = {".py", ".sql", ".csv"}
    return sorted(p for folder in folders for p in folder.iterdir() if p.suffix in suffixes)


def claims() -> dict[str, Path]:
    """Modules of the claims of the literature by name."""
    return sources("claims")


@cache
def _imported_files(path: Path) -> frozenset[Path]:
    """Files of ``DRAWING`` that run when a source file is imported."""
    files = set()
    for statement in IMPORT.findall(path.read_text()):
        # Parsing the statements alone takes a tenth of the time of parsing the file.
        for name in _imported_names(ast.parse(statement.strip()).body[0]):
            if any(f"{name}.".startswith(f"lmscaling.{part}.") for part in DRAWING):
                files |= _files_of(name.split(".")[1:])
    return frozenset(files)


def _imported_names(statement: ast.stmt) -> list[str]:
    """Dotted names that an import statement mentions: of modules, or of objects in them."""
    match statement:
        case ast.Import(names=aliases):
            return [alias.name for alias in aliases]
        case ast.ImportFrom(module=module, names=aliases):
            return [f"{module}.{alias.name}" for alias in aliases]
    return []


def _files_of(parts: list[str]) -> set[Path]:
    """The file of a module and the ``__init__.py`` of the packages that enclose it."""
    stems = [PACKAGE.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    paths = [path for s in stems for path in (s / "__init__.py", s.with_suffix(".py"))]
    return {path for path in paths if path.is_file()}
