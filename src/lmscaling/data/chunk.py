"""Many shards in one process, tokenized one after another, for a process takes seconds to start.

A shard that exists complete is kept, so a job that was killed or that comes late makes only the
rest. A shard that fails stops no other.
"""

import errno
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from lmscaling.config.datasets import Corpus
from lmscaling.config.types import Split
from lmscaling.data.tokenize import tokenize as tokenize_shard
from lmscaling.errors import UserError

FULL = {errno.ENOSPC, errno.EDQUOT}


def tokenize(
    corpus: Corpus,
    split: Split,
    shards: Iterable[int],
    folder: Path,
    is_missing: Callable[[int], bool],
    ranks: Path | None = None,
) -> int:
    """Tokenize the missing ones of some shards.

    Args:
        corpus: Dataset and tokenizer.
        split: ``"train"`` or ``"validation"``.
        shards: Numbers of the shards.
        folder: Folder of the shards.
        is_missing: Whether the folder lacks a shard; asked before each, for another job may make
            the same ones.
        ranks: File of the vocabulary.

    Returns:
        Number of shards that were missing.

    Raises:
        UserError: A shard could not be made; the others were.
    """
    n, problems = 0, []
    for shard in filter(is_missing, shards):
        n += 1
        out = folder / f"{split}-{shard:05d}.bin"
        try:
            made = tokenize_shard(corpus, split, shard, out, ranks)
        except UserError as error:
            if is_missing(shard):
                problems.append(f"{corpus.dataset} {split} shard {shard}: {error}")
        except OSError as error:
            if error.errno not in FULL:
                raise
            problems.append(
                f"{corpus.dataset} {split} shard {shard}: {folder}: {error.strerror}; make "
                "room, and run snakemake again, which keeps the shards that are complete"
            )
            break
        else:
            counts = f"{made['tokens']:,} tokens in {made['documents']:,} documents"
            print(f"tokenize: {out}: {counts}", file=sys.stderr, flush=True)
    if len(problems) > 1:
        problems.insert(0, f"{len(problems)} of {n} shards were not made")
    if problems:
        raise UserError("; ".join(problems))
    return n
