"""AdamW as GPT-2 studies use it: matrices decay, biases and norms do not.

The rate of a trunk rises over the warm-up and stays; that of a branch falls linearly to zero.

Source: Loshchilov and Hutter 2019 (arXiv:1711.05101); the groups as in nanoGPT.
"""

from dataclasses import dataclass

from torch import nn, optim

from lmscaling.config.cell import Cell


def build(model: nn.Module, cell: Cell) -> optim.AdamW:
    """The optimizer of a cell; fused where the parameters are on a GPU."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    chosen = cell.optimizer
    return optim.AdamW(
        [
            {
                "params": [p for p in parameters if p.dim() >= 2],
                "weight_decay": chosen.weight_decay,
            },
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=cell.lr,
        betas=chosen.betas,
        eps=chosen.eps,
        fused=parameters[0].is_cuda,
    )


@dataclass(frozen=True)
class Decay:
    """Where a branch leaves its trunk and where its rate is zero, in updates."""

    start: int
    end: int


def learning_rate(cell: Cell, update: int, decay: Decay | None = None) -> float:
    """The rate of an update, counted from 1.

    On a trunk a linear rise over the warm-up, then constant; on a branch a linear fall from the
    trunk's rate to zero at the branch's last update.
    """
    if decay:
        left = (decay.end - update) / (decay.end - decay.start)
        return learning_rate(cell, decay.start) * left
    return cell.lr * min(1.0, update / max(1, cell.optimizer.warmup_updates))
