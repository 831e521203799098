"""Bias and coverage of every interval that the product prints, on synthetic studies.

    python benchmarks/coverage.py [--studies 500] [--write]

Prints a table; with ``--write`` it replaces that of docs/statistics.md.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """One quantity of one law, estimated by one fitter from many studies of one family."""

    law: str
    family: str
    """What the synthetic studies have in common, such as ``one run blown up``."""
    fitter: str
    quantity: str
    bias: float
    """Mean of estimate minus truth, in the units of the quantity."""
    rmse: float
    coverage: float | None
    """Share of the studies whose 95 % interval contains the truth; None without intervals."""
    width: float | None
    """Median half-width of the intervals."""
    refused: float
    """Share of the studies in which the fitter gives no estimate; they enter no other column."""
    studies: int
