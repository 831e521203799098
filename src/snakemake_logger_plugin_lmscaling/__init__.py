"""Lets ``snakemake --configfile study.yaml TARGET`` work as people type it.

Snakemake's option takes all words that follow it for files, and reads them before any rule. A
target that follows it ends in a traceback, and no rule can help. Snakemake imports its plugins
before it reads the command line; this one puts such targets first, where they are targets. It logs
nothing: what the terminal shows is in ``lmscaling/runtime/console.py``.
"""

import logging
import sys
from pathlib import Path

from snakemake_interface_logger_plugins.base import LogHandlerBase

OPTIONS = ("--configfile", "--configfiles")
SUFFIXES = (".yaml", ".yml", ".json")


class LogHandler(LogHandlerBase):
    """What Snakemake asks of a plugin of this kind; ``--logger lmscaling`` shows nothing."""

    @property
    def writes_to_stream(self) -> bool:
        return False

    @property
    def writes_to_file(self) -> bool:
        return False

    @property
    def has_filter(self) -> bool:
        return True

    @property
    def has_formatter(self) -> bool:
        return True

    @property
    def needs_rulegraph(self) -> bool:
        return False

    def emit(self, record: logging.LogRecord) -> None:
        """Show nothing."""


def targets_first(words: list[str]) -> list[str]:
    """A command line whose targets do not follow the study files of ``--configfile``.

    Args:
        words: The command line without the program.
    """
    targets: list[str] = []
    others: list[str] = []
    inside, files = False, 0
    for word in words:
        if word.startswith("-"):
            inside, files = word in OPTIONS, 0
        elif inside and files and not _is_study(word):
            targets.append(word)
            continue
        elif inside:
            files += 1
        others.append(word)
    return [*targets, *others]


def _is_study(word: str) -> bool:
    """Whether a word can be a study file; the JSON files of results are targets."""
    path = Path(word)
    return path.suffix in SUFFIXES and path.parts[:1] != ("results",)


if Path(sys.argv[0]).name == "snakemake" or Path(sys.argv[0]).parent.name == "snakemake":
    sys.argv[1:] = targets_first(sys.argv[1:])
