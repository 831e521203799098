"""The folder is the registry: a variant or a figure exists because its file does.

Names are read from file stems and imports from source text, so that planning a study never loads
torch or duckdb. Attention variants are also looked for in ``attention/`` of the working directory,
for an installed package is no place for files of a user.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lmscaling import source_code
from lmscaling.errors import UserError

PACKAGE = Path(__file__).parent

PROJECT = PACKAGE / "project" if (PACKAGE / "project").is_dir() else PACKAGE.parents[1]
"""Folder with ``workflow/``, ``profiles/``, ``config/`` and ``results/published/``:
a checkout, or the copy of these files in an installed package."""

COMMIT = "git_commit"
"""File in ``PROJECT`` of an installed package that names the commit of its sources."""

DRAWING = ("figures", "fits", "formatting", "store.spikes")
"""Packages and modules that decide what a figure shows, given the store."""

FORMS = "forms"
"""Stem of a file in a folder of ``kernels/`` of which each function is an implementation."""
FUNCTION = re.compile(r"^def ([a-z]\w*)", re.MULTILINE)
"""A function of a module that is not private."""

TABLE, KEY = re.compile(r"^FIGURES = \{.*?^\}", re.M | re.S), re.compile(r'^    "(\w+)":', re.M)
"""The table of a module with several figures, and a name in it."""

IMPORT = re.compile(r"^ *((?:import|from) +lmscaling\b(?:[^(\n]*\([^)]*\)|.*))$", re.MULTILINE)
"""A statement that imports from this package, at any indent."""


def sources(folder: str) -> dict[str, Path]:
    """Source files of ``lmscaling/<folder>/`` by stem, sorted, without those named ``_*``."""
    paths = sorted((PACKAGE / folder).glob("*.py"))
    return {p.stem: p for p in paths if not p.stem.startswith("_")}


def project_file(name: str) -> Path:
    """A file of the working directory, or that of ``PROJECT`` if it has none of this name."""
    path = Path(name)
    return path if path.is_file() else PROJECT / name


def own_attention() -> Path | None:
    """The folder ``attention/`` of the working directory, if it is not that of this package."""
    folder = Path("attention").absolute()
    is_other = folder.is_dir() and folder.resolve() != (PACKAGE / "attention").resolve()
    return folder if is_other else None


def own_attention_files() -> dict[str, Path]:
    """Source files of the user's ``attention/`` by stem; those named ``_*`` are no variants.

    Raises:
        UserError: One has the name of a file of this package.
    """
    folder = own_attention()
    if folder is None:
        return {}
    files = {p.stem: p for p in sorted(folder.glob("*.py")) if p.stem != "__init__"}
    if taken := [stem for stem in files if (PACKAGE / "attention" / f"{stem}.py").is_file()]:
        raise UserError(
            f"attention/{taken[0]}.py has the name of an attention of the package; give the file "
            "another name"
        )
    return files


def attention_file(stem: str) -> Path:
    """The source file of a variant, or of a module beside the variants; it may not exist."""
    return own_attention_files().get(stem, PACKAGE / "attention" / f"{stem}.py")


def name_of(path: Path) -> str:
    """The name of a source file within this package, as ``attention/mine.py``."""
    is_own = not path.is_relative_to(PACKAGE)
    return f"attention/{path.name}" if is_own else path.relative_to(PACKAGE).as_posix()


def attention_variants() -> dict[str, Path]:
    """Source files of the attention variants by name, sorted."""
    own = {k: path for k, path in own_attention_files().items() if not k.startswith("_")}
    return dict(sorted((sources("attention") | own).items()))


def attentions() -> list[str]:
    """Names of the attention variants, which are the legal values of ``axes.attention``."""
    return list(attention_variants())


def implementations(attention: str) -> list[str]:
    """Names of the implementations of an attention variant; empty if it has only its own."""
    return implementations_of(family(attention))


def implementations_of(family: str) -> list[str]:
    """Names of the implementations in a folder of ``kernels/``, sorted: the files in it, and the
    functions of its file ``forms.py``."""
    files = sources(f"kernels/{family}")
    forms = files.pop(FORMS, None)
    return sorted([*files, *(FUNCTION.findall(forms.read_text()) if forms else [])])


def family(attention: str) -> str:
    """The folder in ``kernels/`` with the implementations of a variant: the constant ``FAMILY`` of
    its class or of a class that this one extends, else its own name."""
    return _constant(attention, "FAMILY") or attention


def timed_as(attention: str) -> str:
    """The constant ``TIMED_AS`` of a variant, found likewise: how the throughput model takes it to
    be computed; empty if it has none."""
    return _constant(attention, "TIMED_AS")


def _constant(attention: str, constant: str) -> str:
    for node in _lineage(attention):
        for statement in node.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(str(value))):
                    if name == constant:
                        return value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(str(value))):
                    if name == constant:
                        return value
    return ""


def checked_by(way: str) -> str:
    """The name of the check of ``attention/implementation``, which its family has in common."""
    attention, slash, implementation = way.partition("/")
    return f"{family(attention)}/{implementation}" if slash else way


def takes_chunk(way: str) -> bool:
    """Whether the function of ``attention/implementation`` has the parameter ``chunk``."""
    attention, _, name = way.partition("/")
    folder = PACKAGE / "kernels" / family(attention)
    places = {folder / f"{name}.py": "attend", folder / f"{FORMS}.py": name}
    return any(
        isinstance(node, ast.arg) and node.arg == "chunk"
        for path, function in places.items()
        if path.is_file()
        for attend in source_code.syntax(path).body
        if isinstance(attend, ast.FunctionDef) and attend.name == function
        for node in ast.walk(attend.args)
    )


def options(attention: str) -> dict[str, Any]:
    """Options of a variant by name, with their default, or None if that is no literal.

    They are the keyword-only parameters of its class but ``context``, which the model gives.
    """
    if (given := _parameters(attention)) is None:
        return {}
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    defaults = {argument.arg: default for argument, default in pairs}
    return {name: _literal(x) for name, x in defaults.items() if name != "context"}


def takes_any_option(attention: str) -> bool:
    """Whether a variant checks its options itself, because its class has ``**options``; then it is
    many attentions, and none without options."""
    given = _parameters(attention)
    return bool(given and given.kwarg)


def _parameters(attention: str) -> ast.arguments | None:
    """Of the constructor of a variant; None if it has none of its own."""
    methods = (method for node in _lineage(attention) for method in node.body)
    of = (m for m in methods if isinstance(m, ast.FunctionDef) and m.name == "__init__")
    return next((method.args for method in of), None)


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _lineage(attention: str) -> list[ast.ClassDef]:
    """``Attention`` in a variant's file and the classes in ``attention/`` that it extends."""
    classes, name, stem = [], "Attention", attention
    while stem and (path := attention_file(stem)).is_file():
        tree = source_code.syntax(path)
        found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}.get(name)
        if found is None or len(classes) > 9:
            break
        classes.append(found)
        stem, name = _base(tree, found, stem)
    return classes


