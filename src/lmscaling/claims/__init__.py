"""Claims of the literature, judged by the results of a study.

Claims about times are rows of ``timed.yaml``, and those that no study tests yet of
``untested.yaml``. Others are one module each in this folder, with a
docstring of three paragraphs (the claim in our own words, its source, the criterion), a ``QUERY``
over the views of the store, ``NUMBER`` (the meaning of the number in a judgement), a ``THRESHOLD``
with its reason, ``judge(rows) -> Judgement``, ``ROLES`` if they are not linear and softmax, and if
it is about losses an ``AXIS``: what is equal where they are compared, as its source states it.
Rows are those of one source, ``published`` or ``measured``, and of one setup if the query has that
column: measurements of different setups are never combined. Without rows the judgement states what
is missing.

Roles are what the claim speaks of: an attention (``linear``), or an attention and its
implementation (``linear chunked``). The query names a role as ``$candidate`` or ``$baseline``, and
sentences as ``{candidate}`` or ``{baseline}``. In a study other attentions and implementations also
play the candidate, if the claim is about a form only other forms of its attention, and the study's
own baseline the baseline. A claim without a candidate speaks of what its source names, and of
nothing else. Where a source compares with FlashAttention, ``softmax fused`` is the fastest softmax
of each point that stores no matrix of weights; the explanation names it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from string import Template

import duckdb
from pandas import DataFrame

from lmscaling import formatting, registry
from lmscaling.claims._judgement import VERDICTS, Claim, Judgement, untested
from lmscaling.claims._timed import TIMED, read_rows
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

WHOLE = ("linear attention", "linear state")
"""Beginnings of the forms of linear attention without chunks. Claims compare chunks with them, so
that they play no candidate."""

ON_CPU = "SELECT DISTINCT setup FROM measurements WHERE dtype = 'float32'"
"""Setups without a GPU, on which products are in bfloat16."""

NAMES = sorted([*TIMED, *registry.sources("claims")])
"""Names of all claims: rows of the table and files of this folder."""

UNTESTED = read_rows("untested.yaml")
"""``title`` and ``reference`` of claims that no study tests yet, and the ``test`` that would."""

HEAD = ("claim", "candidate", "source", "verdict", "number", "range", "why")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim judged by one source of numbers."""

    claim: Claim
    source: str
    """``published`` or ``measured``."""
    roles: Roles
    setup: str
    """Hardware and versions; empty if the claim does not depend on them or nothing was measured."""
    judgement: Judgement


@cache
def load(name: str) -> Claim:
    """A claim by its name.

    Raises:
        UserError: No claim has this name.
    """
    if name not in NAMES:
        raise UserError(f"claim {name!r} does not exist; {choose(name, NAMES)}")
    if name in TIMED:
        return TIMED[name]
    module = import_module(f"{__name__}.{name}")
    assert module.__doc__
    title, reference, judged = (
        " ".join(part.split()) for part in module.__doc__.strip().split("\n\n")
    )
    return Claim(
        name=name, title=title, reference=reference, judged=judged, query=module.QUERY,
        number=module.NUMBER, threshold=module.THRESHOLD, judge=module.judge,
        roles=getattr(module, "ROLES", {"candidate": "linear", "baseline": "softmax"}),
        axis=getattr(module, "AXIS", None),
    )  # fmt: skip


def judge(
    name: str,
    rows: DataFrame,
    sources: Iterable[str],
    roles: Roles | None = None,
    failed: Mapping[str, int] | None = None,
    on_cpu: Collection[str] = (),
) -> list[Judged]:
    """Judge one claim by the rows of its query, separately for each source and setup.

    Args:
        name: Of the claim.
        rows: Of its query.
        sources: Of which each is judged.
        roles: Who plays them, if others than in the source of the claim.
        failed: Failed runs of the study by attention: a claim about losses says how many it leaves
            out.
        on_cpu: Setups on which a claim about a GPU is not tested.
    """
    claim = load(name)
    cast = claim.roles if roles is None else roles
    judged = []
    for source in sources:
        of_source = rows.loc[rows.source == source]
        # Without rows there is no setup; the judgement then states what is missing.
        setups = of_source.setup.unique().tolist() if "setup" in rows else []
        for setup in setups or [""]:
            part = of_source.loc[of_source.setup == setup] if setups else of_source
            if claim.of_gpu and setup in on_cpu:
                judgement = untested("The claim is about times on a GPU, and these are of a CPU.")
            else:
                judgement = claim.judge(part.reset_index(drop=True))
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
                Judged(claim=claim, source=source, roles=cast, setup=setup, judgement=judgement)
            )
    return judged


