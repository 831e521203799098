"""What a verb of the command line consists of, and the decorator that makes a function one."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

FAMILIES = {
    "check": "Compare the results of this device with exact results.",
}
"""First words of verbs of two words."""

FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""How each shell completes a path: ``shtab.FILE``, without its import."""

Action = Callable[[Namespace], str]
"""Takes the parsed arguments and returns the message to print, which may be empty."""

Argument = Callable[[Any], Any]
"""Adds itself to an ``ArgumentParser``."""


class Verb(NamedTuple):
    """One command."""

    name: str
    """What people type: one word, or a family and a word."""
    summary: str
    """One sentence for the help."""
    run: Action
    arguments: tuple[Argument, ...]
    by_workflow: bool
    """Whether the rules of the workflow type it, and people hardly ever do."""


VERBS: list[Verb] = []
"""Every verb of the modules that are loaded."""


def argument(flags: str, help: str, **options: Any) -> Argument:
    """An argument of a verb: its flags, separated by spaces, and what ``add_argument`` takes."""
    return lambda parser: parser.add_argument(*flags.split(), help=help, **options)


def path(flags: str, help: str, **options: Any) -> Argument:
    """An ``argument`` that is a path, which shells complete."""

    def add(parser: Any) -> None:
        argument(flags, help, type=Path, **options)(parser).complete = FILES

    return add


RUN = argument("run", "name of a run or a cell, or results/<study>/runs/<run>")
STUDY_NAME = argument("--study", "name of the study, if several have such a run")
RESULTS = path("--results", "folder of all studies", default=Path("results"))
VALUE = "lay a value over the study files, as axes.context=[1024]; may be repeated"
SET = argument("--set", VALUE, action="append", default=[], metavar="KEY=VALUE")


def verb(*arguments: Argument, by_workflow: bool = False) -> Callable[[Action], Action]:
    """Decorate a function so that it becomes a verb of its name; its docstring is the summary."""

    def add(run: Action) -> Action:
        words = run.__name__.split("_")
        name = (" " if words[0] in FAMILIES else "-").join(words)
        summary = (run.__doc__ or "").replace("``", "")
        VERBS.append(Verb(name, summary, run, arguments, by_workflow))
        return run

    return add
