"""The folder is the registry: a variant or a figure exists because its file does.

Names are read from file stems and facts from source text, so that planning a study never loads
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

OF_MODEL = ("context", "n_kv_head", "qk_norm")
"""Keyword-only parameters of variants that the model gives, and not an option of a row."""

FORMS = "forms"
"""Stem of a file in a folder of ``kernels/`` of which each function is an implementation."""
FUNCTION = re.compile(r"^def ([a-z]\w*)", re.MULTILINE)
"""A function of a module that is not private."""

ROOTS = ("model/gpt.py", "train/module.py", "config/schedule.py")
"""Beside the attention, what decides what an update computes."""

PLAIN = ("bench", "config", "data", "errors", "files", "formatting", "plan", "records", "registry",
         "runtime", "source_code", "train.settings", "types")  # fmt: skip
"""Parts of the package that compute nothing of a model."""

TABLE, KEY = re.compile(r"^FIGURES = \{.*?^\}", re.M | re.S), re.compile(r'^    "(\w+)":', re.M)
"""The table of a module with several figures, and a name in it."""


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


def name_of(path: Path) -> str:
    """The name of a source file within this package, as ``attention/mine.py``."""
    is_own = not path.is_relative_to(PACKAGE)
    return f"attention/{path.name}" if is_own else path.relative_to(PACKAGE).as_posix()


def attentions() -> list[str]:
    """Names of the attention variants, which are the legal values of ``axes.attention``."""
    own = (stem for stem in own_attention_files() if not stem.startswith("_"))
    return sorted({*sources("attention"), *own})


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


def _constant(attention: str, name: str) -> str:
    return next((c.constants[name] for c in _lineage(attention) if name in c.constants), "")


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
        re.search(rf"^def {function}\([^)]*\bchunk\b", path.read_text(), re.M)
        for path, function in places.items()
        if path.is_file()
    )


def options(attention: str) -> dict[str, Any]:
    """Options of a variant by name, with their default, or None if that is no literal.

    They are the keyword-only parameters of its class but ``OF_MODEL``.
    """
    return {key: v for key, v in _parameters(attention).items() if key not in OF_MODEL}


def takes(attention: str, parameter: str) -> bool:
    """Whether the class of a variant has a parameter of ``OF_MODEL``."""
    return parameter in _parameters(attention)


def _parameters(attention: str) -> dict[str, Any]:
    return next((c.options for c in _lineage(attention) if c.options is not None), {})


def takes_any_option(attention: str) -> bool:
    """Whether a variant checks its options itself, because its class has ``**options``; then it is
    many attentions, and none without options."""
    own = (c.takes_any for c in _lineage(attention) if c.options is not None)
    return next(own, False)


class _Class(NamedTuple):
    """What the source of a class says."""

    constants: dict[str, str]
    options: dict[str, Any] | None
    """All keyword-only parameters with their defaults; None without a constructor of its own."""
    takes_any: bool
    base: str
    """Name of the first class that it extends, with its module."""


def _lineage(attention: str) -> list[_Class]:
    """``Attention`` in a variant's file and the classes in ``attention/`` that it extends."""
    found: list[_Class] = []
    stem, name = attention, "Attention"
    while (path := _attention_file(stem)) and len(found) < 10:
        classes = _classes(path, source_code.text_of(path))
        if name not in classes:
            break
        found.append(classes[name])
        module, _, name = classes[name].base.rpartition(".")
        stem = module.removeprefix(f"{PACKAGE.name}.attention.") or stem
    return found


@cache
def _classes(path: Path, text: str) -> dict[str, _Class]:
    body = source_code.parsed(path, text).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    bound = source_code.bound_names(body, f"{PACKAGE.name}.attention")
    found = {}
    for name, node in classes.items():
        base = ast.unparse(node.bases[0]) if node.bases else ""
        if base not in classes:
            first, dot, rest = base.partition(".")
            base = f"{bound.get(first, '')}{dot}{rest}"
        given = [
            m.args for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"
        ]
        options = None
        for arguments in given[:1]:
            pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            options = {key.arg: _literal(value) for key, value in pairs}
        takes_any = bool(given and given[0].kwarg)
        found[name] = _Class(dict(source_code.texts(node.body)), options, takes_any, base)
    return found


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def figures() -> dict[str, Path]:
    """Figure modules by name, sorted. One with a table ``FIGURES`` has a figure for each key."""
    names = {}
    for stem, path in sources("figures").items():
        table = TABLE.search(path.read_text())
        names |= dict.fromkeys(KEY.findall(table[0]) if table else [stem], path)
    return dict(sorted(names.items()))


