"""Claims of the literature, one module each, judged by the results of a study.

A module in this folder has a docstring of three paragraphs (the claim in our own words, its source,
the criterion), a ``QUERY`` over the views of the store, ``NUMBER`` (the meaning of the number in a
judgement), a ``THRESHOLD`` with its reason, and ``judge(rows) -> Judgement``. The rows are those of
one source, ``published`` or ``measured``, and of one setup if the query has that column:
measurements of different setups are never combined. Without rows ``judge`` states what is missing.

In a query ``linear`` and ``softmax`` are roles: an attention with linear cost, and the one that it
is compared with. In a study with other attentions each of them also plays the first role, and the
study's baseline the second one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
from pandas import DataFrame

from lmscaling import formatting, registry
from lmscaling.claims._judgement import VERDICTS, Judgement
from lmscaling.errors import UserError, choose
from lmscaling.files import write_json
from lmscaling.store.build import connect

OTHERS = """
    SELECT DISTINCT attention, baseline FROM cells
    WHERE source = 'measured' AND attention <> baseline
        AND (attention <> 'linear' OR baseline <> 'softmax')
    ORDER BY ALL
"""
"""Attentions that play a role which is not that of their name."""

PLAYED = """
    SELECT table_name, bool_or(column_name = 'method') FROM duckdb_columns()
    WHERE schema_name = 'main' AND NOT internal
    GROUP BY table_name HAVING bool_or(column_name = 'attention') ORDER BY table_name
"""
"""Tables and views with attentions, and whether they have methods."""

HEAD = ("claim", "attention", "source", "verdict", "number", "range", "why")


@dataclass(frozen=True)
class Roles:
    """The attentions that play the two roles of a claim."""

    linear: str = "linear"
    softmax: str = "softmax"

    def name(self, text: str) -> str:
        """A sentence about the roles as one about the attentions."""
        if self == Roles():
            return text
        text = re.sub(r"\b[Ll]inear( attention)?\b", self.linear, text)
        return re.sub(r"\b[Ss]oftmax\b", self.softmax, text)


@dataclass(frozen=True)
class Claim:
    """The docstring of a claim."""

    title: str
    reference: str
    """Authors, title and section of the source."""
    judged: str
    """The criterion."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim judged by one source of numbers."""

    name: str
    """File stem in this folder."""
    claim: Claim
    source: str
    """``published`` or ``measured``."""
    roles: Roles
    setup: str
    """Hardware and versions; empty if the claim does not depend on them or nothing was measured."""
    judgement: Judgement


def load(name: str) -> Any:
    """The module of a claim.

    Raises:
        UserError: No claim has this name.
    """
    names = list(registry.claims())
    if name not in names:
        raise UserError(f"claim {name!r} has no file; {choose(name, names)}")
    return import_module(f"{__name__}.{name}")


def claim(name: str) -> Claim:
    """The three paragraphs of a docstring, each on one line."""
    return Claim(*(" ".join(part.split()) for part in load(name).__doc__.strip().split("\n\n")))


def judge(
    name: str, rows: DataFrame, sources: Iterable[str], roles: Roles = Roles()
) -> list[Judged]:
    """Judge one claim by the rows of its query, separately for each source and setup."""
    judged = []
    for source in sources:
        of_source = rows.loc[rows.source == source]
        # Without rows there is no setup; judge() then states what is missing.
        setups = of_source.setup.unique().tolist() if "setup" in rows else []
        for setup in setups or [""]:
            part = of_source.loc[of_source.setup == setup] if setups else of_source
            judgement = load(name).judge(part.reset_index(drop=True))
            judgement = replace(judgement, why=roles.name(judgement.why))
            judged.append(
                Judged(
                    name=name, claim=claim(name), source=source, roles=roles, setup=setup,
                    judgement=judgement,
                )
            )  # fmt: skip
    return judged


