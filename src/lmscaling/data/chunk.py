"""Many shards in one process: their files are fetched at the same time, and they are tokenized one
after another.

A shard that exists complete is kept, so a job that was killed or that comes late makes only the
rest. A shard that fails stops no other.
"""

import errno
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lmscaling.config.datasets import Corpus, Dataset
from lmscaling.config.types import Split
from lmscaling.data.tokenize import tokenize as tokenize_shard
from lmscaling.errors import UserError
from lmscaling.files import described_at, read_json

FULL = {errno.ENOSPC, errno.EDQUOT}


def fetch(row: Dataset, files: list[str], folder: Path, at_once: int) -> int:
    """Fetch those of the files of a dataset that a folder does not have.

    Args:
        row: The dataset.
        files: Some of ``row.files``.
        folder: Where they go, under the same names.
        at_once: Largest number of simultaneous downloads.

    Returns:
        Size of all these files in bytes.

    Raises:
        UserError: A file could not be fetched; the others were.
    """
    n_bytes, problems = 0, []
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        for under_way in [pool.submit(_fetch_file, row, file, folder / file) for file in files]:
            try:
                n_bytes += under_way.result()
            except UserError as error:
                problems.append(str(error))
    _raise(problems, len(files), "files were not fetched")
    return n_bytes


def _fetch_file(row: Dataset, file: str, out: Path) -> int:
    """Size of a file, which is fetched unless it is there with its description."""
    if out.is_file() and described_at(out).is_file():
        described = read_json(described_at(out), "description of a fetched file")
        if described["bytes"] == out.stat().st_size:
            return described["bytes"]
    return row.fetch(file, out)["bytes"]


def tokenize(
    corpus: Corpus,
    split: Split,
    shards: Iterable[int],
    folder: Path,
    is_missing: Callable[[int], bool],
    sources: Path | None = None,
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
        sources: Folder of the fetched files. The file of a complete shard is deleted, unless
            training reads it too.
        ranks: File of the vocabulary.

    Returns:
        Number of shards that were missing.

    Raises:
        UserError: A shard could not be made; the others were.
    """
    n, problems = 0, []
    files, training = corpus.source.files(split), set(corpus.source.files("train"))
    for shard in shards:
        source = sources and sources / files[shard]
        if is_missing(shard):
            n += 1
            out = folder / f"{split}-{shard:05d}.bin"
            try:
                made = tokenize_shard(corpus, split, shard, out, source, ranks)
            except UserError as error:
                if is_missing(shard):
                    problems.append(f"{corpus.dataset} {split} shard {shard}: {error}")
                    continue
            except OSError as error:
                if error.errno not in FULL:
                    raise
                problems.append(
                    f"{corpus.dataset} {split} shard {shard}: {folder}: {error.strerror}; make "
                    "room, and run snakemake again, which keeps the shards that are complete"
                )
                break
            else:
                _say(f"{out}: {made['tokens']:,} tokens in {made['documents']:,} documents")
        if source and not (split == "validation" and files[shard] in training):
            source.unlink(missing_ok=True)
    _raise(problems, n, "shards were not made")
    return n


def _raise(problems: list[str], n: int, what: str) -> None:
    """Raise the problems of some of n tasks, if there are any, as one error.

    What all have in common, as a hub that cannot be reached, is said once.
    """
    if len(problems) > 1:
        problems.insert(0, f"{len(problems)} of {n} {what}")
    if problems:
        raise UserError("; ".join(dict.fromkeys(problems)))


def _say(sentence: str) -> None:
    print(f"tokenize: {sentence}", file=sys.stderr, flush=True)
