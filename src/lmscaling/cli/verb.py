"""What a verb of the command line consists of, and the decorator that makes a function one."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Action = Callable[[Namespace], str]
"""Takes the parsed arguments and returns the message to print, which may be empty."""


@dataclass(frozen=True)
class Argument:
    """What ``ArgumentParser.add_argument`` takes."""

    flags: tuple[str, ...]
    options: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One command."""

    name: str
    """What people type: one word, or a family and a word."""
    summary: str
    """One sentence for the help."""
    run: Action
    arguments: tuple[Argument, ...]
    by_workflow: bool = False
    """Whether the rules of the workflow type it, and people hardly ever do."""


def argument(*flags: str, **options: Any) -> Argument:
    """An argument of a verb, as ``ArgumentParser.add_argument`` describes it."""
    return Argument(flags, options)


RUN = argument("run", help="name of a run or a cell, or results/<study>/runs/<run>")
STUDY_NAME = argument("--study", help="name of the study, if several have such a run")
RESULTS = argument("--results", type=Path, default=Path("results"), help="folder of all studies")


def verb(
    verbs: list[Verb],
    *arguments: Argument,
    name: str = "",
    by_workflow: bool = False,
) -> Callable[[Action], Action]:
    """Decorate a function so that it becomes a verb; its docstring is the summary.

    Args:
        verbs: The verbs of a group; gets this one.
        arguments: What it is called with.
        name: What people type; the name of the function, with hyphens, by default.
        by_workflow: Whether the rules of the workflow type it.
    """

    def add(run: Action) -> Action:
        summary = (run.__doc__ or "").strip().replace("``", "")
        typed = name or run.__name__.replace("_", "-")
        verbs.append(
            Verb(
                name=typed,
                summary=summary,
                run=run,
                arguments=arguments,
                by_workflow=by_workflow,
            )
        )
        return run

    return add
