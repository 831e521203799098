"""H1: the loss of the same documents behind more and more tokens of other documents.

    python results/measured/forgetting/paired.py results/forgetting_longer --context 4096

Of each run with this context, ``paired.jsonl`` beside this file gets a line for each number of
tokens before: the mean loss of the documents' tokens in nats. The documents, and what is before
them, are the same for all runs; fewer tokens before are the last ones of more.

Legend: W documents, L tokens of the longest, b tokens before.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lmscaling.data.kinds.tables import END, FIRST, Tables
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT

OUT = Path(__file__).with_name("paired.jsonl")
BEFORE = (0, 256, 512, 1024, 2048, 3584)
DOCUMENTS, LONGEST = 2000, 511
AT_ONCE = 16
"""Windows of one forward pass."""


def drawn() -> tuple[Tensor, Tensor]:
    """Documents ``[W, L + 1]`` that begin with an end-of-text, -1 behind their end, and what is
    before them, ``[W, most b]``; int64."""
    source = Tables(kind="tables", validation_documents=DOCUMENTS * 12, documents=1)
    texts = source.read("validation", 0).texts
    documents = torch.full((DOCUMENTS, LONGEST + 1), -1)
    for row, text in zip(documents, texts, strict=False):
        symbols = np.frombuffer(text.encode()[:LONGEST], dtype=np.uint8)
        row[0], row[1 : len(symbols) + 1] = END, torch.from_numpy(symbols.astype(np.int64))
    rest = np.concatenate([np.append(END, np.frombuffer(t.encode(), np.uint8)) for t in texts])
    before = torch.from_numpy(rest[: DOCUMENTS * max(BEFORE)].astype(np.int64))
    return documents, before.view(DOCUMENTS, -1)


@torch.no_grad()
def loss(model: GPT, documents: Tensor, before: Tensor, b: int) -> float:
    """Mean loss of the tokens of the documents behind b tokens, nats."""
    total, n = 0.0, 0
    pairs = zip(documents.split(AT_ONCE), before.split(AT_ONCE), strict=True)
    for document_WL, before_Wb in pairs:
        x = torch.cat([before_Wb[:, before_Wb.shape[1] - b :], document_WL], 1)
        counts = document_WL[:, 1:] >= 0
        losses = model.token_losses(x[:, :-1].clamp(min=FIRST), x[:, 1:].clamp(min=FIRST))
        total += float(losses[:, b:][counts].double().sum())
        n += int(counts.sum())
    return total / n


def lines(study: Path, context: int) -> Iterator[str]:
    documents, before = drawn()
    for record in sorted(study.glob("runs/*/run.json")):
        cell = finished_run.cell(record.parent)
        if cell.context != context or cell.branch:
            continue
        model = finished_run.model(record.parent).eval()
        for b in BEFORE:
            row = {"run": cell.run, "attention": cell.attention, "seed": cell.seed, "before": b}
            found = loss(model, documents, before, b)
            print(cell.name, b, f"{found:.4f}")
            yield json.dumps(row | {"loss": found}) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--context", type=int, default=4096)
    args = parser.parse_args()
    OUT.write_text("".join(lines(args.study, args.context)))


if __name__ == "__main__":
    main()
