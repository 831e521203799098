"""The gated delta rule in chunks, in plain PyTorch; autograd computes the gradients.

Of one head, with scalars ``a_t = exp(log_decay_t)`` and ``b_t = beta_t``::

    S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T
    y_t = scale S_t^T q_t

A token's key reads the decayed state, and ``b_t`` of what it reads is replaced by ``v_t``. In a
chunk, what is written instead solves a triangular system of the products of its keys.

Legend: B batch, T tokens, H heads, K key width, V value width, N chunks, C chunk.

Source: Yang et al. 2024 (arXiv:2412.06464), eq. 10; without decay Yang et al. 2024
(arXiv:2406.06484).
"""

import torch
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import at_least_float32
from lmscaling.kernels.gated.plain import cut

CHUNK = 32


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor | None = None,
    initial_BHKV: Tensor | None = None,
    scale: float | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule; ValueError if the arguments do not match.

    Args:
        q_BTHK: Queries.
        k_BTHK: Keys of unit length: longer ones make the state grow without bound.
        v_BTHV: Values.
        beta_BTH: The part that is replaced, in (0, 2).
        log_decay_BTH: Logarithms of the decays, at most 0; None for the rule without decay.
        initial_BHKV: The state before the first token; None for zeros.
        scale: Factor of y; ``K^-1/2`` if None.
        chunk: Tokens per chunk.

    Returns:
        ``y_BTHV`` in the dtype of v, and the state after the last token in at least float32.

    Cost:
        ``B H T (2 C (K + V) + 6 K V)`` FLOPs forward, causal half counted.
    """
    kernels.check(q_BTHK, k_BTHK, v_BTHV)
    B, T, H, K = q_BTHK.shape
    V, chunk = v_BTHV.shape[3], min(chunk, T)
    optional = {"log_decay": (log_decay_BTH, (B, T, H)), "initial": (initial_BHKV, (B, H, K, V))}
    for name, (x, shape) in ({"beta": (beta_BTH, (B, T, H))} | optional).items():
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; allowed: {shape}")
    factor = K**-0.5 if scale is None else scale
    q, k, v = (cut(at_least_float32(x), chunk) for x in (q_BTHK, k_BTHK, v_BTHV))
    beta = cut(beta_BTH.to(q.dtype).unsqueeze(-1), chunk)
    g = torch.zeros_like(beta_BTH) if log_decay_BTH is None else log_decay_BTH
    decay = cut(g.to(q.dtype).unsqueeze(-1), chunk).cumsum(3)
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    between = (decay - decay.mT).masked_fill(~lower, float("-inf")).exp()
    rows = torch.cat([beta * v, beta * decay.exp() * k], -1)
    # The solver takes the diagonal as ones and reads nothing above it.
    system = beta * (k @ k.mT) * between
    solved = torch.linalg.solve_triangular(system, rows, upper=False, unitriangular=True)
    values, keys = solved.split([V, K], -1)
    weights = factor * (q @ k.mT) * between
    reads, last = factor * decay.exp() * q, decay[..., -1:, :]
    writes = ((last - decay).exp() * k).mT
    state = q.new_zeros(B, H, K, V)
    state = state if initial_BHKV is None else state + initial_BHKV
    y_N = []
    # Unbound, because the gradient of an index is a tensor as large as what it was taken from.
    chunks = (x.unbind(2) for x in (values, keys, reads, weights, last.exp(), writes))
    for value, key, read, weight, kept, write in zip(*chunks, strict=True):
        u = value - key @ state
        y_N.append(read @ state + weight @ u)
        state = kept * state + write @ u
    return torch.cat(y_N, 2)[:, :, :T].transpose(1, 2).to(v_BTHV.dtype), state


@torch.no_grad()
def step(
    q_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    beta_BH: Tensor,
    log_decay_BH: Tensor | None,
    state_BHKV: Tensor,
    scale: float | None = None,
) -> Tensor:
    """The next token's ``y_BHV`` in the dtype of v; updates the state in place, no gradient.

    Arguments are those of ``attend``, without the axis of tokens.

    Cost:
        ``7 B H K V`` FLOPs; the state is read three times and written twice.
    """
    dtype = state_BHKV.dtype
    q, k, v = (x.to(dtype).unsqueeze(-2) for x in (q_BHK, k_BHK, v_BHV))
    if log_decay_BH is not None:
        state_BHKV *= log_decay_BH.to(dtype).exp()[..., None, None]
    state_BHKV += k.mT @ (beta_BH.to(dtype)[..., None, None] * (v - k @ state_BHKV))
    factor = q_BHK.shape[-1] ** -0.5 if scale is None else scale
    return (factor * (q @ state_BHKV)).squeeze(-2).to(v_BHV.dtype)
