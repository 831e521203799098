"""Validation of a task: loss and accuracy of the targets that count, by group.

Legend: B sequences, T context, N targets that count, G groups.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling.data.marks import SCORED, Marks
from lmscaling.model.gpt import GPT
from lmscaling.records.run import finite


class Scores:
    """Sums over targets, on the device: their number, their losses and the right predictions.

    The last group has every target that counts in the loss.
    """

    def __init__(self, marks: Marks, device: torch.device) -> None:
        self.groups = marks.groups
        self.sums_G3 = torch.zeros(len(marks.groups) + 1, 3, dtype=torch.float64, device=device)

    def add(self, model: GPT, x_BT: Tensor, y_BT: Tensor, marks: Tensor) -> None:
        """Add the targets of sequences, whose marks are uint8 ``[B T]``."""
        counts = marks > 0
        h_ND = model.hidden(x_BT).flatten(0, 1)[counts]
        y_N = y_BT.flatten()[counts]
        logits_NV = F.linear(h_ND, model.wte.weight).float()
        losses_N = F.cross_entropy(logits_NV, y_N, reduction="none").double()
        hits_N = (logits_NV.argmax(-1) == y_N).double()
        columns_N3 = torch.stack((torch.ones_like(losses_N), losses_N, hits_N), 1)
        groups_N = marks[counts].long() - SCORED
        self.sums_G3[-1] += columns_N3.sum(0)
        scored = groups_N >= 0
        self.sums_G3.index_add_(0, groups_N[scored], columns_N3[scored])

    def read(self, sums_G3: Tensor) -> tuple[float, dict[str, Any] | None]:
        """Mean loss in nats, and by group the number of targets, loss and accuracy, from the sums
        of all ranks."""
        groups = {
            name: {"targets": int(n), "loss": finite(float(loss / n)), "accuracy": float(hits / n)}
            for name, (n, loss, hits) in zip(self.groups, sums_G3[:-1].cpu(), strict=True)
            if n
        }
        return float(sums_G3[-1, 1] / sums_G3[-1, 0]), groups or None
