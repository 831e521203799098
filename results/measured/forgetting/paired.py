"""H1: the loss of the same documents behind more and more tokens of other documents; H3: gates.

    python results/measured/forgetting/paired.py results/forgetting_longer --context 4096
    python results/measured/forgetting/paired.py results/forgetting --context 2048 --gates

Of each run with this context, ``paired.jsonl`` beside this file gets a line for each number of
tokens before: the mean loss of the documents' tokens in nats. The documents, and what is before
them, are the same for all runs; fewer tokens before are the last ones of more. With ``--gates``,
``gates.jsonl`` gets the mean logarithm of the learned gate at end-of-texts and elsewhere.

Legend: W documents, L tokens of the longest, b tokens before.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling.data.kinds.tables import END, FIRST, Tables
from lmscaling.model import finished_run
from lmscaling.model.gpt import GPT

OUT = Path(__file__).with_name("paired.jsonl")
GATES = Path(__file__).with_name("gates.jsonl")
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


@torch.no_grad()
def gates(model: GPT, x_WT: Tensor) -> dict[str, float]:
    """Means of the logarithm of the gates of all layers, at end-of-texts and elsewhere."""
    found: list[Tensor] = []
    for module in model.modules():
        rate, bias_H = getattr(module, "rate", None), getattr(module, "bias_H", None)
        if isinstance(rate, nn.Module):
            rate.register_forward_hook(
                lambda _, __, rate_WTH, bias_H=bias_H: found.append(F.logsigmoid(rate_WTH + bias_H))
            )
    at_ends, others = [], []
    for part_WT in x_WT.split(AT_ONCE):
        model.token_losses(part_WT[:, :-1], part_WT[:, 1:])
        is_end = part_WT[:, :-1] == END
        at_ends += [gate_WTH[is_end] for gate_WTH in found]
        others += [gate_WTH[~is_end] for gate_WTH in found]
        found.clear()
    means = (float(torch.cat(parts).double().mean()) for parts in (at_ends, others))
    return dict(zip(("end", "elsewhere"), means, strict=True))


def lines(study: Path, context: int, of_gates: bool) -> Iterator[str]:
    documents, before = drawn()
    for record in sorted(study.glob("runs/*/run.json")):
        cell = finished_run.cell(record.parent)
        is_gated = "gatescalar" in cell.attention
        if cell.context != context or cell.branch or (of_gates and not is_gated):
            continue
        model = finished_run.model(record.parent).eval()
        known = {"run": cell.run, "attention": cell.attention, "seed": cell.seed}
        if of_gates:
            yield json.dumps(known | gates(model, before[:, : context + 1])) + "\n"
            continue
        for b in BEFORE:
            found = loss(model, documents, before, b)
            print(cell.name, b, f"{found:.4f}")
            yield json.dumps(known | {"before": b, "loss": found}) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--gates", action="store_true", help=f"write {GATES.name}")
    parser.add_argument("--out", type=Path, help=f"in place of {OUT.name}")
    args = parser.parse_args()
    torch.set_flush_denormal(True)  # up to 1.8 times as fast, the same losses
    out = args.out or (GATES if args.gates else OUT)
    out.write_text("".join(lines(args.study, args.context, args.gates)))


if __name__ == "__main__":
    main()
