"""Time of every way to tokenize, by stage, on real documents: one core, ids compared.

    python benchmarks/tokenizing.py documents.json.gz --vocabulary gpt2.tiktoken

The documents are repeated to the size of ``SOURCE_BYTES`` and all tokenized, with a clock between
the stages of each batch. A fast encoder remembers words, so what it saves on documents that come
again is added back: encoding is also timed on documents that it has not seen, after all others,
and on the same ones again. Times are CPU seconds of this process; rounds go through all ways in
turn, and a ratio is formed within a round. What comes once a shard (the vocabulary, the comparison
of the fast encoder) is counted once, all else by tokens.

The baseline prepares data as nanoGPT does, but for its reader: gzip and ``json`` line by line,
``encode_ordinary``, a NumPy array, a file; no hash, no fingerprints of documents.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import tiktoken

from lmscaling.config.datasets import Corpus, Tokenizer
from lmscaling.config.validation import checked
from lmscaling.data import encoders, shards, sources, vocabulary
from lmscaling.data.encoders import Encode
from lmscaling.data.jsonlines import Lines
from lmscaling.data.tokenize import BATCH
from lmscaling.errors import UserError
from lmscaling.formatting import aligned

SOURCE_BYTES = 80_000_000
"""Of JSON: a tenth of a C4 shard."""

C4_TOKENS, C4_DOCUMENTS = 169_400_000, 356_317
"""Of a training shard of C4 en: 173.5 billion tokens in 1,024 shards; shard 0 was counted."""

ROUNDS, FOLDS = 5, 5
GPT2 = Tokenizer(encoding="gpt2", vocab_size=50257)
BASELINE = "nanoGPT-like"
STAGES = ("start", "read", "fingerprint", "encode", "compare", "join", "write")


@dataclass
class Way:
    """One way to tokenize."""

    name: str
    backend: str | None
    """Of a tokenizer row; none is the baseline."""
    encode: Callable[[], Encode]
    """Makes an encoder that has seen nothing."""
    seconds: list[dict[str, float]] = field(default_factory=list)
    """Of each round, by stage, for one C4 shard."""
    memory_bytes: int = 0
    identical: bool = True

    def totals(self) -> list[float]:
        return [sum(stages.values()) for stages in self.seconds]


def bench(files: list[Path], ranks: Path) -> str:
    """Time all ways that are installed; the table in words.

    Args:
        files: JSON lines whose documents are tokenized, each with a ``text``.
        ranks: GPT-2's vocabulary as ``vocabulary.fetch`` writes it.

    Raises:
        UserError: A file cannot be read, or is too small to be split.
    """
    texts = [text for file in files for text in Lines(file, "text")]
    if len(texts) < 10 * FOLDS:
        raise UserError(f"{len(texts)} documents were given; allowed: at least {10 * FOLDS}")
    encoder = vocabulary.encoding(GPT2, ranks)
    ways = list(_ways(encoder, ranks))
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "documents.json.gz"
        _write_source(files, source)
        for _ in range(ROUNDS):
            for way in ways:
                way.seconds.append(_round(way, source, texts, ranks))
        reference = encoders.buffers(encoder, texts)
        for way in ways:
            ids = way.encode()(texts)
            way.identical = all(map(np.array_equal, ids, reference))
            if way.backend:
                way.memory_bytes = _memory(source, way.backend, ranks, Path(name))
    return table(ways, len(texts))


def _ways(encoder: tiktoken.Encoding, ranks: Path) -> Iterator[Way]:
    simple, buffers = partial(encoders.simple, encoder), partial(encoders.buffers, encoder)
    yield Way(BASELINE, None, lambda: simple)
    yield Way("simple", "simple", lambda: simple)
    yield Way("tiktoken", "tiktoken", lambda: buffers)
    try:
        encoders.gigatoken(ranks)
    except UserError as reason:
        print(reason, file=sys.stderr)
    else:
        yield Way("gigatoken", "gigatoken", lambda: encoders.gigatoken(ranks))


def _write_source(files: list[Path], out: Path) -> None:
    """All documents, repeated, in one gzip file."""
    lines = b"".join(_unpacked(file) for file in files)
    repeats = max(1, SOURCE_BYTES // len(lines))
    with gzip.open(out, "wb", compresslevel=6) as file:
        for _ in range(repeats):
            file.write(lines)


def _unpacked(file: Path) -> bytes:
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return data.rstrip(b"\n") + b"\n"


class _Clock:
    """CPU seconds by stage: each mark ends the stage that it names."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._last = time.process_time()

    def mark(self, stage: str) -> None:
        now = time.process_time()
        self.seconds[stage] += now - self._last
        self._last = now


def _round(way: Way, source: Path, texts: list[str], ranks: Path) -> dict[str, float]:
    """Seconds by stage for as many tokens as a C4 shard has."""
    clock = _Clock()
    encoder = vocabulary.encoding(GPT2, ranks)
    encode = way.encode()
    clock.mark("start")
    out = source.with_name("train-00000.bin")
    if way.backend is None:
        n = _as_nanogpt(clock, encoder, source, out)
    else:
        n = _as_we_do(clock, encoder, encode, source, out)
    scaled = {k: v if k == "start" else v * C4_TOKENS / n for k, v in clock.seconds.items()}
    if way.backend == "gigatoken":
        again, tokens = _unseen_more_than_seen(way, texts)
        scaled["encode"] += again * C4_TOKENS / tokens
        scaled["compare"] = _comparing(encoder, texts)
    return scaled


