"""Claims of the literature, one module each, judged by the results of a study.

A module in this folder has a docstring of three paragraphs (the claim in our own words, its source,
the criterion), ``ROLES``, a ``QUERY`` over the views of the store, ``NUMBER`` (the meaning of the
number in a judgement), a ``THRESHOLD`` with its reason, and ``judge(rows) -> Judgement``. A claim
about losses also has an ``AXIS``: what is equal where they are compared, as its source states it.
The rows are those of one source, ``published`` or ``measured``, and of one setup if the query has
that column: measurements of different setups are never combined. Without rows ``judge`` states what
is missing.

``ROLES`` are what the claim speaks of, by role: an attention (``linear``), or an attention and its
implementation (``linear chunked``). The query names a role as ``$candidate`` or ``$baseline``, and
sentences as ``{candidate}`` or ``{baseline}``. In a study other attentions and implementations also
play the candidate, and the study's own baseline the baseline. A claim without a role
``candidate`` speaks of what its source names, and of nothing else. Where a source compares with
FlashAttention, ``softmax fused`` is the fastest softmax of each point that stores no matrix of
weights; the explanation names it.
"""

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
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
from lmscaling.fits.uncertainty import Interval
from lmscaling.store.build import connect

Roles = dict[str, str]
"""Attentions, or methods of the view ``speeds``, by role."""

OTHERS = """
    WITH compared AS (
        SELECT coalesce(any_value(baseline), 'softmax') AS baseline
        FROM known WHERE source = 'measured'
    )
    SELECT attention, attention AS method, baseline FROM known WHERE source = 'measured'
    UNION
    SELECT attention, method, baseline FROM speeds, compared
    WHERE source = 'measured' AND kind <> 'time_ceiling' AND attention <> 'peer'
    ORDER BY ALL
"""
"""What may play the candidate of a claim, and the baseline of its study."""

FAILED = """
    SELECT attention, count(*)::INTEGER FROM outcomes
    WHERE source = 'measured' AND outcome = 'failed' AND branch IS NULL
    GROUP BY attention ORDER BY attention
"""
"""Runs that diverged or exploded, and have no loss to compare."""

FORMS = {
    "linear attention", "linear attention_parallel_no_flash", "linear attention_parallel",
    "linear state", "linear state_parallel",
}  # fmt: skip
"""Forms of linear attention that claims compare chunks with."""

HEAD = ("claim", "candidate", "source", "verdict", "number", "range", "why")


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
    name: str,
    rows: DataFrame,
    sources: Iterable[str],
    roles: Roles | None = None,
    failed: Mapping[str, int] | None = None,
) -> list[Judged]:
    """Judge one claim by the rows of its query, separately for each source and setup.

    ``failed`` is the number of failed runs of the study by attention: a claim about losses says how
    many it leaves out.
    """
    cast: Roles = load(name).ROLES if roles is None else roles
    judged = []
    for source in sources:
        of_source = rows.loc[rows.source == source]
        # Without rows there is no setup; judge() then states what is missing.
        setups = of_source.setup.unique().tolist() if "setup" in rows else []
        for setup in setups or [""]:
            part = of_source.loc[of_source.setup == setup] if setups else of_source
            judgement = load(name).judge(part.reset_index(drop=True))
            lost = {a: n for a, n in (failed or {}).items() if a in cast.values()}
            left_out = "".join(
                f" Left out: {n} {'run' if n == 1 else 'runs'} of {attention} that failed."
                for attention, n in lost.items()
                if source == "measured" and len(part) and "seed" in part
            )
            fused = sorted(part.fused.dropna().unique()) if "fused" in part else []
            against = f" Softmax fused is {' or '.join(fused)}." if fused else ""
            why = judgement.why.format_map(cast) + against + left_out
            judgement = replace(judgement, why=why)
            judged.append(
                Judged(
                    name=name, claim=claim(name), source=source, roles=cast, setup=setup,
                    judgement=judgement,
                )
            )  # fmt: skip
    return judged


