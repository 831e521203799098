"""Numbers and names of the page's sentences."""

import re
from collections.abc import Iterable, Sequence
from math import floor, log10
from typing import Any

from lmscaling.report.contest import Cell, Edge
from lmscaling.report.table import format_context

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count(n: int) -> str:
    """Numbers up to ten as words."""
    return NUMBERS[n] if n < len(NUMBERS) else f"{n:,}"


def parted(text: str, most: int = 2) -> tuple[str, str]:
    """The first sentences of a text, at most two, and the others."""
    sentences = re.split(r"(?<=[.:]) (?=[A-Z])", " ".join(text.split()))
    return " ".join(sentences[:most]), " ".join(sentences[most:])


def many(n: int, noun: str) -> str:
    """``one seed``, ``12 seeds``."""
    return f"{count(n)} {noun}{'' if n == 1 else 's'}"


def join_names(values: Sequence[Any], conjunction: str = "and") -> str:
    """``a, b and c``."""
    *first, last = map(str, values)
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def at(cell: Cell) -> str:
    """``774M at context 64k``."""
    size, context = cell
    return f"{size} at context {format_context(context)}"


def signed(value: float, n: int = 3) -> str:
    """With its sign, and a true minus; no sign if it is rounded to 0."""
    text = f"{abs(value):.{n}f}"
    if not float(text):
        return text
    return f"{MINUS if value < 0 else '+'}{text}"


def digits(edge: Edge) -> int:
    """Decimals of a gap: two digits of its error, at most three; two if no error was measured."""
    error = edge.spread.error
    return min(max(1 - floor(log10(error)), 2), 3) if edge.is_tested and error > 0 else 2


def gap(edge: Edge, reason: bool = True) -> str:
    """``+0.020 nats (+0.010 to +0.030)``, and for a ``reason`` what an assumed range assumes."""
    n = digits(edge)
    low, high = (signed(end, n) for end in (edge.interval.low or 0, edge.interval.high or 0))
    assumed = f" if seeds differ by {edge.spread.sd:.2g}"
    return (
        f"{signed(edge.gap, n)} nats ({low} to {high}{assumed * (reason and not edge.is_tested)})"
    )


def span(edges: Iterable[Edge]) -> str:
    """``+0.01 to +0.27``, the least and the largest gap."""
    edges = sorted(edges, key=lambda edge: edge.gap)
    n = max(map(digits, edges))
    ends = (signed(edge.gap, n) for edge in (edges[0], edges[-1]))
    return " to ".join(dict.fromkeys(ends))


def times(values: Iterable[float]) -> str:
    """Ratios such as ``0.90 to 1.02`` times."""
    least, *_, most = known if len(known := sorted(values)) > 1 else known * 2
    low, high = map(ratio, (least, most))
    return f"{low}{TIMES}" if low == high else f"{low} to {high}{TIMES}"


def ratio(value: float) -> str:
    """Three digits at most."""
    return format(value, ".2f" if value < 2 else ".1f" if value < 10 else ".0f")