def _as_nanogpt(clock: _Clock, encoder: tiktoken.Encoding, source: Path, out: Path) -> int:
    """Tokens written; a document at a time."""
    n = 0
    with gzip.open(source) as lines, out.open("wb") as file:
        for line in lines:
            text = json.loads(line)["text"]
            clock.mark("read")
            ids = encoder.encode_ordinary(text)
            ids.append(encoder.eot_token)
            array = np.array(ids, dtype=np.uint16)
            clock.mark("encode")
            array.tofile(file)
            n += len(array)
            clock.mark("write")
    return n


def _as_we_do(
    clock: _Clock, encoder: tiktoken.Encoding, encode: Encode, source: Path, out: Path
) -> int:
    """Tokens written; the stages of ``tokenize``, a batch at a time."""
    documents = iter(Lines(source, "text"))
    with shards.writing(out) as writer:
        while texts := list(islice(documents, BATCH)):
            clock.mark("read")
            for text in texts:
                sources.fingerprint(text)
            clock.mark("fingerprint")
            ids = encode(texts)
            clock.mark("encode")
            tokens = encoders.joined(ids, encoder.eot_token)
            clock.mark("join")
            writer.write(tokens)
            clock.mark("write")
    clock.mark("write")
    return writer.tokens


def _unseen_more_than_seen(way: Way, texts: list[str]) -> tuple[float, int]:
    """CPU seconds that all texts take longer unseen than seen; and their tokens."""
    seconds, tokens = 0.0, 0
    for k in range(FOLDS):
        encode, fold = way.encode(), texts[k::FOLDS]
        for j in range(FOLDS):
            if j != k:
                encode(texts[j::FOLDS])
        for sign in (1, -1):
            start = time.process_time()
            ids = encode(fold)
            seconds += sign * (time.process_time() - start)
        tokens += len(ids.flat) + len(ids.lengths)
    return seconds, tokens


def _comparing(encoder: tiktoken.Encoding, texts: list[str]) -> float:
    """CPU seconds to compare the documents of one shard with tiktoken's."""
    one = _cpu(lambda: encoders.buffers(encoder, texts)) / len(texts)
    return one * (encoders.FIRST + encoders.RANDOM)


def _cpu(do: Callable[[], object]) -> float:
    start = time.process_time()
    do()
    return time.process_time() - start


def _memory(source: Path, backend: str, ranks: Path, folder: Path) -> int:
    """Largest resident set of a process that tokenizes the source."""
    row = {"encoding": "gpt2", "vocab_size": 50257, "backend": backend}
    given = {"kind": "jsonl", "train": [str(source)], "validation": [str(source)]}
    values = {"dataset": "bench", "source": given, "tokenizer": "gpt2", "encoding": row}
    out = folder / backend
    command = [sys.executable, "-m", "lmscaling", "tokenize", "train-00000-00000", str(out)]
    child = subprocess.Popen(
        [*command, "--vocabulary", str(ranks)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert child.stdin
    child.stdin.write(checked(Corpus, values, "corpus").to_json(1).encode())
    child.stdin.close()
    peak = 0
    while child.poll() is None:
        peak = max(peak, _peak_bytes(child.pid))
        time.sleep(0.02)
    if child.returncode:
        raise UserError(f"backend {backend} did not tokenize {source}; it says why above")
    return peak


def _peak_bytes(pid: int) -> int:
    """Largest resident set of a process so far; 0 where the system does not say.

    The resources that ``wait4`` tells of begin with those of the process that forked.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return 1024 * int(found[0]) if found else 0


def table(ways: list[Way], n_documents: int) -> str:
    """One line per way: seconds of a C4 shard by stage, their sum, the ratio, memory, identity."""
    base = ways[0].totals()
    header = ["", *STAGES, "s/shard", "Mtok/s", "ratio", "(range)", "memory", "ids"]
    lines = [header]
    for way in ways:
        totals = way.totals()
        ratios = sorted(b / t for b, t in zip(base, totals, strict=True))
        middle = statistics.median(totals)
        stages = {s: statistics.median(r[s] for r in way.seconds) for s in STAGES}
        lines.append(
            [
                way.name,
                *(f"{stages[s]:.2f}" if stages[s] else "-" for s in STAGES),
                f"{middle:.1f}",
                f"{C4_TOKENS / middle / 1e6:.1f}",
                f"{statistics.median(ratios):.2f}",
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
                f"{way.memory_bytes / 1e6:.0f} MB" if way.memory_bytes else "-",
                "identical" if way.identical else "DIFFERENT",
            ]
        )
    note = (
        f"CPU seconds of one core for a C4 shard of {C4_TOKENS:,} tokens, extrapolated from "
        f"{n_documents:,} documents; medians of {ROUNDS} rounds; ratio: times as fast as the first "
        "line, least and most of the rounds"
    )
    return "\n".join([*aligned(lines, left={0, 13}), note])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines, gzip or plain")
    parser.add_argument(
        "--vocabulary", type=Path, required=True, help="as the verb vocabulary wrote it"
    )
    args = parser.parse_args()
    print(bench(args.files, args.vocabulary))


if __name__ == "__main__":
    main()
