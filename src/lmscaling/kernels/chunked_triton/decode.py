"""One token of linear attention: one kernel updates the state in place and reads it.

A program owns the complete state of a head, in float32. Two programs for one head would race on the
sum of keys.

Legend: B batch, H heads, K key width, V value width.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmscaling.kernels import feature_maps
from lmscaling.kernels.chunked_triton.features import LOG2_E, feature


@triton.jit
def _decode_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, kv_ptr, k_sum_ptr, log_decay_ptr,
    stride_qb, stride_qh, stride_kb, stride_kh, stride_vb, stride_vh,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    PHI: tl.constexpr, EPSILON: tl.constexpr, NORMALIZE: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """y of one token of one head, from the state scaled by the gate and with its key and value."""
    i_bh = tl.program_id(0).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    o_k, o_v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    m_k, m_v = o_k < K, o_v < V
    b_q = tl.load(q_ptr + i_b * stride_qb + i_h * stride_qh + o_k, mask=m_k, other=0.0)
    b_k = tl.load(k_ptr + i_b * stride_kb + i_h * stride_kh + o_k, mask=m_k, other=0.0)
    b_v = tl.load(v_ptr + i_b * stride_vb + i_h * stride_vh + o_v, mask=m_v, other=0.0)
    dtype = b_v.dtype
    EXACT: tl.constexpr = dtype == tl.float32
    # Rounded as in the other kernels, so that they can exchange states.
    f_q = feature(b_q.to(tl.float32), PHI, EXACT).to(dtype).to(tl.float32)
    f_k = feature(b_k.to(tl.float32), PHI, EXACT).to(dtype).to(tl.float32)
    kv_ptr += i_bh * (K * V) + o_k[:, None] * V + o_v[None, :]
    m_kv = m_k[:, None] & m_v[None, :]
    kept = tl.exp2(tl.load(log_decay_ptr + i_bh) * LOG2_E) if GATED else 1.0
    s = kept * tl.load(kv_ptr, mask=m_kv, other=0.0) + f_k[:, None] * b_v.to(tl.float32)[None, :]
    tl.store(kv_ptr, s, mask=m_kv)
    f_q = tl.where(m_k, f_q, 0.0)
    b_y = tl.sum(f_q[:, None] * s, 0)
    if NORMALIZE:
        k_sum_ptr += i_bh * K + o_k
        z = kept * tl.load(k_sum_ptr, mask=m_k, other=0.0) + f_k
        tl.store(k_sum_ptr, z, mask=m_k)
        b_y = b_y / (tl.sum(f_q * z, 0) + EPSILON)
    tl.store(y_ptr + i_bh * V + o_v, b_y.to(dtype), mask=m_v)


@torch.no_grad()
def step(
    q_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    kv_BHKV: Tensor,
    k_sum_BHK: Tensor,
    feature_map: str,
    normalize: bool,
    log_decay_BH: Tensor | None = None,
) -> Tensor:
    """The next token's ``y_BHV`` in the dtype of ``v``; updates the state in place, no gradient.

    Args:
        q_BHK: Query of the token; like k and v float32 or bfloat16, its last axis contiguous.
        k_BHK: Key of the token.
        v_BHV: Value of the token.
        kv_BHKV: ``sum phi(k) v^T`` of the tokens before, float32, contiguous; updated.
        k_sum_BHK: ``sum phi(k)`` of the tokens before, like ``kv_BHKV``; updated if ``normalize``,
            else neither read nor written.
        feature_map: Name of a feature map.
        normalize: Whether to divide by the sum of weights.
        log_decay_BH: Natural logarithm of the gate that scales the state before; 0 if not given.

    Raises:
        ValueError: The feature map is unknown, or the state does not fit the token.

    Cost:
        The state is read and written once, ``8 B H K V`` bytes; one launch.
    """
    B, H, K = q_BHK.shape
    _check_state("kv_BHKV", kv_BHKV, (B, H, K, v_BHV.shape[2]), v_BHV.device)
    if normalize:
        _check_state("k_sum_BHK", k_sum_BHK, (B, H, K), v_BHV.device)
    y_BHV = v_BHV.new_empty(v_BHV.shape)
    gates = v_BHV.new_empty(0) if log_decay_BH is None else log_decay_BH.float().contiguous()
    strides = [stride for x in (q_BHK, k_BHK, v_BHV) for stride in x.stride()[:2]]
    kernel: Any = _decode_kernel
    with torch.cuda.device_of(v_BHV):
        kernel[(B * H,)](
            q_BHK, k_BHK, v_BHV, y_BHV, kv_BHKV, k_sum_BHK, gates, *strides,
            H=H, K=K, V=v_BHV.shape[2],
            BLOCK_K=triton.next_power_of_2(K), BLOCK_V=triton.next_power_of_2(v_BHV.shape[2]),
            PHI=feature_map, EPSILON=feature_maps.find(feature_map).epsilon, NORMALIZE=normalize,
            GATED=log_decay_BH is not None,
        )  # fmt: skip
    return y_BHV


def _check_state(name: str, x: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Raise ValueError unless the kernel can update a state in place."""
    fits = x.shape == shape and x.dtype == torch.float32 and x.device == device
    if not (fits and x.is_contiguous()):
        kind = "contiguous" if x.is_contiguous() else "not contiguous"
        raise ValueError(
            f"{name} is {tuple(x.shape)}, {x.dtype} on {x.device}, {kind}; "
            f"allowed: {shape}, torch.float32 on {device}, contiguous"
        )
