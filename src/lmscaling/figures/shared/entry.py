"""A figure of a module that has several."""

from collections.abc import Callable
from dataclasses import dataclass

from duckdb import DuckDBPyConnection
from matplotlib.figure import Figure
from pandas import DataFrame


@dataclass(frozen=True)
class Entry:
    """A value of the table ``FIGURES`` of such a module; its key is the name of the figure. The
    fields are what other modules have for their only figure, their docstring as ``caption``."""

    caption: str
    QUERY: str
    draw: Callable[[DataFrame, DuckDBPyConnection], Figure]
    SECTION: str
    SWITCH: tuple[str, str] = ("", "")
