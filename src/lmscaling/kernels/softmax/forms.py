"""The forms of softmax attention, each a function; read this file first.

All compute ``y_t = sum_{s<=t} w_ts v_s`` from ``q_BTHK``, ``k_BTHK`` and ``v_BTHV``, where
``w_ts`` is ``exp(q_t . k_s / sqrt(K))`` divided by its sum over s, and return ``y_BTHV`` in the
dtype of v; the sums are over all s if not ``causal``, as layers are timed without a mask.
ValueError: the arguments do not match.

``flash``, ``flash4`` and ``cudnn`` cost ``B H T^2 (K + V)`` FLOPs forward, only the causal half
counted, and memory linear in T: tiles of scores stay in on-chip memory, and the backward pass
computes them again. On a GPU in bfloat16 the named back end is forced. In all other cases PyTorch
chooses one.

Legend: B batch, T tokens, H heads, K key width, V value width.

Source: Vaswani et al. 2017 (arXiv:1706.03762), eq. 1; ``flash`` Dao 2023 (arXiv:2307.08691);
``flash4`` Dao-AILab, flash-attention, ``flash_attn/cute``; ``cudnn`` NVIDIA cuDNN, graph API.
"""

import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from lmscaling.kernels import at_least_float32, check
from lmscaling.kernels.softmax._pytorch import attend_by


def no_flash(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, causal: bool = True) -> Tensor:
    """The weights ``[T, T]`` in memory, as before flash attention.

    Scores and values are multiplied in the dtype of the arguments; the softmax and its sum are
    computed in at least float32.

    Cost:
        ``2 B H T^2 (K + V)`` FLOPs forward, because the masked half is computed, too. Scores and
        weights are ``B H T^2`` elements each; autograd keeps the weights.
    """
    check(q_BTHK, k_BTHK, v_BTHV)
    T, K = q_BTHK.shape[1], q_BTHK.shape[3]
    q_BHTK, k_BHTK, v_BHTV = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV))
    score_BHTT = at_least_float32(q_BHTK @ k_BHTK.mT) / math.sqrt(K)
    if causal:
        later_TT = torch.ones(T, T, dtype=torch.bool, device=v_BTHV.device).triu(1)
        score_BHTT = score_BHTT.masked_fill(later_TT, -math.inf)
    weight_BHTT = score_BHTT.softmax(-1).to(v_BTHV.dtype)
    return (weight_BHTT @ v_BHTV).transpose(1, 2)


def flash(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, causal: bool = True) -> Tensor:
    """FlashAttention-2, for ``K = V <= 256``; PyTorch raises RuntimeError for others."""
    return attend_by(SDPBackend.FLASH_ATTENTION, q_BTHK, k_BTHK, v_BTHV, causal)


def flash4(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, causal: bool = True) -> Tensor:
    """FlashAttention-4 for NVIDIA's Hopper and Blackwell, of the package ``flash-attn-4``: from
    this call to the next one of another implementation, backward passes included.

    Raises:
        RuntimeError: The GPU or its packages have no FlashAttention-4.
    """
    return attend_by(SDPBackend.FLASH_ATTENTION, q_BTHK, k_BTHK, v_BTHV, causal, version=4)


def cudnn(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, causal: bool = True) -> Tensor:
    """Kernels that cuDNN generates for each device, for K and V that are multiples of 8 up to 128;
    PyTorch raises RuntimeError for others. Calibration tries whether they are faster."""
    return attend_by(SDPBackend.CUDNN_ATTENTION, q_BTHK, k_BTHK, v_BTHV, causal)
