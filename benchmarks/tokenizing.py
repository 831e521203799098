"""CPU seconds of tokenizing one shard of C4 by stage, beside nanoGPT's way, on one core.

    python benchmarks/tokenizing.py documents.json.gz --vocabulary gpt2.tiktoken

The documents are repeated to the size of ``SOURCE_BYTES`` of JSON. nanoGPT's way reads gzip and
``json`` line by line, and makes a list and an array of each document; it makes no hash. Rounds take
turns, and a ratio is formed within a round. Seconds are scaled to the tokens of a C4 shard.
"""

import argparse
import gzip
import json
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import tiktoken

from lmscaling.data import documents, shards, vocabulary
from lmscaling.data.rows import Tokenizer
from lmscaling.data.tokenize import BATCH, encode, joined

SOURCE_BYTES = 80_000_000
"""A tenth of a C4 shard."""

C4_TOKENS = 169_400_000
"""Of a training shard of C4 en: 173.5 billion tokens in 1,024 shards; shard 0 was counted."""

ROUNDS = 5
STAGES: tuple[str, ...] = ("read", "fingerprint", "encode", "write")


def ours(encoder: tiktoken.Encoding, source: Path, out: Path) -> tuple[dict[str, float], int]:
    """CPU seconds by stage, and tokens."""
    seconds, last = dict.fromkeys(STAGES, 0.0), time.process_time()

    def mark(stage: str) -> None:
        nonlocal last
        now = time.process_time()
        seconds[stage] += now - last
        last = now

    texts = documents.of_records(str(source), "text").texts
    with shards.writing(out) as writer:
        while batch := list(islice(texts, BATCH)):
            mark("read")
            for text in batch:
                documents.fingerprint(text)
            mark("fingerprint")
            ids = encode(encoder, batch)
            mark("encode")
            writer.write(joined(ids, encoder.eot_token))
            mark("write")
    return seconds, writer.tokens


def of_nanogpt(encoder: tiktoken.Encoding, source: Path, out: Path) -> tuple[float, int]:
    """CPU seconds and tokens; a document at a time."""
    start, n = time.process_time(), 0
    with gzip.open(source) as lines, out.open("wb") as file:
        for line in lines:
            ids = [*encoder.encode_ordinary(json.loads(line)["text"]), encoder.eot_token]
            np.array(ids, dtype=np.uint16).tofile(file)
            n += len(ids)
    return time.process_time() - start, n


def bench(files: list[Path], ranks: Path) -> str:
    encoder = vocabulary.encoding(Tokenizer(encoding="gpt2"), ranks)
    lines = b"".join(gzip.decompress(file.read_bytes()).rstrip(b"\n") + b"\n" for file in files)
    stages, theirs, ratios = [], [], []
    with tempfile.TemporaryDirectory() as name:
        source, out = Path(name, "documents.json.gz"), Path(name, "train-00000.bin")
        source.write_bytes(gzip.compress(lines * max(1, SOURCE_BYTES // len(lines)), 6))
        ours(encoder, source, out)  # loads datasets
        for _ in range(ROUNDS):
            seconds, n = ours(encoder, source, out)
            other, m = of_nanogpt(encoder, source, out)
            assert n == m
            stages.append({k: v * C4_TOKENS / n for k, v in seconds.items()})
            theirs.append(other * C4_TOKENS / n)
            ratios.append(theirs[-1] / sum(stages[-1].values()))
    parts = {k: statistics.median(one[k] for one in stages) for k in STAGES}
    total = statistics.median(sum(one.values()) for one in stages)
    said = ", ".join(f"{k} {v:.1f}" for k, v in parts.items())
    return (
        f"{total:.1f} s a shard: {said}; nanoGPT's way {statistics.median(theirs):.1f} s, "
        f"{statistics.median(ratios):.2f} times as long ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines, .gz")
    parser.add_argument("--vocabulary", type=Path, required=True, help="gpt2.tiktoken")
    args = parser.parse_args()
    print(bench(args.files, args.vocabulary))
