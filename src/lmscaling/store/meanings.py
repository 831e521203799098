"""What each column of the store means: comments in ``store.duckdb`` for people who query it.

A column that a record class declares has the string under its field. One that SQL computes has a
comment ``-- column: meaning`` below the CREATE of its table or view, whose further lines are
indented by two more spaces. Any other column means what it does in the tables that its own is made
of; the one that is named last prevails.
"""

import re
from functools import cache
from importlib.resources import files

import duckdb

from lmscaling.records import schema
from lmscaling.records.floor import Floor
from lmscaling.records.forecast import Sealed
from lmscaling.records.run import End, Evaluation, Gradients, Header, Run, Update, Validation
from lmscaling.records.sample import Sample
from lmscaling.records.timing import Measurement

RECORDS: dict[str, tuple[type, ...]] = {
    "runs": (Run,),
    "attempts": (Header, End),
    "updates": (Update,),
    "gradients": (Gradients,),
    "validations": (Validation,),
    "spikes": (Update,),
    "evaluations": (Evaluation,),
    "measurements": (Measurement,),
    "forecasts": (Sealed,),
    "samples": (Sample,),
    "floors": (Floor,),
}
"""The record classes whose fields are columns of a table; later classes prevail."""

CREATE = re.compile(
    r"^CREATE (?:TEMP )?(?:TABLE|VIEW) (\w+)(.*?)(?=^CREATE|\Z)", re.MULTILINE | re.DOTALL
)
COMMENT = re.compile(r"^ *-- (\w+): (.*(?:\n *--   .*)*)", re.MULTILINE)


END, ENDS = re.compile(r"(\w+)_(low|high)"), {"low": "Lower", "high": "Upper"}
"""Columns of the ends of intervals."""


def comment(db: duckdb.DuckDBPyConnection) -> None:
    """Add the comments; ``SELECT column_name, comment FROM duckdb_columns()`` shows them."""
    query = "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'store'"
    statements = ["BEGIN"]  # one transaction: each would write to the disk
    for table, column in db.sql(query).fetchall():
        text = meaning(table, column).replace("'", "''")
        statements.append(f'COMMENT ON COLUMN "{table}"."{column}" IS \'{text}\'')
    db.execute("; ".join([*statements, "COMMIT"]))


def meaning(table: str, column: str) -> str:
    """What a column of a table or view means, with its unit; empty if nothing says so."""
    comments, sources = created().get(table, ({}, []))
    if column in comments:
        return comments[column]
    if end := END.fullmatch(column):
        return f"{ENDS[end[2]]} end of the 95 % interval of {end[1]}; infinite if it is open."
    fields = schema.columns(*RECORDS.get(table, ()))
    if column in fields:
        return fields[column].meaning
    return next(filter(None, (meaning(source, column) for source in reversed(sources))), "")


@cache
def created() -> dict[str, tuple[dict[str, str], list[str]]]:
    """The tables and views that SQL creates, each with the comments on its columns and the names
    that it reads."""
    found = {}
    for path in files("lmscaling.store").iterdir():
        if not path.name.endswith(".sql"):
            continue
        for name, text in CREATE.findall(path.read_text()):
            comments = {c: re.sub(r"\n *-- +", " ", said) for c, said in COMMENT.findall(text)}
            sources = re.findall(r"\b(?:FROM|JOIN) +(\w+)", re.sub(r"--.*", "", text))
            found[name] = comments, [source for source in sources if source != name]
    return found