def judge_all(db: duckdb.DuckDBPyConnection) -> list[Judged]:
    """Judge every claim by every source of a connected store, and by what else plays its roles in
    the study, as far as it tests the claim."""
    query = "SELECT source FROM cells UNION SELECT source FROM measurements ORDER BY source"
    sources = [source for (source,) in db.sql(query).fetchall()] or ["measured"]
    others, failed = db.sql(OTHERS).fetchall(), dict(db.sql(FAILED).fetchall())
    judged = []
    for name in registry.claims():
        judged += judge(name, rows_of(db, name, load(name).ROLES), sources, None, failed)
        for roles in _casts(load(name).ROLES, others):
            own = judge(name, rows_of(db, name, roles), ["measured"], roles, failed)
            judged += [one for one in own if one.judgement.verdict != "not tested"]
    return judged


def rows_of(db: duckdb.DuckDBPyConnection, name: str, roles: Roles) -> DataFrame:
    """The rows that a claim is judged by."""
    return db.execute(load(name).QUERY, roles).df()


def default_query(name: str) -> str:
    """The query of a claim with the names that its source gives to the roles."""
    query = load(name).QUERY
    for role, player in load(name).ROLES.items():
        query = query.replace(f"${role}", f"'{player}'")
    return query


def _casts(claimed: Roles, others: list[tuple[str, str, str]]) -> list[Roles]:
    """The roles of a claim as a study plays them, without those of its source."""
    if "candidate" not in claimed:
        return []
    by_method = " " in claimed["candidate"]
    usual = claimed.get("baseline", "")
    casts = []
    for attention, method, baseline in others:
        candidate = method if by_method else attention
        if attention == baseline or candidate in FORMS:
            continue
        opponents = {m if by_method else a: None for a, m, _ in others if a == baseline}
        for opponent in [usual] if baseline == usual.partition(" ")[0] else opponents:
            cast = {"candidate": candidate, "baseline": opponent}
            cast = {role: cast[role] for role in claimed}
            if cast != claimed and cast not in casts:
                casts.append(cast)
    return casts


def text(judged: list[Judged], width: int | None = None) -> str:
    """All judgements for the terminal: a line of aligned columns each, and below it the reason,
    wrapped to the ``width`` of the terminal."""
    width = width or min(shutil.get_terminal_size((100, 24)).columns, 120)
    rows = [(one.name, *row) for one, row in zip(judged, format_rows(judged), strict=True)]
    lines = formatting.aligned(
        [list(HEAD[:-1]), *(list(row[:-1]) for row in rows)], left={0, 1, 2, 3, 5}
    )
    text = lines[:1]
    for line, row in zip(lines[1:], rows, strict=True):
        text += [line, *textwrap.wrap(row[-1], width, initial_indent="    ",
                                      subsequent_indent="    ")]  # fmt: skip
    return "\n".join(text)


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
            "axis": getattr(load(one.name), "AXIS", None), "source": one.source,
            "roles": one.roles, "setup": one.setup, "number_is": load(one.name).NUMBER,
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
        rows.append((
            one.roles.get("candidate", ""),
            f"{one.source}: {one.setup}" if several else one.source,
            one.judgement.verdict,
            _short(one.judgement.number),
            _range(one.judgement.interval),
            one.judgement.why,
        ))  # fmt: skip
    return rows


def _short(number: float | None) -> str:
    """Three significant digits; numbers from 1,000 on, such as contexts, are written out."""
    if number is None:
        return ""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _range(interval: Interval | None) -> str:
    """An interval, and what it assumes."""
    if interval is None:
        return ""
    ends = " to ".join(_short(end) or "open" for end in (interval.low, interval.high))
    return ends if interval.assumed is None else f"{ends} if seeds differ by {interval.assumed:g}"
