"""Records of designs: what ``lmscaling design`` proposed, and how other ways to spend compare."""

from dataclasses import dataclass
from typing import Any, ClassVar

from lmscaling.records.run import FORMAT


@dataclass(frozen=True, kw_only=True)
class Design:
    """``designs/<name>.json``: a proposal, with half-widths of 95 % intervals.

    Half-widths are medians over the truths of the simulation.
    """

    record: ClassVar[str] = "design"
    name: str
    """Name of the design: its file without the ending."""
    question: str
    """What was asked, as for ``--question``."""
    quantity: str
    """What the half-widths are of, with their unit."""
    price: str
    """Unit of what is spent, such as GPU-hours."""
    basis: str
    """Where the truths come from: the prior, or finished runs."""
    spent: float
    """What the design costs."""
    half_width: float
    """That of the design."""
    grid_spent: float
    """What the runs of the grid cost on which the answer depends."""
    grid_half_width: float | None
    """That of these; null if they give no interval."""
    frontier: list[dict[str, Any]]
    """By what is spent, in ascending order: ``spend``, and the half-widths of the search
    (``chosen``), of the middle half of random runs (``random_low``, ``random_high``), of their
    median (``random``) and of the largest cells first (``largest``); null without an interval."""
    runs: list[str]
    """Names of the cells of the design."""
    made: str
    """UTC, ISO 8601."""
    format: int = FORMAT
    """Version of the record's format."""
