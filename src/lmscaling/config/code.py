"""The code of a cell's attention: its files, their fingerprint and whether a run was trained by it.

An edit of an attention, a kernel or the model changes results, not the cell, so it neither renames
a run nor trains it again. Records keep fingerprints instead, and a copy of the source.
"""

import ast
import hashlib
import io
import tokenize
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lmscaling import registry, source_code
from lmscaling.config.cell import Cell
from lmscaling.files import write_json

STALE = "trained by other code"

DIGITS = 12
"""Hexadecimal digits of a fingerprint."""


Sources = Callable[[Iterable[str]], list[Path]]


@cache
def _fingerprint(
    names: tuple[str, ...], gpus: int, sources: Sources = registry.attention_sources
) -> str:
    if set(names) - set(registry.attentions()):
        return ""
    files = sources(names)
    return fingerprint(files, packages(files, gpus))


def packages(paths: Iterable[Path], gpus: int) -> dict[str, str]:
    """Versions of the distributions that some source files name as ``PACKAGE``, if installed.

    They compute on GPUs only.
    """
    found = {}
    for path in paths if gpus else ():
        body = source_code.parsed(path, source_code.text_of(path)).body
        for name, package in source_code.texts(body):
            if name == "PACKAGE":
                with suppress(PackageNotFoundError):
                    found[package] = version(package)
    return found


def present(cell: Cell) -> str:
    """The fingerprint of the present source of a cell's attention; empty if it has no file."""
    return _fingerprint(tuple(cell.variants), cell.gpus)


def program(cell: Cell) -> str:
    """The fingerprint of the present source of the model, of the training module and of what they
    and the attention of a cell import; empty if the attention has no file."""
    return _fingerprint(tuple(cell.variants), 0, registry.program_sources)


def is_stale(cell: Cell, record: Mapping[str, Any]) -> bool:
    """Whether a run was trained by other code than the present.

    A damaged record has no fingerprint, and nothing is said of it. One of before 28 November 2026
    has that of its attention only, by which alone it is judged.
    """
    pairs = (record.get("code"), present(cell)), (record.get("program"), program(cell))
    return any(then and now and then != now for then, now in pairs)


def stale_line(study: str, n: int) -> list[str]:
    """A sentence on n stale runs of a study, if there are any."""
    if not n:
        return []
    runs = "1 run was" if n == 1 else f"{n:,} runs were"
    again = f"lmscaling reset --study {study} --stale"
    return [f"{runs} {STALE} than the present; to train again: {again}"]


def fingerprint(paths: Iterable[Path], versions: Mapping[str, str] | None = None) -> str:
    """A hash of what source files compute: of their text without comments, docstrings, blank lines,
    and of the versions of the packages that compute for them.

    Raises:
        UserError: One of them is not valid Python.
    """
    digest = hashlib.sha256()
    for path in sorted(paths):
        name = registry.name_of(path)
        text = _stripped(path, source_code.text_of(path))
        digest.update(f"{name}\n{text}\n".encode())
    for package, number in sorted((versions or {}).items()):
        digest.update(f"{package} {number}\n".encode())
    return digest.hexdigest()[:DIGITS]


@cache
def _stripped(path: Path, source: str) -> str:
    """The text of a source file without what does not run.

    It is the text that is hashed and not a syntax tree, whose form depends on Python's version.
    """
    texts = source.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            texts[row - 1] = texts[row - 1][:column]
    lines = [text.encode() for text in texts]  # a syntax tree counts bytes
    for node in ast.walk(source_code.parsed(path, source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), end_lineno=int(last)):
                first, start, end = node.lineno, node.col_offset, node.end_col_offset
                kept = lines[first - 1][:start], lines[last - 1][end:]
                lines[first - 1 : last] = [b"".join(kept), *[b""] * (last - first)]
    kept_lines = (line.rstrip() for line in lines)
    return b"\n".join(line for line in kept_lines if line).decode()


def keep(paths: Iterable[Path], folder: Path, versions: Mapping[str, str] | None = None) -> str:
    """Keep source files in ``<folder>/<fingerprint>.json``, once, and return their fingerprint."""
    paths = list(paths)
    code = fingerprint(paths, versions)
    copy = folder / f"{code}.json"
    if not copy.is_file():
        names = {registry.name_of(path): path for path in paths}
        write_json(copy, {name: source_code.text_of(path) for name, path in names.items()})
    return code
