"""Time of every way to tokenize, by stage, on real documents: one core, ids compared.

The stages that do not depend on what a text says (reading, digests, joining, writing) are timed on
the documents repeated to the size of ``SOURCE_BYTES``. Encoding is timed on documents that the
encoder has not seen, after it has seen all others: a fast encoder remembers words, and a document
that comes twice would be found and not encoded. Times are CPU seconds of this process; rounds go
through all ways in turn, and a ratio is formed within a round.

The baseline prepares data as nanoGPT does: ``datasets`` row by row, ``encode_ordinary``, a NumPy
array, a file; no hash, no digest of documents.
"""

import gzip
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import tiktoken

from lmscaling import corpus, encoders, shards, vocabulary
from lmscaling.columns import aligned
from lmscaling.encoders import Encode, Ids
from lmscaling.errors import UserError
from lmscaling.explain import checked
from lmscaling.jsonlines import Lines
from lmscaling.rows import Corpus, Tokenizer

SOURCE_BYTES = 80_000_000
"""Of JSON: a tenth of a C4 shard."""

C4_TOKENS, C4_DOCUMENTS = 169_400_000, 356_317
"""Of a training shard of C4 en: 173.5 billion tokens in 1,024 shards; shard 0 was counted."""

ROUNDS, FOLDS = 5, 5
BASELINE = "nanoGPT-like"
STAGES = ("read", "digest", "encode", "compare", "join", "write")


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
        raise UserError(f"bench tokenize got {len(texts)} documents; allowed: from {10 * FOLDS} on")
    row = Tokenizer(encoding="gpt2", vocab_size=50257)
    encoder = vocabulary.encoding(row, ranks)
    ways = list(_ways(encoder, ranks))
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "documents.json.gz"
        repeats = _write_source(files, source)
        for _ in range(ROUNDS):
            for way in ways:
                way.seconds.append(_round(way, source, texts, repeats, encoder))
        reference = encoders.buffers(encoder, texts)
        for way in ways:
            made = way.encode()(texts)
            way.identical = all(map(np.array_equal, made, reference))
            if way.backend:
                way.memory_bytes = _memory(source, way.backend, ranks, Path(name))
    return table(ways, len(texts), len(reference.flat) * repeats)


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


def _write_source(files: list[Path], out: Path) -> int:
    """All documents again and again in one gzip file; how many times."""
    lines = b"".join(_unpacked(file) for file in files)
    repeats = max(1, SOURCE_BYTES // len(lines))
    with gzip.open(out, "wb", compresslevel=6) as file:
        for _ in range(repeats):
            file.write(lines)
    return repeats


def _unpacked(file: Path) -> bytes:
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return data.rstrip(b"\n") + b"\n"


def _round(
    way: Way, source: Path, texts: list[str], repeats: int, encoder: tiktoken.Encoding
) -> dict[str, float]:
    """Seconds by stage for as many tokens as a C4 shard has."""
    encode, ids = _encoding_seconds(way, texts)
    n = len(ids.flat) + len(ids.lengths)
    shard, per_repeat = C4_TOKENS / n, C4_TOKENS / (n * repeats)
    seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    simple = way.backend in (None, "simple")
    read = corpus.through_datasets(source, "text") if simple else Lines(source, "text")
    seconds["read"] = _cpu(lambda: sum(1 for _ in read)) * per_repeat
    seconds["encode"] = encode * shard
    if way.backend:
        seconds["digest"] = _cpu(lambda: [corpus.digest(text) for text in texts]) * shard
        seconds["join"] = _cpu(lambda: encoders.joined(ids, encoder.eot_token)) * shard
    if way.backend == "gigatoken":
        one = _cpu(lambda: encoders.buffers(encoder, texts)) / len(texts)
        drawn = encoders.Compared(lambda _: ids, lambda _: ids, "seed")
        drawn.seen = encoders.FIRST
        seconds["compare"] = one * (encoders.FIRST + encoders.RANDOM)
        seconds["compare"] += _cpu(lambda: drawn(texts)) * C4_DOCUMENTS / len(texts)
    stream = encoders.joined(ids, encoder.eot_token)
    out = source.with_name("train-00000.bin")
    seconds["write"] = _cpu(lambda: _write(out, stream, way)) * shard
    return seconds


def _encoding_seconds(way: Way, texts: list[str]) -> tuple[float, Ids]:
    """CPU seconds for all texts, each unseen when it was encoded; and their ids."""
    seconds, made = 0.0, []
    for k in range(FOLDS):
        encode = way.encode()
        fold = texts[k::FOLDS]
        if way.backend == "gigatoken":
            for j in range(FOLDS):
                if j != k:
                    encode(texts[j::FOLDS])
        start = time.process_time()
        made.append(encode(fold))
        seconds += time.process_time() - start
    ids = (np.concatenate(parts) for parts in zip(*made, strict=True))
    return seconds, Ids(*ids)


def _write(out: Path, stream: np.ndarray, way: Way) -> None:
    if way.backend is None:
        stream.tofile(out)
        return
    with shards.writing(out) as writer:
        writer.write(stream)


def _cpu(do: Callable[[], object]) -> float:
    start = time.process_time()
    do()
    return time.process_time() - start


def _memory(source: Path, backend: str, ranks: Path, folder: Path) -> int:
    """Largest resident set of a process that tokenizes the source."""
    row = {"encoding": "gpt2", "vocab_size": 50257, "backend": backend}
    given = {"kind": "jsonl", "train": [str(source)], "validation": [str(source)]}
    values = {"dataset": "bench", "source": given, "tokenizer": "gpt2", "encoding": row}
    out = folder / backend / "train-00000.bin"
    command = [sys.executable, "-m", "lmscaling", "tokenize", "train", "0", str(out)]
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


def table(ways: list[Way], n_documents: int, n_tokens: int) -> str:
    """A line a way: seconds of a C4 shard by stage, their sum, the ratio, memory, identity."""
    base = ways[0].totals()
    head = ["", *STAGES, "s/shard", "Mtok/s", "ratio", "(range)", "memory", "ids"]
    lines = [head]
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
    said = (
        f"CPU seconds of one core for a C4 shard of {C4_TOKENS:,} tokens, extrapolated from "
        f"{n_documents:,} documents ({n_tokens:,} tokens where they repeat); medians of {ROUNDS} "
        "rounds; ratio: times as fast as the first line"
    )
    return "\n".join([*aligned(lines, left={0, 12}), said])
