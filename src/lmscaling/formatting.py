"""Formats numbers and tables for the terminal, for messages and for the report."""

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping

COLUMNS = 100
"""Longest line of a table or a sentence for the terminal."""

COMMAND = re.compile(
    r"\b(?:python -m lmscaling|(?:lmscaling|snakemake) -*[a-z]|pip install )[^;,]*"
)
"""What people copy from a sentence."""

INDENT = "    "
"""Before lines that go on with a sentence."""

CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x09\x0b-\x1f\x7f-\x9f]"
)
"""What a terminal obeys instead of showing it: control sequences (ECMA-48, sections 5.4 and 5.6),
such as colours, and control characters but newline."""


def printable(text: str) -> str:
    """The text without what would move the cursor or change the colours of a terminal."""
    return CONTROLS.sub("", text.replace("\t", " "))


NAMED = 6
"""Cells that are named after a reason; the others are counted."""


def some(names: list[str]) -> str:
    """The first names and the number of the others."""
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{rest}"


def skipped(cells: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for each reason, from the names of skipped cells and their reasons."""
    reasons: dict[str, list[str]] = {}
    for name, reason in cells:
        reasons.setdefault(reason, []).append(name)
    return [f"{len(names):,} skipped: {reason}: {some(names)}" for reason, names in reasons.items()]


def aligned(lines: list[list[str]], left: set[int]) -> list[str]:
    """The lines of a table with aligned columns; those in ``left`` are aligned to the left."""
    lines = [[printable(re.sub(r"[\t\n\r]+", " ", text)) for text in line] for line in lines]
    widths = [max(len(text) for text in column) for column in zip(*lines, strict=True)]
    padded = (
        "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return [line.rstrip() for line in padded]


def noted(lines: list[list[str]], left: set[int]) -> list[str]:
    """The lines of a table whose last column is a note; a long note follows in lines of its own.

    Columns without a value in any row are left out.

    Args:
        lines: Head and rows.
        left: Columns that are aligned to the left.
    """
    filled = [any(column[1:]) for column in list(zip(*lines, strict=True))[:-1]]
    kept = [i for i, has_value in enumerate(filled) if has_value or i == 0]
    table = aligned(
        [[line[i] for i in kept] for line in lines], {n for n, i in enumerate(kept) if i in left}
    )
    width = max(map(len, table)) + 2
    told = []
    for i, (text, (*_, note)) in enumerate(zip(table, lines, strict=True)):
        together = f"{text:{width}}{note}".rstrip()
        below = folded(note, INDENT) if i else []  # notes in lines of their own need no head
        told += [together] if len(together) <= COLUMNS else [text, *below]
    return told


def folded(sentence: str, indent: str = "") -> list[str]:
    """A sentence as lines of at most ``COLUMNS``, the first indented.

    No path and no command is divided, so that people can copy them.
    """
    together = COMMAND.sub(lambda command: command[0].replace(" ", "\xa0"), sentence)
    lines = textwrap.wrap(
        together, COLUMNS, initial_indent=indent, subsequent_indent=INDENT, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\xa0", " ") for line in lines]


def short(n: float) -> str:
    """A count with three significant digits, such as ``173B``."""
    return _scaled(n, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")))


def bytes_of(n: float) -> str:
    """A number of bytes with three significant digits, such as ``8.74 GB``."""
    return _scaled(n, ((1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1, " bytes")))


def _scaled(n: float, units: tuple[tuple[float, str], ...]) -> str:
    fitting = ((size, unit) for size, unit in units if n >= size)
    size, unit = next(fitting, (1, ""))
    return f"{n / size:.3g}{unit}"


def budget_of(amount: float, unit: str) -> str:
    """``24 h``, ``458 steps`` or ``1e+20 FLOPs``; a share of the steps is rounded."""
    number = f"{amount:,.0f}" if unit == "updates" else f"{amount:.3g}"
    return f"{number} {({'hours': 'h', 'updates': 'steps', 'flops': 'FLOPs'})[unit]}"


def duration(seconds: float, form: str = ".0f") -> str:
    """A time in the unit that suits it, such as ``45 min``; ``form`` formats the number."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:{form}} {unit}"
    return f"{max(0, seconds):{form}} s"


def painted(text: str, colours: Mapping[str, int]) -> str:
    """A table with its states in colour, if standard output shows colours and they are wanted.

    Args:
        text: The table; a state is the first or the second word of a line.
        colours: State and its colour, a number of ECMA-48's "select graphic rendition".
    """
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("NO_COLOUR")
    if unwanted or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return text
    pattern = rf"^(\S+ +)?({'|'.join(map(re.escape, colours))})\b"
    return re.sub(
        pattern,
        lambda match: f"{match[1] or ''}\x1b[{colours[match[2]]}m{match[2]}\x1b[0m",
        text,
        flags=re.MULTILINE,
    )
