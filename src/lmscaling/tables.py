"""A table of the report: what it says, and the query that it says it from."""

from dataclasses import dataclass

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
