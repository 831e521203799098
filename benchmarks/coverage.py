"""Bias and coverage of every interval that the product prints, on synthetic studies.

    python benchmarks/coverage.py               # print the tables, name what misses the bound
    python benchmarks/coverage.py --write       # write coverage.md and coverage.csv
    python benchmarks/coverage.py --studies 50  # a quick look

Each module of ``MODULES`` has a function ``rows(studies)``. An interval of ours must hold the truth
in 92 to 97.5 % of studies; one that holds it more often is wider than necessary, and the table says
so. A fitter of others is there for comparison and has no bound.
"""

import argparse
import csv
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from multiprocessing import Pool
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).with_name("coverage.csv")
PAGE = Path(__file__).with_name("coverage.md")
"""What docs/statistics.md includes."""
MODULES = (
    "coverage_gaps",
    "coverage_noise",
    "coverage_surfaces",
    "coverage_curves",
    "coverage_rates",
    "coverage_compute",
)
STUDIES = 500
BOUND = (0.92, 0.975)
MOSTLY = 0.9
"""Share of refused studies above which the few others are shown, but not judged."""
CONSERVATIVE = 0.995
"""Share above which an interval is far too wide."""
OURS = "ours"
WIDE = "ours: conservative"
"""Ours where the variance is known to be taken too large; there is no upper bound."""


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


def verdict(row: Row) -> str:
    """``ok``, ``conservative``, ``too wide``, ``misses`` or ``refused``; empty without intervals
    and for other fitters."""
    if row.fitter not in (OURS, WIDE) or row.coverage is None:
        return ""
    if row.refused > MOSTLY:
        return "refused"
    if row.coverage < BOUND[0]:
        return "misses"
    if row.fitter == WIDE:
        return "conservative"
    if row.coverage <= BOUND[1]:
        return "ok"
    return "conservative" if row.coverage <= CONSERVATIVE else "too wide"


def each(function: Callable[[Any], Any], of: Iterable) -> list:
    """Results of a function of one study for many, on all cores of the process."""
    with Pool(len(os.sched_getaffinity(0))) as pool:
        return pool.map(function, of)


def collect(studies: int) -> list[Row]:
    """The rows of all modules."""
    return [row for name in MODULES for row in import_module(name).rows(studies)]


def pages(rows: Iterable[Row]) -> str:
    """A table for each law: a line for each family and fitter, a column for each quantity."""
    rows, lines = list(rows), []
    for law in dict.fromkeys(row.law for row in rows):
        part = [row for row in rows if row.law == law]
        quantities = list(dict.fromkeys(row.quantity for row in part))
        lines += [
            f"### {law.capitalize()}",
            "",
            _line(["family", "fitter", "refused", *quantities]),
        ]
        lines.append(_line(["---", "---", "---:", *["---"] * len(quantities)]))
        for family, fitter in dict.fromkeys((row.family, row.fitter) for row in part):
            own = {r.quantity: r for r in part if (r.family, r.fitter) == (family, fitter)}
            refused = f"{100 * max(row.refused for row in own.values()):.0f} %"
            cells = [_cell(own[name]) if name in own else "" for name in quantities]
            lines.append(_line([family, fitter, refused, *cells]))
        lines.append("")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    if row.refused == 1:
        return ""
    share = "no interval" if row.coverage is None else f"{100 * row.coverage:.0f} %"
    star = {"conservative": "*", "too wide": " (too wide)", "misses": " (misses)", "refused": "†"}
    star = star.get(verdict(row), "")
    return f"{share}{star}; {row.bias:+.3f}, {row.rmse:.3f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def read() -> list[Row]:
    """The rows of the table."""
    with TABLE.open(newline="") as file:
        return [_parse(row) for row in csv.DictReader(file)]


def _parse(row: dict[str, str]) -> Row:
    names = {name: row[name] for name in ("law", "family", "fitter", "quantity")}
    coverage, width = (float(row[name]) if row[name] else None for name in ("coverage", "width"))
    return Row(
        **names, bias=float(row["bias"]), rmse=float(row["rmse"]), coverage=coverage, width=width,
        refused=float(row["refused"]), studies=int(row["studies"]),
    )  # fmt: skip


def write(rows: Sequence[Row]) -> None:
    """Write the table and the page."""
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(
            [f"{value:.4g}" if isinstance(value, float) else value for value in row] for row in rows
        )
    PAGE.write_text(pages(read()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=STUDIES, help="synthetic studies in a row")
    parser.add_argument("--write", action="store_true", help="write the table and the page")
    options = parser.parse_args()
    rows = collect(options.studies)
    if options.write:
        write(rows)
    else:
        print(pages(rows))
    missing = [row for row in rows if verdict(row) == "misses"]
    for row in missing:
        where = f"{row.law}, {row.family}: {row.quantity}"
        print(f"coverage: {where} is held in {row.coverage:.1%}", file=sys.stderr)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    # As a module of its own name, so that rows made elsewhere are of this class.
    import_module("coverage").main()