def judge_all(db: duckdb.DuckDBPyConnection) -> list[Judged]:
    """Judge every claim by every source of a connected store, and by what else plays its roles in
    the study, as far as it tests the claim."""
    query = "SELECT source FROM cells UNION SELECT source FROM measurements ORDER BY source"
    sources = [source for (source,) in db.sql(query).fetchall()] or ["measured"]
    others, failed = db.sql(OTHERS).fetchall(), dict(db.sql(FAILED).fetchall())
    on_cpu = {setup for (setup,) in db.sql(ON_CPU).fetchall()}
    judged = []
    for name in NAMES:
        rows = rows_of(db, name, load(name).roles)
        judged += judge(name, rows, sources, None, failed, on_cpu)
        for roles in _casts(load(name), others):
            rows = rows_of(db, name, roles)
            own = judge(name, rows, ["measured"], roles, failed, on_cpu)
            judged += [one for one in own if one.judgement.verdict != "not tested"]
    return judged


def rows_of(db: duckdb.DuckDBPyConnection, name: str, roles: Roles) -> DataFrame:
    """The rows that a claim is judged by."""
    return db.execute(load(name).query, roles).df()


def default_query(name: str) -> str:
    """The query of a claim with the names that its source gives to the roles."""
    players = {role: f"'{player}'" for role, player in load(name).roles.items()}
    return Template(load(name).query).substitute(players)


def _casts(claim: Claim, others: list[tuple[str, str, str]]) -> list[Roles]:
    """The roles of a claim as a study plays them, without those of its source."""
    claimed = claim.roles
    if "candidate" not in claimed:
        return []
    of, by_method, _ = claimed["candidate"].partition(" ")
    usual = claimed.get("baseline", "")
    casts = []
    for attention, method, baseline in others:
        candidate = method if by_method else attention
        if attention == baseline or candidate.startswith(WHOLE):
            continue
        if claim.of_form and attention != of:
            continue
        opponents = {m if by_method else a: None for a, m, _ in others if a == baseline}
        for opponent in [usual] if baseline == usual.partition(" ")[0] else opponents:
            cast = {"candidate": candidate, "baseline": opponent}
            cast = {role: cast[role] for role in claimed}
            if cast != claimed and cast not in casts:
                casts.append(cast)
    return casts


def text(judged: list[Judged]) -> str:
    """All judgements for the terminal: a line of aligned columns each, with the reason."""
    rows = [[one.claim.name, *row] for one, row in zip(judged, format_rows(judged), strict=True)]
    return "\n".join(formatting.noted([[*HEAD[:-1], ""], *rows], left={0, 1, 2, 3, 5}))


def write(study: Path) -> list[Judged]:
    """Judge all claims by ``results/<study>/store/`` and write ``claims.json`` there.

    Raises:
        UserError: The exports of the store are missing.
    """
    with connect(study / "store") as db:
        judged = judge_all(db)
    values = [
        {
            "name": one.claim.name, "title": one.claim.title, "reference": one.claim.reference,
            "judged": one.claim.judged, "threshold": one.claim.threshold, "axis": one.claim.axis,
            "source": one.source, "roles": one.roles, "setup": one.setup,
            "number_is": one.claim.number, **asdict(one.judgement),
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
        candidate, baseline = (one.roles.get(role, "") for role in ("candidate", "baseline"))
        is_usual = baseline == one.claim.roles.get("baseline", "")
        rows.append((
            candidate if is_usual else f"{candidate} against {baseline}",
            f"{one.source}: {one.setup}" if several else one.source,
            f"{one.judgement.verdict} {one.judgement.scope}".strip(),
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
    return ends if interval.assumed is None else f"{ends} if seeds differ by {interval.assumed:.2g}"
