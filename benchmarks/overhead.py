"""What the training loop costs beside a bare PyTorch loop on the same model and tokens.

    python benchmarks/overhead.py

Pairs of both loops alternate, so that a machine that slows down slows both; the difference of each
pair is an update's overhead. Prints medians with the range of the pairs.
"""

import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lmscaling.config import grid, study_file
from lmscaling.config.cell import Cell
from lmscaling.config.validation import checked
from lmscaling.data import shards
from lmscaling.data.rows import Corpus
from lmscaling.data.stream import Stream
from lmscaling.data.tokenize import tokenize
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
from lmscaling.plan import footprint
from lmscaling.train.module import micro_batches
from lmscaling.train.run import train

ROOT = Path(__file__).parents[1]
PAIRS, UPDATES = 10, 100


def cells() -> dict[str, Cell]:
    """Two cells of the demo: an update that takes milliseconds, and one that takes tens of them."""
    study = study_file.read_study([ROOT / "config/study.yaml", ROOT / "config/demo.yaml"])
    made = {c.name: c for c in grid.expand(study).cells.values()}
    names = ("linear-2k-ctx64-s0", "linear-100k-ctx256-s0")
    never = replace(made[names[0]].validation, every_tokens=2**40)
    budget = f"{UPDATES} updates"
    return {n: replace(made[n], budget=budget, validation=never, keep=()) for n in names}


def tokens(folder: Path) -> Path:
    """A stream of random characters, tokenized as any text is."""
    rng = np.random.default_rng(0)
    source = {"kind": "jsonl"}
    for split, n in (("train", 2**22), ("validation", 2**17)):
        text = rng.integers(32, 127, n).astype(np.uint8).tobytes().decode()
        (folder / f"{split}.jsonl").write_text(json.dumps({"text": text}) + "\n")
        source |= {split: [str(folder / f"{split}.jsonl")]}
    row = {"encoding": "bytes", "vocab_size": 257}
    values = {"dataset": "random", "source": source, "tokenizer": "bytes", "encoding": row}
    corpus = checked(Corpus, values, "corpus")
    for split in ("validation", "train"):
        tokenize(corpus, split, 0, folder / f"{split}-00000.bin")
    shards.write_manifest(folder / "manifest.json", {"train": 1, "validation": 1})
    return folder / "manifest.json"


def bare(cell: Cell, stream: Stream) -> float:
    """Seconds per update of the plainest loop that does the same arithmetic."""
    gpt = GPT(cell)
    adamw = optimizer.build(gpt, cell)
    marks = []
    for update in range(1, UPDATES + 1):
        slab = torch.from_numpy(stream.slab(update, cell.update_tokens).astype("int64"))
        total = torch.zeros(())
        for x_BT, y_BT in micro_batches(slab, cell.context, footprint.sequences(cell)):
            loss = gpt.loss(x_BT, y_BT)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), cell.optimizer.clip_norm)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        total.item()
        marks.append(time.monotonic())
    return statistics.median(np.diff(marks))


def ours(cell: Cell, manifest: Path, folder: Path) -> float:
    """Seconds per update of the product's loop, from its own log."""
    (folder / "cell.json").write_text(cell.to_json())
    train(folder / "cell.json", manifest, folder / "scratch", folder / "run" / "run.json")
    rows = map(json.loads, (folder / "run" / "log.jsonl").open())
    return statistics.median(np.diff([r["train_seconds"] for r in rows if r["record"] == "update"]))


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        manifest = tokens(root)
        for cell in cells().values():
            pairs = []
            for i in range(PAIRS):
                folder = root / f"{cell.name}-{i}"
                folder.mkdir()
                pairs.append((bare(cell, Stream(manifest, "train")), ours(cell, manifest, folder)))
            alone = statistics.median(b for b, _ in pairs) * 1e3
            extra = sorted((o - b) * 1e3 for b, o in pairs)
            print(
                f"{cell.name}: bare {alone:.2f} ms, ours {statistics.median(extra):+.2f} ms "
                f"({extra[0]:+.2f} to {extra[-1]:+.2f}), {statistics.median(extra) / alone:+.1%}"
            )


if __name__ == "__main__":
    main()
