"""Source files of this package as text and as syntax trees, for what must not run them."""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from lmscaling.errors import UserError


def text_of(path: Path) -> str:
    """The text of a source file.

    Raises:
        UserError: It is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        problem = f"{error.reason} at byte {error.start}"
        raise UserError(f"{_where(path)} has {problem}; allowed: UTF-8") from None


@lru_cache(maxsize=1)  # syntax trees of all files would take 6 MB of a dry run
def parsed(path: Path, text: str) -> ast.Module:
    """The syntax tree of the text of a source file; the path is for the error.

    Raises:
        UserError: It is not valid Python.
    """
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:  # the second is of a null byte
        line = f" line {error.lineno}:" if isinstance(error, SyntaxError) else ""
        reason = getattr(error, "msg", str(error))
        raise UserError(f"{_where(path)},{line} {reason}; allowed: valid Python") from None


def _where(path: Path) -> str:
    """Folder and name, as ``attention/mine.py``."""
    return "/".join(path.parts[-2:])


def bound_names(nodes: Iterable[ast.AST], package: str) -> dict[str, str]:
    """What the imports in a module of a package define, with the dotted name of each."""
    found = {}
    for node in nodes:
        match node:
            case ast.Import(names=aliases):
                found |= {alias.asname or alias.name: alias.name for alias in aliases}
            case ast.ImportFrom(module=module, names=aliases, level=level):
                parents = package.split(".")[: 1 - level or None] if level else []
                base = ".".join([*parents, *filter(None, [module])])
                found |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in aliases}
    return found


def texts(body: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Names to which statements assign a text, with the text."""
    for statement in body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(str(value)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(str(value)))
            ):
                yield name, value
