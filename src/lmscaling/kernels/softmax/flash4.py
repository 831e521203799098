"""Softmax attention with PyTorch's ``scaled_dot_product_attention``, on a GPU by FlashAttention-4.

The tiling of ``flash.py`` in kernels for NVIDIA's Hopper and Blackwell, from the package
``flash-attn-4``.

Source: Dao-AILab, flash-attention, ``flash_attn/cute``.
"""

from torch import Tensor
from torch.nn.attention import SDPBackend

from lmscaling.kernels.softmax._pytorch import attend_by


def attend(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Softmax attention; the contract is in ``kernels/__init__.py``.

    On a GPU in bfloat16 the flash back end is forced, and is FlashAttention-4 from this call to the
    next one of another implementation, backward passes included. In all other cases PyTorch
    chooses.

    Raises:
        ValueError: The arguments do not match.
        RuntimeError: The GPU or its packages have no FlashAttention-4.

    Cost:
        ``B H T^2 (K + V)`` FLOPs forward, only the causal half counted; memory linear in T.
    """
    return attend_by(SDPBackend.FLASH_ATTENTION, q_BTHK, k_BTHK, v_BTHV, version=4)
