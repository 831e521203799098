"""AdamW as GPT-2 studies use it: matrices decay, biases and norms do not.

Source: Loshchilov and Hutter 2019 (arXiv:1711.05101); the groups as in nanoGPT.
"""

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
