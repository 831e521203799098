"""Numbers and tables as text: for the terminal, for sentences and for the report."""

from dataclasses import dataclass


def aligned(lines: list[list[str]], left: set[int]) -> list[str]:
    """Pad every cell of a table to its column; columns in ``left`` start at the left."""
    widths = [max(len(text) for text in column) for column in zip(*lines, strict=True)]
    padded = (
        "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return [line.rstrip() for line in padded]


def short(n: float) -> str:
    """A count with three digits: ``173B``."""
    return _scaled(n, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")))


def bytes_of(n: float) -> str:
    """A number of bytes with three digits: ``8.74 GB``."""
    return _scaled(n, ((1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB")))


def _scaled(n: float, units: tuple[tuple[float, str], ...]) -> str:
    fitting = ((size, unit) for size, unit in units if n >= size)
    size, unit = next(fitting, (1, ""))
    return f"{n / size:.3g}{unit}"


SECTIONS = {
    "question": "What is asked",
    "grid": "What was run",
    "speed": "How fast it is",
    "learning": "How it learns",
    "laws": "What follows from it",
    "claims": "What others have said",
    "audit": "What it took",
}
"""Sections of the report in their order, with their headings; a figure names its own as
``SECTION``."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Text as it is shown; a table without rows is left out."""

    name: str
    """Anchor on the page and file stem."""
    section: str
    """A key of ``SECTIONS``."""
    title: str
    note: str
    """What the columns mean, in sentences."""
    query: str
    """SQL over the views of the store whose rows it is computed from."""
    head: tuple[str, ...]
    """Units in brackets."""
    rows: tuple[tuple[str, ...], ...]
    text: frozenset[int] = frozenset({0})
    """Columns of words, which start at the left; the others are numbers."""

    def __post_init__(self) -> None:
        assert self.section in SECTIONS, self.section
        assert all(len(row) == len(self.head) for row in self.rows), self.name