def judge_all(db: duckdb.DuckDBPyConnection) -> list[Judged]:
    """Judge every claim by every source of a connected store, and by other attentions of the study
    in its roles, as far as they test it."""
    query = "SELECT source FROM cells UNION SELECT source FROM measurements ORDER BY source"
    sources = [source for (source,) in db.sql(query).fetchall()] or ["measured"]
    judged = {
        name: judge(name, db.sql(load(name).QUERY).df(), sources) for name in registry.claims()
    }
    for linear, softmax in db.sql(OTHERS).fetchall():
        with _cast(db, roles := Roles(linear, softmax)):
            for name in registry.claims():
                own = judge(name, db.sql(load(name).QUERY).df(), ["measured"], roles)
                judged[name] += [one for one in own if one.judgement.verdict != "not tested"]
    return [one for of_claim in judged.values() for one in of_claim]


@contextmanager
def _cast(db: duckdb.DuckDBPyConnection, roles: Roles) -> Iterator[None]:
    """Let unqualified names of tables and views mean their rows of two attentions, which have the
    names of their roles there."""
    db.execute("SET VARIABLE linear_role = ?", [roles.linear])
    db.execute("SET VARIABLE softmax_role = ?", [roles.softmax])
    db.execute("CREATE SCHEMA cast_roles")
    for table, method in db.sql(PLAYED).fetchall():
        also = ", if(attention = getvariable('linear_role'), 'linear chunked', method) AS method"
        db.execute(f'''
            CREATE VIEW cast_roles."{table}" AS
            SELECT * REPLACE (
                if(attention = getvariable('linear_role'), 'linear', 'softmax') AS attention
                {also if method else ""}
            )
            FROM main."{table}"
            WHERE attention IN (getvariable('linear_role'), getvariable('softmax_role'))
        ''')
    db.execute("SET search_path = 'cast_roles,main'")
    try:
        yield
    finally:
        db.execute("SET search_path = 'main'")
        db.execute("DROP SCHEMA cast_roles CASCADE")


def text(judged: list[Judged]) -> str:
    """All judgements as aligned lines for the terminal."""
    lines = [[one.name, *row] for one, row in zip(judged, format_rows(judged), strict=True)]
    return "\n".join(formatting.aligned([list(HEAD), *lines], left={0, 1, 2, 3, 6}))


def write(study: Path) -> list[Judged]:
    """Judge all claims by ``results/<study>/store/`` and write ``claims.json`` there.

    Raises:
        UserError: The exports of the store are missing.
    """
    with connect(study / "store") as db:
        judged = judge_all(db)
    values = [
        {
            "name": one.name, **asdict(one.claim), "threshold": load(one.name).THRESHOLD,
            "source": one.source, "attention": one.roles.linear, "baseline": one.roles.softmax,
            "setup": one.setup, "number_is": load(one.name).NUMBER,
            **asdict(one.judgement),
        }
        for one in judged
    ]  # fmt: skip
    write_json(study / "claims.json", values)
    return judged


def summary(judged: list[Judged]) -> str:
    """The number of claims by source and verdict."""
    counts = Counter((one.source, one.judgement.verdict) for one in judged)
    sources = sorted({one.source for one in judged})
    return "; ".join(
        f"{source}: " + ", ".join(f"{v} {counts[source, v]}" for v in VERDICTS)
        for source in sources
    )


def format_rows(judged: list[Judged]) -> list[tuple[str, ...]]:
    """The columns of ``HEAD`` after the claim, one row for each judgement."""
    setups: dict[str, set[str]] = {}
    for one in judged:
        setups.setdefault(one.source, set()).update({one.setup} - {""})
    rows = []
    for one in judged:
        several = one.setup and len(setups[one.source]) > 1
        number, interval = one.judgement.number, one.judgement.interval
        ends = (None, None) if interval is None else (interval.low, interval.high)
        rows.append((
            one.roles.linear,
            f"{one.source}: {one.setup}" if several else one.source,
            one.judgement.verdict,
            _short(number),
            "" if interval is None else " to ".join(_short(end) or "open" for end in ends),
            one.judgement.why,
        ))  # fmt: skip
    return rows


def _short(number: float | None) -> str:
    """Three significant digits; numbers from 1,000 on, such as contexts, are written out."""
    if number is None:
        return ""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