def _base(tree: ast.Module, node: ast.ClassDef, stem: str) -> tuple[str, str]:
    """File and name of the first class that a class extends; no file if it is not one of ours."""
    if not node.bases:
        return "", ""
    base, own = ast.unparse(node.bases[0]), __package__
    local = {each.name for each in tree.body if isinstance(each, ast.ClassDef)}
    if base in local:
        return stem, base
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            module = statement.module or ""
            for alias in statement.names:
                bound = alias.asname or alias.name
                if module == f"{own}.attention" and base.partition(".")[0] == bound:
                    return alias.name, base.partition(".")[2]
                if module.startswith(f"{own}.attention.") and base == bound:
                    return module.rpartition(".")[2], alias.name
    return "", ""


def kinds() -> list[str]:
    """Names of the kinds of measurements, which are the sections under ``speed:``."""
    return list(sources("bench/kinds"))


def figures() -> dict[str, Path]:
    """Figure modules by name, sorted. One with a table ``FIGURES`` has a figure for each key."""
    names = {}
    for stem, path in sources("figures").items():
        table = TABLE.search(path.read_text())
        names |= dict.fromkeys(KEY.findall(table[0]) if table else [stem], path)
    return dict(sorted(names.items()))


def figure_sources(name: str) -> list[Path]:
    """The module of a figure and the modules of ``DRAWING`` that it imports, also indirectly.

    The workflow makes them inputs of the figure, so that an edit of one draws the figure again.
    """
    reached: set[Path] = set()
    pending = {figures()[name]}
    while pending:
        path = pending.pop()
        reached.add(path)
        pending |= _imported_files(path) - reached
    return sorted(reached)


