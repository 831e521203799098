"""Softmax attention with PyTorch's ``scaled_dot_product_attention``, on a GPU by FlashAttention-2.

Tiles of scores stay in on-chip memory. Only the maximum and the sum of each row are written for the
backward pass, which recomputes the scores.

Source: Dao 2023 (arXiv:2307.08691).
"""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from lmscaling.kernels import check
from lmscaling.kernels.softmax._pytorch import attend_by, use_flash


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


def is_forced(x: Tensor) -> bool:
    """Whether flash attention computes queries, keys and values like these."""
    return x.is_cuda and x.dtype == torch.bfloat16


def attend_documents(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, bounds_P: Tensor, longest: int
) -> Tensor:
    """``attend`` of several sequences that follow one another in the rows, by FlashAttention-2.

    Args:
        q_BTHK: Queries, as ``is_forced`` asks; keys and values likewise.
        k_BTHK: Keys.
        v_BTHV: Values.
        bounds_P: Tokens before each sequence, all rows counted, and ``B T`` in the end; int32 on
            the device. No sequence crosses the end of its row.
        longest: Tokens of the longest sequence.

    Cost:
        ``H (K + V)`` FLOPs forward for the square of each length; memory linear in T.
    """
    from torch.nn.attention.varlen import varlen_attn  # loads the compiler

    check(q_BTHK, k_BTHK, v_BTHV)
    use_flash(2)
    q, k, v = (x.flatten(0, 1) for x in (q_BTHK, k_BTHK, v_BTHV))
    y = varlen_attn(q, k, v, bounds_P, bounds_P, longest, longest, window_size=(-1, 0))
    assert isinstance(y, Tensor)  # two only if asked for
    return y.view_as(v_BTHV)
