"""The forms of linear attention, each a function; read this file first.

All compute, for the tokens t of a sequence, with ``a_ts = phi(q_t) . phi(k_s)``::

    y_t = sum_{s<=t} a_ts v_s             divided by sum_{s<=t} a_ts if normalize

from ``q_BTHK``, ``k_BTHK`` and ``v_BTHV``, the name of a feature map phi and ``normalize``, and
return ``y_BTHV`` in the dtype of v. Sums are at least float32. ValueError: the arguments do not
match, or the feature map is unknown. The last two run Triton kernels on a GPU.

Legend: B batch, T tokens, H heads, K key width, V value width, C chunk, N chunks.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8 to 12 and 16 to 20; chunks as in Yang et
al. 2024 (arXiv:2312.06635), section 4.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import at_least_float32, check, check_chunk
from lmscaling.kernels.chunked_triton import op
from lmscaling.kernels.chunked_triton.packing import packed
from lmscaling.kernels.feature_maps import find
from lmscaling.kernels.gated.plain import CHUNK, attend
from lmscaling.kernels.tiled_triton import op as tiled

WIDEST_ON_AMD = 64
"""Tiles of wider heads take 80 KiB of shared memory with Triton 3.7, and a CDNA 3 GPU has 64."""


def attention(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    """The definition as two loops over tokens; too slow for training.

    Cost:
        ``B H T^2 (K + V)`` FLOPs forward; each pair of tokens reads one key and one value,
        ``2 B H T^2 (K + V)`` bytes in float32. Autograd keeps the same amount.
    """
    q_BTHK, k_BTHK, v, epsilon = _features(q_BTHK, k_BTHK, v_BTHV, feature_map)
    q_T, k_T, v_T, y_T = q_BTHK.unbind(1), k_BTHK.unbind(1), v.unbind(1), []
    for t, q_BHK in enumerate(q_T):
        y_BHV, sum_BH1 = torch.zeros_like(v_T[t]), torch.zeros_like(q_BHK[..., :1])
        for s in range(t + 1):
            weight_BH1 = (q_BHK * k_T[s]).sum(-1, keepdim=True)
            y_BHV = y_BHV + weight_BH1 * v_T[s]
            sum_BH1 = sum_BH1 + weight_BH1
        y_T.append(y_BHV / (sum_BH1 + epsilon) if normalize else y_BHV)
    return torch.stack(y_T, 1).to(v_BTHV.dtype)


def attention_parallel_no_flash(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    """Both loops as matrix products: the weights ``[T, T]`` in memory, those of later tokens zero.

    Cost:
        ``2 B H T^2 (K + V)`` FLOPs forward, because the masked half is computed, too. The weights
        are ``B H T^2`` float32, written twice and read twice; autograd keeps them.
    """
    q_BTHK, k_BTHK, v, epsilon = _features(q_BTHK, k_BTHK, v_BTHV, feature_map)
    q_BHTK, k_BHTK, v_BHTV = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v))
    weight_BHTT = (q_BHTK @ k_BHTK.mT).tril()
    y_BHTV = weight_BHTT @ v_BHTV
    if normalize:
        y_BHTV = y_BHTV / (weight_BHTT.sum(-1, keepdim=True) + epsilon)
    return y_BHTV.transpose(1, 2).to(v_BTHV.dtype)


def state(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    """One loop over tokens with a state ``S_t = S_{t-1} + phi(k_t) v_t^T``, ``[K, V]``, and the sum
    of keys ``z_t``: ``y_t = phi(q_t) S_t``, divided by ``phi(q_t) . z_t``.

    Cost:
        ``4 B H T K V`` FLOPs forward. Each token reads and writes the state, ``8 B H T K V`` bytes
        in float32; autograd keeps the state of every token.
    """
    q_BTHK, k_BTHK, v, epsilon = _features(q_BTHK, k_BTHK, v_BTHV, feature_map)
    z_BHK, y_T = torch.zeros_like(k_BTHK[:, 0]), []
    S_BHKV = z_BHK.unsqueeze(-1) * torch.zeros_like(v[:, 0]).unsqueeze(-2)
    for q_BHK, k_BHK, v_BHV in zip(q_BTHK.unbind(1), k_BTHK.unbind(1), v.unbind(1), strict=True):
        S_BHKV = S_BHKV + k_BHK.unsqueeze(-1) * v_BHV.unsqueeze(-2)
        z_BHK = z_BHK + k_BHK
        y_BHV = (q_BHK.unsqueeze(-2) @ S_BHKV).squeeze(-2)
        if normalize:
            y_BHV = y_BHV / ((q_BHK * z_BHK).sum(-1, keepdim=True) + epsilon)
        y_T.append(y_BHV)
    return torch.stack(y_T, 1).to(v_BTHV.dtype)


def state_parallel(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    """The loop as a cumulative sum: the states of all tokens, ``[T, K, V]``, in memory.

    Cost:
        ``4 B H T K V`` FLOPs forward; ``16 B H T K V`` bytes moved in float32, because products and
        states are each written and read once. Autograd keeps the states.
    """
    q_BTHK, k_BTHK, v, epsilon = _features(q_BTHK, k_BTHK, v_BTHV, feature_map)
    S_BTHKV = (k_BTHK.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(1)
    y_BTHV = (q_BTHK.unsqueeze(-2) @ S_BTHKV).squeeze(-2)
    if normalize:
        y_BTHV = y_BTHV / ((q_BTHK * k_BTHK.cumsum(1)).sum(-1, keepdim=True) + epsilon)
    return y_BTHV.to(v_BTHV.dtype)


def chunked_materialized(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    feature_map: str,
    normalize: bool,
    chunk: int = CHUNK,
) -> Tensor:
    """Both: weights ``[C, C]`` inside chunks of C tokens, and the state before each chunk, which is
    a cumulative sum over chunks, in memory. A column of ones beside the values sums the weights.

    ``chunk`` is C, a power of two, else ValueError; T need not be a multiple.

    Cost:
        ``2 B H T (C (K + V) / 2 + 2 K V)`` FLOPs forward, causal half counted. The states take
        ``B H (T / C) K (V + 1)`` elements, written twice and read twice, and the weights
        ``B H T C``; autograd keeps both.
    """
    check_chunk(chunk)
    q_BTHK, k_BTHK, v, epsilon = _features(q_BTHK, k_BTHK, v_BTHV, feature_map)
    if normalize:
        v = F.pad(v, (0, 1), value=1.0)
    y, _ = attend(q_BTHK, k_BTHK, v, chunk=chunk)
    if normalize:
        y = y[..., :-1] / (y[..., -1:] + epsilon)
    return y.to(v_BTHV.dtype)


def attention_parallel(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str, normalize: bool
) -> Tensor:
    """All pairs of tokens in tiles: flash attention without the exponential.

    On a GPU in Triton (``kernels/tiled_triton``); elsewhere, in float64, and on an AMD GPU for
    heads wider than 64, ``attention_parallel_no_flash``.

    Cost:
        ``B H T^2 (K + V)`` FLOPs forward and ``3 B H T^2 (K + V)`` backward, causal half counted;
        in addition to the result ``4 B H T (V + 1)`` bytes if normalized, and temporarily the
        features.
    """
    width = max(q_BTHK.shape[-1], v_BTHV.shape[-1])
    fits = not torch.version.hip or width <= WIDEST_ON_AMD
    if kernels.on_triton_device(v_BTHV) and v_BTHV.dtype != torch.float64 and fits:
        check(q_BTHK, k_BTHK, v_BTHV)
        return tiled.attend(q_BTHK, k_BTHK, v_BTHV, feature_map, normalize)
    return attention_parallel_no_flash(q_BTHK, k_BTHK, v_BTHV, feature_map, normalize)


def chunked(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    feature_map: str,
    normalize: bool,
    chunk: int = CHUNK,
) -> Tensor:
    """``chunked_materialized`` in one pass, which keeps the state on the chip.

    On a GPU in Triton (``kernels/chunked_triton``), in bfloat16 up to width 128 and in float32 up
    to 64, with a table of chunk sizes of their own; cost as of ``op.chunked``. Arguments that are
    views of one projection are not copied. Elsewhere it is ``chunked_materialized``.
    """
    if op.runs(v_BTHV, q_BTHK.shape[-1], v_BTHV.shape[-1]):
        check(q_BTHK, k_BTHK, v_BTHV)
        check_chunk(chunk)
        (heads, key), qkv_BTW = q_BTHK.shape[2:], packed(q_BTHK, k_BTHK, v_BTHV)
        return op.chunked(qkv_BTW, heads, key, feature_map, normalize)[0]
    return chunked_materialized(q_BTHK, k_BTHK, v_BTHV, feature_map, normalize, chunk)


def _features(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, feature_map: str
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Features of queries and keys, values, and what is added to the sum of weights."""
    check(q_BTHK, k_BTHK, v_BTHV)
    phi = find(feature_map)
    q, k, v = (at_least_float32(x) for x in (q_BTHK, k_BTHK, v_BTHV))
    return phi.of(q), phi.of(k), v, phi.epsilon
