"""A note below figures of losses: the share of tokens by the length of preceding document text.

A context longer than that contains other documents, which help little to predict a token. Without
this note a reader would attribute the effect of document lengths to the attention.
"""

from duckdb import DuckDBPyConnection
from pandas import DataFrame

from lmscaling.figures.shared import style

QUERY = """
    SELECT dataset, documents, map_from_entries(list((before, share) ORDER BY before))
    FROM own_context WHERE before <= ? AND list_contains(?, dataset)
    GROUP BY dataset, documents ORDER BY dataset
"""

DATASETS = "SELECT DISTINCT dataset FROM known WHERE list_contains(?, source)"

MOST = 4
"""Contexts listed for each dataset."""


def note(db: DuckDBPyConnection, rows: DataFrame) -> str:
    """A sentence for each dataset in the rows of a figure; empty if they are no losses by
    context."""
    if rows.empty or "context" not in rows or "setup" in rows or not {"loss", "val_loss"} & {*rows}:
        return ""
    if "dataset" in rows:
        datasets = rows.dataset.unique().tolist()
    else:
        sources = rows.source.unique().tolist() if "source" in rows else ["measured"]
        datasets = [name for (name,) in db.execute(DATASETS, [sources]).fetchall()]
    contexts = {*rows.context.astype(int)}
    counts = db.execute(QUERY, [max(contexts), datasets]).fetchall()
    return "\n".join(
        _sentence(dataset, documents, shares, contexts) for dataset, documents, shares in counts
    )


def _sentence(
    dataset: str, documents: int | None, shares: dict[int, float], contexts: set[int]
) -> str:
    """Shares at some of the contexts, the last at the shortest length that no token reaches."""
    known = [n for n in shares if n in contexts or not shares[n]] or [max(shares)]
    listed = style.spread(known, MOST)
    first, *others = [(_percent(shares[n]), f"{n:,}") for n in listed]
    text = f"{first[0]} of tokens are preceded by at least {first[1]} tokens of their own document"
    if not shares[listed[0]]:
        text = f"no token is preceded by {first[1]} tokens of its own document"
    text += "".join(f", {share} by {n}" for share, n in others)
    text += f" ({documents:,} documents)" if documents else ""
    return style.filled(f"In {dataset}, {text}.")


def _percent(share: float) -> str:
    """Two significant digits, three from 99 % on."""
    if not share:
        return "none"
    percent = 100 * share
    digits = ".2g" if percent < 10 else ".0f" if percent < 99 else ".3g"
    return f"{percent:{digits}} %"
