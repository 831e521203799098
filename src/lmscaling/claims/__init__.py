"""Claims of the literature, one a file, each judged by what a study measured.

A module of this folder has a docstring of three paragraphs (the claim in our own words; where it
was made; how it is judged), a ``QUERY`` over the views of the store, ``NUMBER`` (what the number of
a judgement is), a ``THRESHOLD`` with its reason, and ``judge(rows) -> Judgement``. The rows are
those of one source, ``published`` or ``measured``, and of one setup where the query has that
column: what was measured elsewhere is never put together. Without rows ``judge`` says what is
missing.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
from pandas import DataFrame

from lmscaling import formatting, registry
from lmscaling.claims._judgement import VERDICTS, Judgement
from lmscaling.errors import UserError, choose
from lmscaling.files import write_json
from lmscaling.formatting import Table
from lmscaling.store import build as store

HEAD = ("claim", "source", "verdict", "number", "range", "why")


@dataclass(frozen=True)
class Claim:
    """What the docstring of a claim says."""

    title: str
    reference: str
    """Who made it, and where."""
    judged: str
    """How it is judged."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim against one source of numbers."""

    name: str
    """File stem in this folder."""
    claim: Claim
    source: str
    """``published`` or ``measured``."""
    setup: str
    """On what it was measured; empty where that does not matter, or nothing was."""
    judgement: Judgement


def load(name: str) -> Any:
    """The module of a claim.

    Raises:
        UserError: There is no such file.
    """
    names = list(registry.claims())
    if name not in names:
        raise UserError(f"claim {name!r} has no file; {choose(name, names)}")
    return import_module(f"{__name__}.{name}")


def claim(name: str) -> Claim:
    """The three paragraphs of a docstring, each on one line."""
    return Claim(*(" ".join(part.split()) for part in load(name).__doc__.strip().split("\n\n")))


def judge(name: str, rows: DataFrame, sources: Iterable[str]) -> list[Judged]:
    """One claim against the rows of its query, once for each source and setup."""
    made = []
    for source in sources:
        of_source = rows.loc[rows.source == source]
        # Without rows there is no setup either, and the claim says what is missing.
        setups = of_source.setup.unique().tolist() if "setup" in rows else []
        for setup in setups or [""]:
            part = of_source.loc[of_source.setup == setup] if setups else of_source
            judgement = load(name).judge(part.reset_index(drop=True))
            made.append(
                Judged(
                    name=name, claim=claim(name), source=source, setup=setup, judgement=judgement
                )
            )
    return made


def judge_all(db: duckdb.DuckDBPyConnection) -> list[Judged]:
    """Every claim against every source of a connected store."""
    found = "SELECT source FROM cells UNION SELECT source FROM measurements ORDER BY source"
    sources = [source for (source,) in db.sql(found).fetchall()] or ["measured"]
    return [
        judged
        for name in registry.claims()
        for judged in judge(name, db.sql(load(name).QUERY).df(), sources)
    ]


def table(db: duckdb.DuckDBPyConnection) -> Table:
    """All judgements as a table of the report; no row where nothing could be tested."""
    made = judge_all(db)
    if all(one.judgement.verdict == "not tested" for one in made):
        made = []
    queries = (
        f"SELECT '{name}' AS claim, count(*) AS rows FROM ({load(name).QUERY.rstrip()}\n)"
        for name in registry.claims()
    )
    return Table(
        name="claims",
        section="claims",
        title="Claims of others, and what the numbers say",
        note="Each claim is judged by published and by measured numbers apart. A claim holds where "
        "all numbers agree with it, fails where some disagree by more than chance, and is not "
        "tested where there are none or where they do not tell. The range is an interval of the "
        "number or what it ranges over; the file of a claim says which, and why its threshold is "
        "what it is. The query counts the rows that each claim is judged by, with the claim's own "
        "query inside.",
        query="\nUNION ALL\n".join(queries),
        head=HEAD,
        rows=tuple((one.claim.title, *row) for one, row in zip(made, _rows(made), strict=True)),
        text=frozenset({0, 1, 2, 5}),
    )


def text(made: list[Judged]) -> str:
    """All judgements as aligned lines for the terminal."""
    lines = [[one.name, *row] for one, row in zip(made, _rows(made), strict=True)]
    return "\n".join(formatting.aligned([list(HEAD), *lines], left={0, 1, 2, 5}))


def write(study: Path) -> list[Judged]:
    """Judge all claims by ``results/<study>/store/`` and write ``claims.json`` there.

    Raises:
        UserError: The exports of the store are not there.
    """
    with store.connect(study / "store") as db:
        made = judge_all(db)
    values = [
        {
            "name": one.name, **asdict(one.claim), "threshold": load(one.name).THRESHOLD,
            "source": one.source, "setup": one.setup, "number_is": load(one.name).NUMBER,
            **asdict(one.judgement),
        }
        for one in made
    ]  # fmt: skip
    write_json(study / "claims.json", values)
    return made


def summary(made: list[Judged]) -> str:
    """How many claims came out how."""
    counts = Counter((one.source, one.judgement.verdict) for one in made)
    sources = sorted({one.source for one in made})
    return "; ".join(
        f"{source}: " + ", ".join(f"{v} {counts[source, v]}" for v in VERDICTS)
        for source in sources
    )


def _rows(made: list[Judged]) -> list[tuple[str, ...]]:
    """What tables show of judgements, without the claim."""
    setups = {one.source: {o.setup for o in made if o.source == one.source} - {""} for one in made}
    rows = []
    for one in made:
        several = one.setup and len(setups[one.source]) > 1
        number, span = one.judgement.number, one.judgement.interval
        ends = (None, None) if span is None else (span.low, span.high)
        rows.append((
            f"{one.source}: {one.setup}" if several else one.source,
            one.judgement.verdict,
            _short(number),
            "" if span is None else " to ".join(_short(end) or "open" for end in ends),
            one.judgement.why,
        ))  # fmt: skip
    return rows


def _short(number: float | None) -> str:
    """Three digits, without exponents where contexts are meant."""
    if number is None:
        return ""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
