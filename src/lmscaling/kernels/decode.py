"""Linear attention one token at a time, for sampling: a state of constant size, updated in place.

The state is always float32, because in bfloat16 a long sum stops growing.

Legend: B batch, T tokens, H heads, K key width, V value width.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 16 to 20.
"""

from typing import Any

import torch
from torch import Tensor

from lmscaling.kernels import at_least_float32
from lmscaling.kernels.chunked_triton import op, plan
from lmscaling.kernels.feature_maps import find


@torch.no_grad()
def prefill(k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str) -> tuple[Tensor, Tensor]:
    """The state after T tokens: ``sum_t phi(k_t) v_t^T`` and ``sum_t phi(k_t)``; no gradient.

    Returns:
        ``kv_BHKV`` and ``k_sum_BHK`` in at least float32.

    Raises:
        ValueError: The feature map is unknown.

    Cost:
        ``2 B H T K V`` FLOPs; on a GPU one kernel that reads packed keys and values.
    """
    (H, K), V = k_BTHK.shape[2:], v_BTHV.shape[3]
    if op.runs(v_BTHV, K, V):
        # The kernel reads packed rows but no queries, so the keys are passed in their place.
        qkv_BTW = torch.cat([x.flatten(2) for x in (k_BTHK, k_BTHK, v_BTHV)], -1)
        shape = plan.Shape(heads=H, key=K, value=V, feature_map=feature_map, normalize=True)
        return op.state(qkv_BTW, shape, plan.choose(qkv_BTW, shape))
    k_BHTK = find(feature_map).of(at_least_float32(k_BTHK)).transpose(1, 2)
    v_BHTV = at_least_float32(v_BTHV).transpose(1, 2)
    return k_BHTK.transpose(-1, -2) @ v_BHTV, k_BHTK.sum(2)


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
        q_BHK: Query of the token.
        k_BHK: Key of the token.
        v_BHV: Value of the token.
        kv_BHKV: ``sum phi(k) v^T`` of the tokens before, at least float32; updated.
        k_sum_BHK: ``sum phi(k)`` of the tokens before, like ``kv_BHKV``; updated if ``normalize``,
            else neither read nor written.
        feature_map: Name of a feature map.
        normalize: Whether to divide by the sum of weights.
        log_decay_BH: Natural logarithm of the gate that scales the state before; 0 if not given.

    Raises:
        ValueError: The feature map is unknown; on a GPU also if the state is not as said here.

    Cost:
        ``4 B H K V`` FLOPs; the state is read and written once, ``8 B H K V`` bytes in float32.
        On a GPU one kernel, and the state must then be float32, contiguous and as wide as q and v.
    """
    if op.runs(v_BHV, q_BHK.shape[2], v_BHV.shape[2]):
        states = {"kv_BHKV": kv_BHKV, "k_sum_BHK": k_sum_BHK}
        return _by_kernel(q_BHK, k_BHK, v_BHV, states, feature_map, normalize, log_decay_BH)
    phi, dtype = find(feature_map), kv_BHKV.dtype
    q_BHK, k_BHK = phi.of(q_BHK.to(dtype)), phi.of(k_BHK.to(dtype))
    if log_decay_BH is not None:
        kept_BH = log_decay_BH.to(dtype).exp()
        kv_BHKV *= kept_BH[..., None, None]
        if normalize:
            k_sum_BHK *= kept_BH[..., None]
    kv_BHKV += k_BHK.unsqueeze(-1) * v_BHV.to(dtype).unsqueeze(-2)
    y_BHV = (q_BHK.unsqueeze(-2) @ kv_BHKV).squeeze(-2)
    if normalize:
        k_sum_BHK += k_BHK
        y_BHV = y_BHV / ((q_BHK * k_sum_BHK).sum(-1, keepdim=True) + phi.epsilon)
    return y_BHV.to(v_BHV.dtype)


def _by_kernel(
    q_BHK: Tensor, k_BHK: Tensor, v_BHV: Tensor, states: dict[str, Tensor], *given: Any
) -> Tensor:
    """``step`` on a GPU."""
    from lmscaling.kernels.chunked_triton.forward import _decode_kernel  # needs Triton

    (B, H, K), V, (feature_map, normalize, log_decay_BH) = q_BHK.shape, v_BHV.shape[2], given
    shapes = [(B, H, K, V), (B, H, K)][: 1 + normalize]
    for (name, x), shape in zip(states.items(), shapes, strict=False):
        kind = "contiguous" if x.is_contiguous() else "not contiguous"
        found = f"{tuple(x.shape)}, {x.dtype} on {x.device}, {kind}"
        allowed = f"{shape}, torch.float32 on {v_BHV.device}, contiguous"
        if found != allowed:
            raise ValueError(f"{name} is {found}; allowed: {allowed}")
    y_BHV = v_BHV.new_empty(v_BHV.shape)
    gates = v_BHV.new_empty(0) if log_decay_BH is None else log_decay_BH.float().contiguous()
    strides = [stride for x in (q_BHK, k_BHK, v_BHV) for stride in x.stride()[:2]]
    kernel: Any = _decode_kernel
    with torch.cuda.device_of(v_BHV):
        kernel[(B * H,)](
            q_BHK, k_BHK, v_BHV, y_BHV, *states.values(), gates, *strides,
            H=H, K=K, V=V, BLOCK_K=1 << (K - 1).bit_length(), BLOCK_V=1 << (V - 1).bit_length(),
            PHI=feature_map, EPSILON=find(feature_map).epsilon, NORMALIZE=normalize,
            GATED=log_decay_BH is not None,
        )  # fmt: skip
    return y_BHV