def attention_sources(names: Iterable[str]) -> list[Path]:
    """The files that compute some attention variants, sorted.

    These are the variants' own files, the variants and the kernels that they import, also
    indirectly, and the kernels that they load by name. A name that a package only passes on leads
    to the module that defines it, so that one edited kernel does not count for all variants.

    Raises:
        UserError: One of the files is not valid Python.
    """
    reached: set[Path] = set()
    variants = attention_variants()
    pending = {path for name in names if (path := variants.get(name))}
    while pending:
        path = pending.pop()
        reached.add(path)
        pending |= _computing(path) - reached
    return sorted(reached)


def store_sources() -> list[Path]:
    """The code, the queries and the columns of the store.

    The workflow makes them inputs of the store, so that one of another version is built again.
    """
    folders = (PACKAGE / "store", PACKAGE / "records")
    suffixes = {".py", ".sql", ".csv"}
    return sorted(p for folder in folders for p in folder.iterdir() if p.suffix in suffixes)


@cache
def _imported_files(path: Path) -> frozenset[Path]:
    """Files of ``DRAWING`` that run when a source file is imported."""
    files = set()
    for statement in IMPORT.findall(path.read_text()):
        # Parsing the statements alone takes a tenth of the time of parsing the file.
        for name in source_code.imported_names(ast.parse(statement.strip()).body[0]):
            if any(f"{name}.".startswith(f"lmscaling.{part}.") for part in DRAWING):
                files |= _files_of(name.split(".")[1:])
    return frozenset(files)


def _computing(path: Path) -> set[Path]:
    """Files of ``attention/`` and ``kernels/`` that a source file uses.

    Of a package it is what its modules ask for by name, not what ``__init__.py`` imports.
    """
    if path.name == "__init__.py":
        return set()
    uses = _uses(path, source_code.text_of(path))
    is_attention = name_of(path).startswith("attention/")
    folders = uses.folders | ({path.stem} if is_attention else set())
    files = {file for name in uses.names for file in _computing_files(name)}
    return files | {file for kind in folders for file in (PACKAGE / "kernels" / kind).glob("*.py")}


class _Uses(NamedTuple):
    """What the text of a source file names of this package."""

    bound: dict[str, str]
    """Names that its imports define, with the dotted name of each."""
    names: set[str]
    """Dotted names that it uses."""
    folders: set[str]
    """Folders of ``kernels/`` whose files it loads by a name that only the program knows."""


@cache
def _uses(path: Path, text: str) -> _Uses:
    nodes = list(ast.walk(source_code.parsed(path, text)))
    package = ".".join([PACKAGE.name, *Path(name_of(path)).parent.parts])
    bound = {
        k: name for node in nodes for k, name in source_code.bound_names(node, package).items()
    }
    names, folders = set(bound.values()), set()
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in bound:
                names.add(f"{bound[name]}.{attribute}")
            case ast.Call(func=called, args=[ast.Constant(value=str(kind)), *_]):
                if ast.unparse(called).endswith("load"):
                    folders.add(kind)
            case (
                ast.Assign(targets=[ast.Name(id="FAMILY")], value=ast.Constant(value=str(kind)))
                | ast.AnnAssign(target=ast.Name(id="FAMILY"), value=ast.Constant(value=str(kind)))
            ):
                folders.add(kind)
    return _Uses(bound, names, folders)


def _computing_files(name: str) -> set[Path]:
    """The file of ``attention/`` or ``kernels/`` that defines a dotted name of this package."""
    root, *parts = name.split(".")
    if root != PACKAGE.name or len(parts) < 2 or parts[0] not in ("attention", "kernels"):
        return set()
    for depth in range(len(parts), 0, -1):
        module = PACKAGE.joinpath(*parts[:depth])
        file = attention_file(parts[1]) if parts[0] == "attention" and depth == 2 else None
        if (file := file or module.with_suffix(".py")).is_file():
            return {file}
        if (init := module / "__init__.py").is_file():
            if depth == len(parts):
                return set()  # a package, of which only what is used counts
            passed_on = _uses(init, source_code.text_of(init)).bound
            if defined := passed_on.get(parts[depth]):
                return _computing_files(defined)
            return {init} if parts[0] == "kernels" else set()
    return set()


def _files_of(parts: list[str]) -> set[Path]:
    """The file of a module and the ``__init__.py`` of the packages that enclose it."""
    stems = [PACKAGE.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    paths = [path for s in stems for path in (s / "__init__.py", s.with_suffix(".py"))]
    return {path for path in paths if path.is_file()}
