"""Validation of a task: loss and accuracy of the targets that count, by group.

Legend: B sequences, T context, N targets that count, G groups.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from lmscaling.config.cell import Cell
from lmscaling.data.marks import SCORED, Marks
from lmscaling.data.stream import Stream
from lmscaling.model.gpt import GPT
from lmscaling.records.run import finite
from lmscaling.train.ranks import Rank


class Scores:
    """Sums over targets, on the device: their number, their losses and the right predictions.

    The last group has every target that counts in the loss.
    """

    def __init__(self, marks: Marks, device: torch.device) -> None:
        self.marks = marks
        self.sums_G3 = torch.zeros(len(marks.groups) + 1, 3, dtype=torch.float64, device=device)

    def add(self, model: GPT, tokens: np.ndarray, context: int) -> None:
        """Add the targets of ``B T + 1`` consecutive tokens."""
        marks = torch.from_numpy(self.marks.of(tokens[:-1]))
        x_BT, y = torch.from_numpy(tokens[:-1].astype("int64")), tokens[1:].astype("int64")
        device, counts = self.sums_G3.device, marks > 0
        h_ND = model.hidden(x_BT.view(-1, context).to(device)).flatten(0, 1)[counts.to(device)]
        y_N = torch.from_numpy(y)[counts].to(device)
        logits_NV = F.linear(h_ND, model.wte.weight).float()
        losses_N = F.cross_entropy(logits_NV, y_N, reduction="none").double()
        hits_N = (logits_NV.argmax(-1) == y_N).double()
        columns_N3 = torch.stack((torch.ones_like(losses_N), losses_N, hits_N), 1)
        groups_N = marks[counts].long().to(device) - SCORED
        self.sums_G3[-1] += columns_N3.sum(0)
        scored = groups_N >= 0
        self.sums_G3.index_add_(0, groups_N[scored], columns_N3[scored])

    def read(self, rank: Rank) -> tuple[float, dict[str, Any] | None]:
        """Mean loss in nats over all ranks; by group the number of targets, loss and accuracy."""
        sums_G3 = rank.sum(self.sums_G3).cpu()
        groups = {
            name: {"targets": int(n), "loss": finite(float(loss / n)), "accuracy": float(hits / n)}
            for name, (n, loss, hits) in zip(self.marks.groups, sums_G3[:-1], strict=True)
            if n
        }
        return float(sums_G3[-1, 1] / sums_G3[-1, 0]), groups or None


def validate(
    model: GPT, stream: Stream, marks: Marks, cell: Cell, micro_batch: int, rank: Rank
) -> Scores:
    """The scores of one rank's share of the validation tokens."""
    scores = Scores(marks, rank.device)
    tokens_per_pass = micro_batch * cell.context
    for start in range(0, cell.validation.tokens, tokens_per_pass)[rank.number :: rank.world]:
        stop = min(start + tokens_per_pass, cell.validation.tokens)
        scores.add(model, stream.read(start, stop + 1), cell.context)
    return scores
