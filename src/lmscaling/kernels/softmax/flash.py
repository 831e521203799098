"""Softmax attention by PyTorch's ``scaled_dot_product_attention``, on a GPU by FlashAttention-2.

Tiles of scores stay on the chip; only a row's maximum and sum are written for the backward pass,
which computes the scores again.

Source: Dao 2023 (arXiv:2307.08691).
"""

from torch import Tensor
from torch.nn.attention import SDPBackend

from lmscaling.kernels.softmax._pytorch import attend_by


def attend(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Softmax attention; the contract stands in ``kernels/__init__.py``.

    On a GPU in bfloat16 the flash back end is forced: it takes ``K = V <= 256``, and PyTorch
    raises RuntimeError for others. Everything else is computed as PyTorch prefers.

    Raises:
        ValueError: The arguments do not fit.

    Cost:
        ``B H T^2 (K + V)`` FLOPs forward, causal half counted; memory linear in T.
    """
    return attend_by(SDPBackend.FLASH_ATTENTION, q_BTHK, k_BTHK, v_BTHV)
