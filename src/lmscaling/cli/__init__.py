"""The command line: one verb for each workflow rule, and verbs that people type.

Verbs are grouped by subject, one module a group; each function has its arguments above it.
"""

import argparse
import sys
from importlib import import_module
from typing import Any, NoReturn

from lmscaling.cli.verb import Verb
from lmscaling.errors import UserError

DESCRIPTION = "Scaling-law studies of language models. The workflow calls most of these verbs."

GROUPS = ("start", "text", "studies", "runs", "results", "devices")
"""Modules of this package, in the order in which the help lists their verbs."""

FAMILIES = {
    "tune": "Find the fastest configuration on this device.",
    "check": "Compare the results of this device with exact results.",
    "verify": "Read again what was written, and compare it with what is recorded.",
}
"""First words of verbs of two words."""


def main() -> None:
    """Run the verb that the arguments name; exit code 1 after an error of the user."""
    try:
        message = _run(_parser().parse_args())
    except ModuleNotFoundError as error:
        _exit_without_package(error)
    if message:
        print(message, flush=True)


def _run(args: argparse.Namespace) -> str:
    name = args.verb.name
    if args.typed != name:
        print(f"{args.typed} is now called {name}", file=sys.stderr)
    try:
        return args.verb.run(args)
    except UserError as error:
        sys.exit(f"error: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lmscaling", description=DESCRIPTION)
    subparsers = parser.add_subparsers(required=True, metavar="VERB")
    families: dict[str, Any] = {}
    for group in GROUPS:
        for verb in import_module(f"lmscaling.cli.{group}").VERBS:
            first, _, second = verb.name.partition(" ")
            if second and first not in families:
                summary = FAMILIES[first]
                family = subparsers.add_parser(first, help=summary, description=summary)
                families[first] = family.add_subparsers(required=True, metavar="WHAT")
            _add(families[first] if second else subparsers, second or first, verb)
    return parser


def _add(subparsers: Any, name: str, verb: Verb) -> None:
    parsers = {verb.name: subparsers.add_parser(name, help=verb.summary, description=verb.summary)}
    if verb.former:  # without a help text the list of verbs leaves it out
        parsers[verb.former] = subparsers.add_parser(verb.former, description=verb.summary)
    for typed, parser in parsers.items():
        parser.set_defaults(verb=verb, typed=typed)
        for argument in verb.arguments:
            parser.add_argument(*argument.flags, **argument.options)


def _exit_without_package(missing: ModuleNotFoundError) -> NoReturn:
    """End with one sentence that names the missing package; a missing module of ours is a bug."""
    package = (missing.name or "").partition(".")[0]
    if package in ("", "lmscaling"):
        raise missing
    sys.exit(
        f"error: this Python has no {package}; install it, or for make gpu put its wheel into "
        "wheels/ (pydantic needs pydantic_core, annotated_types and typing_inspection too)"
    )
