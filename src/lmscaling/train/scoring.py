"""Validation of a task: loss and accuracy of the targets that count, by group.

Sums are float64 ``[G, 3]``: number of targets, their losses, right predictions. The last group has
every target that counts in the loss.

Legend: B sequences, T context, N targets that count, G groups.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling.data.marks import SCORED
from lmscaling.model.gpt import GPT
from lmscaling.records.run import finite


def add(sums_G3: Tensor, model: GPT, x_BT: Tensor, y_BT: Tensor, marks: Tensor) -> None:
    """Add the targets of sequences, whose marks are uint8 ``[B T]``."""
    counts = marks > 0
    h_ND = model.hidden(x_BT).flatten(0, 1)[counts]
    y_N = y_BT.flatten()[counts]
    logits_NV = model.logits(h_ND).float()
    losses_N = F.cross_entropy(logits_NV, y_N, reduction="none").double()
    hits_N = (logits_NV.argmax(-1) == y_N).double()
    columns_N3 = torch.stack((torch.ones_like(losses_N), losses_N, hits_N), 1)
    groups_N = marks[counts].long() - SCORED
    sums_G3[-1] += columns_N3.sum(0)
    scored = groups_N >= 0
    sums_G3.index_add_(0, groups_N[scored], columns_N3[scored])


def by_group(sums_G3: Tensor, names: tuple[str, ...]) -> dict[str, Any] | None:
    """By group the number of targets, loss in nats and accuracy; None if there is none."""
    return {
        name: {"targets": int(n), "loss": finite(float(loss / n)), "accuracy": float(hits / n)}
        for name, (n, loss, hits) in zip(names, sums_G3[:-1].cpu(), strict=True)
        if n
    } or None
