"""AdamW as GPT-2 studies use it, with weight decay on matrices but not on biases and norms.

Source: Loshchilov and Hutter 2019 (arXiv:1711.05101); the groups as in nanoGPT.
"""

from torch import nn, optim

from lmscaling.config.cell import Cell


def build(model: nn.Module, cell: Cell) -> optim.AdamW:
    """The optimizer of a cell; fused if the parameters are on a GPU."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    settings = cell.optimizer
    return optim.AdamW(
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
        fused=parameters[0].is_cuda,
    )
