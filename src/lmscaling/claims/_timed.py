"""Claims about times and memory, the rows of ``timed.yaml``."""

from importlib.resources import files
from typing import Any

import yaml
from pandas import DataFrame

from lmscaling.claims import _rules as rules
from lmscaling.claims._judgement import Claim, Judgement, untested

USUAL: dict[str, Any] = {
    "roles": {"candidate": "linear chunked", "baseline": "softmax fused"},
    "of_gpu": True,
    "missing": "No step was timed with both {candidate} and {baseline}.",
    "with": {},
}
"""Fields that a row may leave out."""


def _claim(name: str, row: dict[str, Any]) -> Claim:
    """A claim that is not tested, because of what is ``missing``, where its rule gives None."""
    rule, values, missing = (row.pop(field) for field in ("rule", "with", "missing"))

    def judge(rows: DataFrame) -> Judgement:
        found = None
        if len(rows):
            found = getattr(rules, rule)(rows, row["threshold"], **values)
        return untested(missing) if found is None else found

    return Claim(name=name, judge=judge, **row)


def read_rows(name: str) -> dict[str, dict[str, Any]]:
    """The rows of a table of claims by their names."""
    return yaml.safe_load(files("lmscaling.claims").joinpath(name).read_text())


TIMED = {name: _claim(name, USUAL | row) for name, row in read_rows("timed.yaml").items()}
