"""Numbers with their intervals as cells of a row.

Columns ``<name>_low`` and ``<name>_high`` are the ends of the 95 % interval of ``<name>``: infinite
where an end is open, missing where there is no interval. ``assumed_sd`` is missing for such an
interval; where no seeds were measured it is the standard deviation between seeds, in nats, that the
range assumes, and the range is no confidence interval.
"""

import math
from collections.abc import Mapping
from typing import Any

from pandas import isna

from lmscaling.fits.uncertainty import Interval

Row = dict[str, Any]


def names(number: str) -> list[str]:
    """The columns of a number and its interval."""
    return [number, f"{number}_low", f"{number}_high"]


def number(name: str, value: float | None, interval: Interval | None) -> Row:
    """The cells of a number and of its interval, if it has one."""
    row: Row = {name: value}
    if interval is not None:
        low, high = interval.low, interval.high
        row[f"{name}_low"] = -math.inf if low is None else low
        row[f"{name}_high"] = math.inf if high is None else high
        row["assumed_sd"] = interval.assumed
    return row


def interval_of(row: Row, name: str) -> Interval | None:
    """The interval of a number of a row, if it has one."""
    low, high = (row.get(f"{name}_{end}") for end in ("low", "high"))
    if low is None or high is None or math.isnan(low):
        return None
    ends = (None if math.isinf(end) else float(end) for end in (low, high))
    assumed = row.get(f"{name}_assumed", row["assumed_sd"])
    return Interval(*ends, assumed=None if isna(assumed) else float(assumed))


def numbers(values: Mapping[str, float | None], intervals: Mapping[str, Interval]) -> Row:
    """The cells of several numbers; of different assumed scatters the row has the first."""
    parts = [number(name, value, intervals.get(name)) for name, value in values.items()]
    assumed = [sd for part in parts if (sd := part.get("assumed_sd")) is not None]
    row = {key: value for part in parts for key, value in part.items()}
    return row | {"assumed_sd": assumed[0] if assumed else None}
