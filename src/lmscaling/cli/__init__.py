"""The command line: one verb for each workflow rule, and verbs that people type.

Verbs are grouped by subject, one module a group; each function has its arguments above it.
"""

import argparse
import errno
import os
import platform
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import TextWrapper
from typing import Any, NoReturn

from lmscaling import __version__
from lmscaling.cli.verb import Verb
from lmscaling.errors import UserError, choose
from lmscaling.formatting import COLUMNS

DESCRIPTION = "Scaling-law studies of language models as one Snakemake workflow."

GROUPS = ("start", "studies", "results", "runs", "devices", "text")
"""Modules of this package, in the order in which the help lists their verbs."""

FAMILIES = {
    "tune": "Find the fastest configuration on this device.",
    "check": "Compare the results of this device with exact results.",
    "verify": "Read again what was written, and compare it with what is recorded.",
}
"""First words of verbs of two words."""

VERSIONS = ("torch", "triton", "snakemake")
"""Packages whose versions ``--version`` prints."""

REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG,
           errno.EEXIST, errno.ENOTDIR)  # fmt: skip
"""Faults of the system that whoever has typed a verb can mend."""

SHELLS = ("bash", "zsh", "tcsh")

FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""How each shell completes a path: ``shtab.FILE``, without its import."""


def main() -> None:
    """Run the verb that the arguments name; exit code 1 after an error of the user."""
    try:
        message = _run(sys.argv[1:])
        if message:
            print(message, flush=True)
    except UserError as error:
        sys.exit(f"error: {error}")
    except ImportError as error:
        _exit_without_package(error)
    except BrokenPipeError:  # the reader, such as head, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> str:
    parser = _parser()
    if not words:
        return parser.format_help().rstrip()
    _check_name(words, parser.verbs)
    args, rest = parser.parse_known_args(words)
    name = args.verb.name
    if rest:
        raise UserError(f"{name} takes no {rest[0]!r}; type lmscaling {name} --help")
    try:
        return args.verb.run(args)
    except OSError as error:
        if args.verb.by_workflow or error.errno not in REFUSED:
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise UserError(
            f"{where}{error.strerror}; make room, change its permissions or move it away, then "
            f"type lmscaling {name} again"
        ) from error


def _check_name(words: list[str], verbs: list[Verb]) -> None:
    """Refuse a word that begins no verb, and a second word that does not belong to the first."""
    names = [verb.name for verb in verbs]
    n = 2 if words[0] in FAMILIES else 1
    typed = " ".join(words[:n])
    known = {" ".join(name.split()[:n]) for name in names if n == 1 or name.startswith(words[0])}
    if len(words) >= n and not words[n - 1].startswith("-") and typed not in known:
        nearest = choose(typed, sorted(known))
        raise UserError(f"{typed!r} is no verb; {nearest}; type lmscaling --help")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence that ends with what to type."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; type {self.prog} --help\n")


class _Main(_Parser):
    """The parser of the whole command line; its help lists what people type first."""

    verbs: list[Verb]

    def format_help(self) -> str:
        options = self.formatter_class(prog=self.prog)
        options.start_section("options")
        options.add_arguments([a for a in self._actions if a.option_strings])
        options.end_section()
        groups = {
            "what you type": [verb for verb in self.verbs if not verb.by_workflow],
            "what the workflow types": [verb for verb in self.verbs if verb.by_workflow],
        }
        lists = [f"{title}:\n{_list(verbs)}" for title, verbs in groups.items()]
        parts = [self.format_usage().rstrip(), DESCRIPTION, *lists, options.format_help().rstrip()]
        return "\n\n".join(parts) + "\n"


def _list(verbs: list[Verb]) -> str:
    """A line or more for each verb, with its sentence in a column of its own."""
    width = max(len(verb.name) for verb in verbs) + 4
    columns = min(COLUMNS, shutil.get_terminal_size().columns)
    wrapper = TextWrapper(max(columns, width + 40), subsequent_indent=" " * width)
    lines = []
    for verb in verbs:
        wrapper.initial_indent = f"  {verb.name}".ljust(width)
        lines += wrapper.wrap(verb.summary)
    return "\n".join(lines)


class _Answer(argparse.Action):
    """An option that prints an answer and ends the program."""

    def __init__(self, *flags: Any, answer: Callable[[Any, Any], str], **options: Any) -> None:
        super().__init__(*flags, **options)
        self.answer = answer

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        print(self.answer(parser, values))
        parser.exit()


def _versions(parser: _Parser, value: Any) -> str:
    """Versions of this package, of Python, and of ``VERSIONS``, none of which is imported."""
    lines = [f"lmscaling {__version__}", f"Python {platform.python_version()}"]
    for name in VERSIONS:
        try:
            lines.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            lines.append(f"{name} is not installed")
    return "\n".join(lines)


def _completion(parser: _Parser, shell: str) -> str:
    import shtab

    return shtab.complete(parser, shell)


def _parser() -> _Main:
    parser = _Main(prog="lmscaling", description=DESCRIPTION)
    parser.add_argument(
        "--version", action=_Answer, nargs=0, answer=_versions, help="print versions and exit"
    )
    parser.add_argument(
        "--print-completion",
        action=_Answer,
        choices=SHELLS,
        answer=_completion,
        help='print a script that completes words: eval "$(lmscaling --print-completion bash)"',
    )
    subparsers = parser.add_subparsers(required=True, metavar="VERB", parser_class=_Parser)
    families: dict[str, Any] = {}
    groups = [import_module(f"lmscaling.cli.{group}").VERBS for group in GROUPS]
    parser.verbs = [verb for group in groups for verb in group]
    for verb in parser.verbs:
        first, _, second = verb.name.partition(" ")
        if second and first not in families:
            summary = FAMILIES[first]
            family = subparsers.add_parser(first, help=summary, description=summary)
            families[first] = family.add_subparsers(
                required=True, metavar="WHAT", parser_class=_Parser
            )
        _add(families[first] if second else subparsers, second or first, verb)
    return parser


def _add(subparsers: Any, name: str, verb: Verb) -> None:
    parser = subparsers.add_parser(name, help=verb.summary, description=verb.summary)
    parser.set_defaults(verb=verb)
    for argument in verb.arguments:
        added = parser.add_argument(*argument.flags, **argument.options)
        if added.type is Path:
            added.complete = FILES  # pyright: ignore[reportAttributeAccessIssue]


def _exit_without_package(error: ImportError) -> NoReturn:
    """End with one sentence that names the package that is missing, or does not fit another one; a
    module of ours that cannot be imported is a bug."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "lmscaling"):
        raise error
    found = "no" if isinstance(error, ModuleNotFoundError) else f"another {package} ({error}) than"
    sys.exit(
        f"error: this Python has {found} {package}; install it, or for make gpu put its wheel into "
        "wheels/ (docs/gpu.md lists those that belong together)"
    )
