"""How fast one process reads tokens as the trainer does, beside a bare read of the same bytes.

    python benchmarks/stream.py

An update of 2^19 tokens is read from shards in the page cache, turned into int64 and cut into
micro-batches of one sequence, at every context; then the same with the position of each token in
its own document. The limit is `os.preadv` of the same bytes into memory that is already there. All
ways take turns; prints the median with quartiles, and the share of the fastest bare read.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lmscaling.config import grid, study_file
from lmscaling.config.validation import checked
from lmscaling.data import shards
from lmscaling.data.order import Order
from lmscaling.data.rows import Corpus
from lmscaling.data.stream import Stream
from lmscaling.data.tokenize import tokenize
from lmscaling.train.data import Updates
from lmscaling.train.module import micro_batches

ROOT = Path(__file__).parents[1]
UPDATE_TOKENS = 2**19
BLOCK_TOKENS = 2**17
CONTEXTS = [2**i for i in range(8, 18)]
CALLS = 5
"""Calls of each way in a turn, timed together."""
DOCUMENT_TOKENS, DOCUMENTS = 475, 2**13
"""Mean length of a document of C4, and documents in a shard: more than seven updates."""


def tokens(folder: Path) -> Path:
    """Two shards of random characters, one a token, in documents as long as those of C4."""
    rng = np.random.default_rng(0)
    for name, n in (("a", DOCUMENTS), ("b", DOCUMENTS), ("v", 1)):
        texts = rng.integers(97, 123, (n, DOCUMENT_TOKENS)).astype(np.uint8)
        lines = [json.dumps({"text": text.tobytes().decode()}) for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    a, b, v = (str(folder / f"{name}.jsonl") for name in "abv")
    values = {
        "dataset": "random",
        "source": {"kind": "jsonl", "train": [a, b], "validation": [v]},
        "tokenizer": "bytes",
        "encoding": {"encoding": "bytes", "vocab_size": 257},
    }
    corpus = checked(Corpus, values, "corpus")
    tokenize(corpus, "validation", 0, folder / "validation-00000.bin")
    for shard in (0, 1):
        tokenize(corpus, "train", shard, folder / f"train-{shard:05d}.bin")
    shards.write_manifest(folder / "manifest.json", {"train": 2, "validation": 1})
    return folder / "manifest.json"


def ways(stream: Stream) -> dict[str, Callable[[int], object]]:
    """What is timed, by name: each takes the number of an update."""
    file = os.open(stream.folder / stream.shards[0].file, os.O_RDONLY)
    there = memoryview(bytearray(2 * UPDATE_TOKENS))
    study = study_file.read_study([ROOT / "config/study.yaml"])
    cell = replace(next(iter(grid.expand(study).cells.values())), epochs=10**4, gpus=0)
    slabs = iter(Updates(stream, cell, done=0, rank=0, world=1))

    def limit(update: int) -> None:
        assert os.preadv(file, [there], shards.HEADER_BYTES) == len(there)

    shuffled = Stream(stream.folder / "manifest.json", "train", order=Order(BLOCK_TOKENS, 0))

    def read(update: int) -> None:
        stream.slab(update, UPDATE_TOKENS)

    def read_shuffled(update: int) -> None:
        shuffled.slab(update, UPDATE_TOKENS)

    def positions(update: int) -> None:
        inputs, _ = stream.slab(update, UPDATE_TOKENS)
        [(start, _)] = stream.pieces(update, UPDATE_TOKENS)
        stream.positions(start, inputs)

    def trained(context: int) -> Callable[[int], object]:
        return lambda update: list(micro_batches(next(slabs), context, 1))

    return {
        "bare read": limit,
        "slab": read,
        "slab of shuffled blocks": read_shuffled,
        "slab and positions": positions,
        **{f"batches of {context:,}": trained(context) for context in CONTEXTS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=30, help="measurements of each way")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        stream = Stream(tokens(Path(folder)), "train")
        timed = ways(stream)
        seconds = {name: [] for name in timed}
        for update in range(1, repeats + 2):
            for name, way in timed.items():
                way(update)  # what another way has thrown out of the caches is not its cost
                start = time.perf_counter()
                for _ in range(CALLS):
                    way(update)
                seconds[name].append((time.perf_counter() - start) / CALLS)
    limit = min(seconds["bare read"])
    for name, all_of_them in seconds.items():
        low, middle, high = statistics.quantiles(all_of_them[1:], n=4)  # the first is a warm-up
        rates = [UPDATE_TOKENS / s / 1e6 for s in (middle, high, low)]
        print(
            f"{name:>20}: {rates[0]:7,.0f} million tokens/s "
            f"({rates[1]:,.0f} to {rates[2]:,.0f}), {limit / middle:.1%} of the limit"
        )


if __name__ == "__main__":
    main()
