"""The command line: one verb for each workflow rule, and verbs that people type.

Verbs are grouped by subject, one module a group; each function has its arguments above it.
"""

import argparse
import errno
import os
import platform
import sys
import textwrap
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from lmscaling import __version__
from lmscaling.cli.verb import FAMILIES, VERBS
from lmscaling.errors import UserError, choose
from lmscaling.runtime import rank

GROUPS = ("start", "studies", "results", "runs", "devices", "text")
"""Modules of this package, in the order in which the help lists their verbs."""

REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG,
           errno.EEXIST, errno.ENOTDIR)  # fmt: skip
"""Faults of the system that whoever has typed a verb can correct."""


RUNS = "a study runs by snakemake --configfile config/<study>.yaml"
"""What people look for who type a verb of the workflow, or one that does not exist."""


def main() -> None:
    """Run the verb that the arguments name; exit code 1 after an error of the user."""
    rank.settle()
    try:
        if message := _run(sys.argv[1:]):
            print(message, flush=True)
    except UserError as error:
        sys.exit(f"error: {error}")
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "lmscaling"):  # a bug
            raise
        sys.exit(
            f"error: {package} cannot be used: {error}; install it, or for make gpu put its wheel "
            "into wheels/ (docs/gpu.md lists those that belong together)"
        )
    except BrokenPipeError:  # the reader, such as head, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> str:
    parser = _parser()
    if not words:
        return parser.format_help().rstrip()
    _check_name(words)
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


def _check_name(words: list[str]) -> None:
    """Refuse a word that begins no verb, and a second word that does not belong to the first."""
    n = 2 if words[0] in FAMILIES else 1
    typed = " ".join(word for word in words[:n] if not word.startswith("-"))
    verbs = [v for v in VERBS if n == 1 or v.name.startswith(words[0])]
    if typed and not any(f"{v.name} ".startswith(f"{typed} ") for v in verbs):
        names = sorted(v.name for v in verbs if not v.by_workflow)
        raise UserError(
            f"{typed!r} is not a command; {choose(typed, names)}; {RUNS}; type lmscaling --help"
        )


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence that ends with what to type."""

    def error(self, message: str) -> NoReturn:
        remedy = [*filter(None, [self.epilog]), f"type {self.prog} --help"]
        self.exit(2, f"error: {'; '.join([message, *remedy])}\n")


def _parser() -> _Parser:
    for group in GROUPS:
        import_module(f"lmscaling.cli.{group}")
    parser = _Parser(
        prog="lmscaling",
        description="Scaling-law studies of language models as one Snakemake workflow.",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # keeps the lines of the versions
    )
    parser.add_argument("--version", action="version", version=_versions())
    with suppress(ImportError):  # make gpu does without
        import shtab

        told = 'print a script that completes words: eval "$(lmscaling --print-completion bash)"'
        shtab.add_argument_to(parser, "--print-completion", help=told)
    hidden = ", ".join(verb.name for verb in VERBS if verb.by_workflow)
    told = textwrap.fill(f"{RUNS}; it calls these, each with its own --help: {hidden}", 96)
    verbs = parser.add_subparsers(required=True, metavar="VERB", title="verbs", description=told)
    families: dict[str, Any] = {}
    for verb in VERBS:
        first, _, second = verb.name.partition(" ")
        if second and first not in families:
            family = verbs.add_parser(first, help=FAMILIES[first], description=FAMILIES[first])
            families[first] = family.add_subparsers(required=True, metavar="WHAT")
        siblings = families[first] if second else verbs
        texts: dict[str, Any] = {"epilog": RUNS} if verb.by_workflow else {"help": verb.summary}
        own = siblings.add_parser(second or first, description=verb.summary, **texts)
        own.set_defaults(verb=verb)
        for add in verb.arguments:
            add(own)
    return parser


def _versions() -> str:
    """A line for this package, for Python and for others, none of which is imported."""
    found = {"lmscaling": __version__, "Python": platform.python_version()}
    for name in ("torch", "triton", "snakemake"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "is not installed"
    return "\n".join(map(" ".join, found.items()))
