"""Losses without a model: of tables of n-grams of the training text, and those that are known.

A model whose loss is above that of a table of 3-grams has learned less than which byte follows two
others. The table of order n is interpolated with that of order n - 1 (Witten and Bell 1991,
doi:10.1109/18.87000, method C): after a context h that has been followed c(h) times, by t(h)
different tokens, p_n(w) = (c(hw) + t(h) p_(n-1)(w)) / (c(h) + t(h)), and p_0 is uniform. Tables
predict the same targets as the runs of a study, from as much of its text as its longest run reads.

Legend: N targets, V vocabulary.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lmscaling.config import study_file
from lmscaling.config.budget import parse_budget
from lmscaling.config.cell import Cell
from lmscaling.data import marks
from lmscaling.data.order import Order
from lmscaling.data.rows import Corpus
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.files import parse_json, write_lines
from lmscaling.records.floor import Floor
from lmscaling.records.run import line

ORDERS = 5

MOST = 2**25
"""Tokens that are counted at most: seconds, and less than 1 GB of memory."""


def write(study: Path) -> None:
    """Write ``floors/<text>.jsonl`` of each text of a study that runs train on.

    Only where its tokens are on this machine and its n-grams are numbers of 63 bits. A file that is
    newer than the tokens, of as many of them and for all contexts stays as it is.
    """
    record = study / "study.json"
    if not record.is_file():  # published numbers
        return
    grid = study_file.read_record(record).grid
    texts: dict[str, list[Cell]] = defaultdict(list)
    for cell in grid.runs.values():
        texts[cell.data.folder].append(cell)
    for text, cells in texts.items():
        out, manifest = study / f"floors/{text}.jsonl", study / f"tokens/{text}/manifest.json"
        if not manifest.is_file() or grid.corpora[text].encoding.n_vocab ** ORDERS >= 2**63:
            continue
        try:
            if found := _of_text(grid.corpora[text], cells, manifest, out):
                write_lines(out, map(line, found))
        except UserError as error:  # no figure needs the tokens
            print(f"{out} is not written: {error}", file=sys.stderr)


def _of_text(corpus: Corpus, cells: list[Cell], manifest: Path, out: Path) -> list[Floor]:
    """The floors of a text; none if ``out`` has them."""
    longest = max(cells, key=_budget)
    order = Order(longest.block_tokens, longest.seed) if longest.block_tokens else None
    train, validation = Stream(manifest, "train", order), Stream(manifest, "validation")
    counts = {
        "train_tokens": int(min(_budget(longest), train.tokens - 1, MOST)),
        "validation_tokens": min(
            max(cell.validation.tokens for cell in cells), validation.tokens - 1
        ),
    }
    contexts = {cell.context for cell in cells}
    if out.is_file() and out.stat().st_mtime >= manifest.stat().st_mtime:
        written = [parse_json(text, f"floor {out}") for text in out.read_bytes().splitlines()]
        has = {row.get("context") for row in written} - {None}
        if counts.items() <= written[0].items() and (not has or contexts <= has):
            return []
    pieces = train.pieces(1, counts["train_tokens"])
    tokens = np.concatenate([train.read(*piece) for piece in pieces])
    targets = validation.read(0, counts["validation_tokens"] + 1)
    task = marks.of(longest.data.source, longest.context)
    counted = task.of(targets[:-1]) > 0 if task else slice(None)
    tables = enumerate(ngram_losses(tokens, targets, corpus.encoding.n_vocab), 1)
    means = [(f"{n}-gram", None, float(losses[counted].mean())) for n, losses in tables]
    for context in sorted(contexts):
        known = corpus.source.known(context, targets)
        means += [(name, context, loss) for name, loss in known.items()]
    return [
        Floor(dataset=corpus.dataset, name=name, context=context, loss=loss, **counts)
        for name, context, loss in means
    ]


def _budget(cell: Cell) -> float:
    """Tokens of the budget of a cell; infinite of a time."""
    return parse_budget(cell.budget).updates(cell.update_tokens) * cell.update_tokens


def ngram_losses(train: np.ndarray, tokens: np.ndarray, n_vocab: int) -> Iterator[np.ndarray]:
    """Losses of N targets in nats, float64 ``[N]``, by tables of orders 1 to ``ORDERS``.

    Args:
        train: The tokens that are counted.
        tokens: N + 1 tokens; all but the first are targets. Those without n - 1 tokens before them
            are predicted by a table of a lower order.
        n_vocab: V.
    """
    p_N = np.full(len(tokens) - 1, 1 / n_vocab)
    for n in range(1, ORDERS + 1):
        keys = _keys(train, n, n_vocab)
        keys.sort()
        firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))  # of different n-grams
        asked = _keys(tokens, n, n_vocab)[-len(p_N) :]
        start, stop = (np.searchsorted(keys, asked, side) for side in ("left", "right"))
        context = asked // n_vocab * n_vocab
        low, high = np.searchsorted(keys, (context, context + n_vocab))
        t = np.searchsorted(firsts, high) - np.searchsorted(firsts, low)
        lower = p_N[-len(asked) :]
        mixed = (stop - start + t * lower) / np.maximum(high - low + t, 1)
        p_N[-len(asked) :] = np.where(high > low, mixed, lower)
        yield -np.log(p_N)


def _keys(tokens: np.ndarray, n: int, n_vocab: int) -> np.ndarray:
    """Each n consecutive tokens as digits of one number, int64 ``[len(tokens) - n + 1]``."""
    keys = np.zeros(len(tokens) - n + 1, dtype=np.int64)
    for i in range(n):
        keys *= n_vocab
        keys += tokens[i : i + len(keys)]
    return keys
