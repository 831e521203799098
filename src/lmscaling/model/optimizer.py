"""AdamW as GPT-2 studies use it, with weight decay on matrices but not on biases and norms.

Source: Loshchilov and Hutter 2019 (arXiv:1711.05101); the groups as in nanoGPT.
"""

import inspect

import torch
from torch import nn, optim

from lmscaling.config.cell import Cell


class _Uncompiled(optim.AdamW):
    """AdamW whose methods do not load PyTorch's compiler, which costs a process on the CPU as much
    time as the rest of PyTorch, and 160 MB."""

    add_param_group = inspect.unwrap(optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(optim.AdamW.zero_grad)
    step = torch.no_grad()(inspect.unwrap(optim.AdamW.step))


def build(model: nn.Module, cell: Cell) -> optim.AdamW:
    """The optimizer of a cell; fused if the parameters are on a GPU, where blocks are compiled."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    settings, on_gpu = cell.optimizer, parameters[0].is_cuda
    kind = optim.AdamW if on_gpu else _Uncompiled
    return kind(
        [
            {
                "params": [p for p in parameters if p.dim() >= 2],
                "weight_decay": settings.weight_decay,
            },
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=cell.lr,
        betas=settings.betas,
        eps=settings.eps,
        fused=on_gpu,
    )
