"""What figures of losses say of the text: how much of it has how much of its own document before.

Beyond that, a longer context holds other documents, from which little is learned: without this line
a reader would take the length of documents for a property of an attention.
"""

import textwrap

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
"""Shares that a sentence names."""
WIDTH = 128
"""Characters of a line as wide as the page."""


def words(db: DuckDBPyConnection, rows: DataFrame) -> str:
    """A sentence for each dataset of a figure's rows; empty if they hold no loss at a context."""
    if rows.empty or "context" not in rows or "setup" in rows or not {"loss", "val_loss"} & {*rows}:
        return ""
    if "dataset" in rows:
        datasets = rows.dataset.unique().tolist()
    else:
        sources = rows.source.unique().tolist() if "source" in rows else ["measured"]
        datasets = [name for (name,) in db.execute(DATASETS, [sources]).fetchall()]
    contexts = {*rows.context.astype(int)}
    found = db.execute(QUERY, [max(contexts), datasets]).fetchall()
    return "\n".join(
        _sentence(dataset, documents, shares, contexts) for dataset, documents, shares in found
    )


def _sentence(
    dataset: str, documents: int | None, shares: dict[int, float], contexts: set[int]
) -> str:
    """Shares at some of the contexts, the last of them at the least that no token has."""
    known = [n for n in shares if n in contexts or not shares[n]] or [max(shares)]
    named = style.spread(known, MOST)
    first, *others = [(_percent(shares[n]), f"{n:,}") for n in named]
    said = f"{first[0]} of tokens have {first[1]} of their own document before them"
    if not shares[named[0]]:
        said = f"no token has {first[1]} of its own document before it"
    said += "".join(f", {share} {n}" for share, n in others)
    said += f" ({documents:,} documents)" if documents else ""
    return textwrap.fill(f"In {dataset}, {said}.", WIDTH)


def _percent(share: float) -> str:
    """With two digits, or one more near all."""
    if not share:
        return "none"
    percent = 100 * share
    digits = ".2g" if percent < 10 else ".0f" if percent < 99 else ".3g"
    return f"{percent:{digits}} %"
