"""Softmax attention with the T x T matrix of weights in memory, as before flash attention.

Legend: B batch, T tokens, H heads, K key width, V value width.

Source: Vaswani et al. 2017 (arXiv:1706.03762), eq. 1.
"""

import math

import torch
from torch import Tensor

from lmscaling.kernels import at_least_float32, check


def attend(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Softmax attention; the contract is in ``kernels/__init__.py``.

    Scores and values are multiplied in the dtype of the arguments; the softmax and its sum are
    computed in at least float32.

    Raises:
        ValueError: The arguments do not match.

    Cost:
        ``2 B H T^2 (K + V)`` FLOPs forward, because the masked half is computed, too. Scores and
        weights are ``B H T^2`` elements each; autograd keeps the weights.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    T, K = q_BTHK.shape[1], q_BTHK.shape[3]
    q_BHTK, k_BHTK, v_BHTV = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV))
    score_BHTT = at_least_float32(q_BHTK @ k_BHTK.transpose(-1, -2)) / math.sqrt(K)
    later_TT = torch.ones(T, T, dtype=torch.bool, device=v_BTHV.device).triu(1)
    weight_BHTT = score_BHTT.masked_fill(later_TT, -math.inf).softmax(-1).to(v_BTHV.dtype)
    return (weight_BHTT @ v_BHTV).transpose(1, 2)
