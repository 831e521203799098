"""Where kernels of flash-linear-attention compute what this package has in plain PyTorch only."""

from importlib.util import find_spec

import torch
from torch import Tensor

from lmscaling import kernels

PACKAGE = "flash-linear-attention"


def best() -> str:
    """The implementation that a variant uses: ``fla``, or ``plain`` if it is not installed."""
    return "fla" if find_spec("fla") else "plain"


def takes(v_BTHV: Tensor) -> bool:
    """Whether its kernels are used for these values: in bfloat16, as in training on a GPU.

    Of float32 they round products to fewer digits than a check allows.
    """
    return v_BTHV.dtype == torch.bfloat16 and kernels.on_triton_device(v_BTHV)
