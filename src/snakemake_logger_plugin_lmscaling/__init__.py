"""Lets ``snakemake --configfile study.yaml TARGET`` and ``--set`` work as people type them.

Snakemake's option takes all words that follow it for files, and reads them before any rule. A
target that follows it ends in a traceback, and so does a file that is not UTF-8 or contains itself;
no rule can help. Snakemake imports its plugins before it reads the command line. This one puts such
targets first, where they are targets, ends with a sentence about such a file, and passes what
follows ``--set`` through ``--config``, whose keys have no dots. It logs nothing: what the terminal
shows is in ``lmscaling/runtime/console.py``.
"""

import logging
import sys
from pathlib import Path
from urllib.parse import quote

from snakemake_interface_logger_plugins.base import LogHandlerBase

from lmscaling.config import yaml_file
from lmscaling.errors import UserError

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


def rewritten(words: list[str]) -> list[str]:
    """A command line as Snakemake understands it.

    Args:
        words: The command line without the program.
    """
    words, overrides = _without_overrides(words)
    words = targets_first(words)
    if not overrides:
        return words
    # Snakemake writes the value again for its jobs, and not all quotes survive that.
    passed = "set=" + "&".join(quote(text or "=", safe=".=") for text in overrides)
    for option in ("--config", "-C"):  # of two such options the second would count
        if option in words:
            i = words.index(option) + 1
            return [*words[:i], passed, *words[i:]]
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], "--config", passed, *words[end:]]


def _without_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """The other words, and the texts after ``--set``."""
    others: list[str] = []
    overrides: list[str] = []
    given = iter(words)
    for word in given:
        if word == "--":
            return [*others, word, *given], overrides
        if word == "--set":
            overrides.append(next(given, ""))
        elif word.startswith("--set="):
            overrides.append(word.removeprefix("--set="))
        else:
            others.append(word)
    return others, overrides


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


def study_files(words: list[str]) -> list[Path]:
    """The files after ``--configfile``."""
    found, inside = [], False
    for word in words:
        if word.startswith("-"):
            inside = word in OPTIONS
        elif inside:
            found.append(Path(word))
    return found


def _is_study(word: str) -> bool:
    """Whether a word can be a study file; the JSON files of results are targets."""
    path = Path(word)
    return path.suffix in SUFFIXES and path.parts[:1] != ("results",)


def check(path: Path) -> None:
    """Check that Snakemake can read a study file without a traceback.

    What is YAML but no right study is left to the rules, for the file may be of another workflow.

    Raises:
        UserError: It cannot.
    """
    try:
        yaml_file.read(path)
    except yaml_file.Endless:
        raise
    except UserError as error:
        if not _can_read(path):
            raise error from None


def _can_read(path: Path) -> bool:
    from snakemake.common.configfile import load_configfile

    try:
        load_configfile(path)
    except Exception:  # whatever a constructor of PyYAML raises
        return False
    return True


if Path(sys.argv[0]).name == "snakemake" or Path(sys.argv[0]).parent.name == "snakemake":
    sys.argv[1:] = rewritten(sys.argv[1:])
    try:
        for study in study_files(sys.argv[1:]):
            check(study)
    except UserError as mistake:
        sys.exit(f"error: {mistake}")