def figure_sources(name: str) -> list[Path]:
    """The module of a figure, and all that figures share: an edit of one draws the figure again."""
    shared = {PACKAGE / "formatting.py", PACKAGE / "store" / "spikes.py"}
    for folder in ("figures", "fits"):
        shared |= set((PACKAGE / folder).rglob("*.py"))
    own = figures()
    return sorted((shared - set(own.values())) | {own[name]})


def store_sources() -> list[Path]:
    """The code, the queries, the columns and the fits of the store.

    The workflow makes them inputs of the store, so that one of another version is built again.
    """
    folders = (PACKAGE / "store", PACKAGE / "records", PACKAGE / "fits")
    suffixes = {".py", ".sql", ".csv"}
    return sorted(p for folder in folders for p in folder.iterdir() if p.suffix in suffixes)


def attention_sources(names: Iterable[str]) -> list[Path]:
    """The files that compute some attention variants, sorted.

    These are the variants' own files, the variants and the kernels that they import, also
    indirectly, and the kernels that they load by name.

    Raises:
        UserError: One of the files is not valid Python.
    """
    reached: set[Path] = set()
    pending = {path for name in names if (path := _attention_file(name))}
    while pending:
        path = pending.pop()
        reached.add(path)
        if path.name == "__init__.py":  # of which only what is asked for by name counts
            continue
        names, folders = _uses(path, source_code.text_of(path))
        if name_of(path).startswith("attention/"):
            folders = folders | {path.stem}
        used = {file for name in names if (file := _file_of(name))}
        used |= {f for folder in folders for f in (PACKAGE / "kernels" / folder).glob("*.py")}
        pending |= used - reached
    return sorted(reached)


def program_sources(names: Iterable[str]) -> list[Path]:
    """The files that, beside ``attention_sources``, decide what a run of some variants computes,
    sorted: those of ``ROOTS``, and what they and the variants import of this package.

    Raises:
        UserError: One of the files is not valid Python.
    """
    own = attention_sources(names)
    reached: set[Path] = set()
    pending = {PACKAGE / root for root in ROOTS} | {*own}
    while pending:
        path = pending.pop()
        reached.add(path)
        used, _ = _uses(path, source_code.text_of(path))
        pending |= {file for name in used if (file := _module(name))} - reached
    return sorted(reached - {*own})


def _module(name: str) -> Path | None:
    """The file of this package that defines a dotted name, unless it is one of ``PLAIN``."""
    package, *parts = name.split(".")
    if package != PACKAGE.name or any(f"{'.'.join(parts)}.".startswith(f"{p}.") for p in PLAIN):
        return None
    modules = [PACKAGE.joinpath(*parts[:n]) for n in range(len(parts), 0, -1)]
    paths = [path for m in modules for path in (m.with_suffix(".py"), m / "__init__.py")]
    return next((path for path in paths if path.is_file()), None)


@cache
def _uses(path: Path, text: str) -> tuple[set[str], set[str]]:
    """Dotted names that a source file imports, and the folders of ``kernels/`` whose files it loads
    by a name that only the program knows."""
    nodes = list(ast.walk(source_code.parsed(path, text)))
    package = ".".join([PACKAGE.name, *Path(name_of(path)).parent.parts])
    folders = {
        value for node in nodes for name, value in source_code.texts([node]) if name == "FAMILY"
    }
    for node in nodes:
        match node:
            case ast.Call(func=called, args=[ast.Constant(value=str(kind)), *_]):
                folders |= {kind} if ast.unparse(called).endswith("load") else set()
    return set(source_code.bound_names(nodes, package).values()), folders


def _attention_file(stem: str) -> Path | None:
    """The source file of a variant, or of a module beside the variants, if there is one."""
    path = own_attention_files().get(stem, PACKAGE / "attention" / f"{stem}.py")
    return path if path.is_file() else None


def _file_of(name: str) -> Path | None:
    """The file of ``attention/`` or ``kernels/`` that defines a dotted name of this package."""
    match name.split("."):
        case [PACKAGE.name, "attention", stem, *_]:
            return _attention_file(stem)
        case [PACKAGE.name, "kernels", *_]:
            return _module(name)
    return None
