"""The table of the claims of the literature with their verdicts."""

from lmscaling import claims
from lmscaling.report.table import Table


def tables(judged: list[claims.Judged]) -> list[Table]:
    """One row for each claim and source of numbers; no rows if no claim could be tested."""
    untested = all(one.judgement.verdict == "not tested" for one in judged)
    queries = (
        f"SELECT '{name}' AS claim, count(*) AS rows FROM ({claims.default_query(name).rstrip()}\n)"
        for name in claims.NAMES
    )
    pairs = zip(judged, claims.format_rows(judged), strict=True)
    rows = tuple((one.claim.title, *row) for one, row in pairs)
    return [
        Table(
            name="claims",
            section="claims",
            title="Claims and verdicts",
            note="Published and measured numbers are judged separately. A claim holds if all "
            "numbers agree with it, fails if one of them contradicts it significantly after a "
            "correction for their number, and is not tested if there are no numbers or if "
            "they are too uncertain. The range of a loss is a 95 % interval by the study's "
            "seeds, or that of an assumed noise where it says if seeds differ by it, and "
            "contains every value that was averaged; other ranges are those of the values. "
            "The code of the claim defines number and range and gives the reason for the "
            "threshold. The query counts the rows that each claim is judged by. Other "
            "attentions and implementations of the study are candidates beside those that a "
            "claim names, and the study's baseline is the baseline. Claims that no study "
            "tests yet, with what would test them, are in docs/claims.md: "
            f"{', '.join(claims.UNTESTED)}.",
            query="\nUNION ALL\n".join(queries),
            head=claims.HEAD,
            rows=() if untested else rows,
            text=frozenset({0, 1, 2, 3, 5, 6}),
        )
    ]
