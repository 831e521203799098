"""Softmax attention with PyTorch's ``scaled_dot_product_attention``, on a GPU by FlashAttention-2.

Tiles of scores stay in on-chip memory. Only the maximum and the sum of each row are written for the
backward pass, which recomputes the scores.

Source: Dao 2023 (arXiv:2307.08691).
"""

from torch import Tensor
from torch.nn.attention import SDPBackend

from lmscaling.kernels.softmax._pytorch import attend_by


def attend(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Softmax attention; the contract is in ``kernels/__init__.py``.

    On a GPU in bfloat16 the flash back end is forced: it supports ``K = V <= 256``, and PyTorch
    raises RuntimeError for others. In all other cases PyTorch chooses the back end.

    Raises:
        ValueError: The arguments do not match.

    Cost:
        ``B H T^2 (K + V)`` FLOPs forward, only the causal half counted; memory linear in T.
    """
    return attend_by(SDPBackend.FLASH_ATTENTION, q_BTHK, k_BTHK, v_BTHV)
