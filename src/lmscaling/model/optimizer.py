"""AdamW as GPT-2 studies use it, with weight decay on matrices but not on biases and norms; or Muon
for the matrices of blocks, and AdamW for all else.

Sources: Loshchilov and Hutter 2019 (arXiv:1711.05101), the groups as in nanoGPT; Jordan 2024
(https://kellerjordan.github.io/posts/muon), with the learning rate of Liu et al. 2025
(arXiv:2502.16982), eq. 4.
"""

import inspect
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn, optim

from lmscaling.config.cell import Cell
from lmscaling.model.gpt import GPT


class _Uncompiled(optim.AdamW):
    """AdamW whose methods do not load PyTorch's compiler, which costs a process on the CPU as much
    time as the rest of PyTorch, and 160 MB."""

    add_param_group = inspect.unwrap(optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(optim.AdamW.zero_grad)
    step = torch.no_grad()(inspect.unwrap(optim.AdamW.step))


class Together(optim.Optimizer):
    """Several optimizers of different parameters as one, which trainers and checkpoints know."""

    def __init__(self, *parts: optim.Optimizer) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call ``closure``, if there is one, and then ``step`` of each."""
        with torch.enable_grad():
            loss = closure and closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """``parts``: that of each."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each its own."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = list(chain.from_iterable(part.param_groups for part in self.parts))


def build(model: GPT, cell: Cell) -> optim.Optimizer:
    """The optimizer of a cell; AdamW is fused if the parameters are on a GPU, where blocks are
    compiled."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if cell.optimizer.kind == "adamw":
        scaled = [model.get_parameter(f"{name}.weight") for name in model.widened]
        return _adamw(parameters, cell, [p for p in scaled if p.requires_grad])
    matrices = [p for p in model.blocks.parameters() if p.requires_grad and p.dim() == 2]
    known = set(map(id, matrices))
    return Together(
        optim.Muon(
            matrices,
            lr=cell.lr,
            weight_decay=cell.optimizer.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        _adamw([p for p in parameters if id(p) not in known], cell),
    )


def _adamw(
    parameters: list[nn.Parameter], cell: Cell, scaled: Sequence[nn.Parameter] = ()
) -> optim.AdamW:
    """``share`` of a group is its part of the learning rate: that of ``scaled`` falls with the
    width of the model. What decays in an update, by the product with the rate, does not."""
    settings, on_gpu = cell.optimizer, parameters[0].is_cuda
    kind = optim.AdamW if on_gpu else _Uncompiled
    known, decay = set(map(id, scaled)), settings.weight_decay
    matrices = [p for p in parameters if p.dim() >= 2 and id(p) not in known]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    if scaled:
        share = 1 / cell.multiple
        own = {"share": share, "lr": cell.lr * share, "weight_decay": decay / share}
        groups.append({"params": scaled, **own})
    return kind(
        groups,
        lr=cell.lr,
        betas=settings.betas,
        eps=settings.eps,
        fused=on_gpu,
    )
