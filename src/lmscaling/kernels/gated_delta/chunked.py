"""The gated delta rule in chunks: Triton kernels on CUDA tensors, plain PyTorch on others.

Of one head, with scalars ``a_t = exp(log_decay_t)`` and ``b_t = beta_t``::

    S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T
    y_t = scale S_t^T q_t

A token's key reads the decayed state, and ``b_t`` of what it reads is replaced by ``v_t``.

Legend: B batch, T tokens, H heads, K key width, V value width, C chunk, P sequences.

Source: Yang et al. 2024 (arXiv:2412.06464), eq. 10; without decay Yang et al. 2024
(arXiv:2406.06484).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import segments
from lmscaling.kernels.delta_triton import op
from lmscaling.kernels.gated_delta import plain


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    beta_BTH: Tensor,
    log_decay_BTH: Tensor | None = None,
    initial_PHKV: Tensor | None = None,
    lengths: Sequence[int] = (),
    scale: float | None = None,
    chunk: int = op.CHUNK,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule, and the state after it.

    The kernels support bfloat16 up to width 128 and float32 up to 64. Everything else, and every
    tensor that is not on an NVIDIA GPU, is computed in plain PyTorch. Sums, decays and the states
    that are returned are at least float32.

    Args:
        q_BTHK: Queries, in float32, float64 or bfloat16 like k and v.
        k_BTHK: Keys of unit length: longer ones make the state grow without bound.
        v_BTHV: Values.
        beta_BTH: The part that is replaced, in (0, 2), of any floating-point dtype.
        log_decay_BTH: Logarithms of the decays, at most 0, of any floating-point dtype; None for
            the delta rule without decay. A state is reset by ``lengths`` and not by a large
            negative number, which costs the later decays of its chunk their precision.
        initial_PHKV: The state before each sequence; None for zeros.
        lengths: Tokens of each sequence, as of a document. Sequences follow one another in a row
            and none crosses its end. If not given, each row is a sequence.
        scale: Factor of y; ``K^-1/2`` if None.
        chunk: Tokens per chunk in plain PyTorch; the kernels have their own.

    Returns:
        ``y_BTHV`` in the dtype of v, and the state after each sequence, ``[P, H, K, V]`` in at
        least float32. Gradients flow through both, to all arguments.

    Raises:
        ValueError: The arguments do not match.

    Examples:
        >>> import torch
        >>> from lmscaling.kernels import gated_delta_attention
        >>> q, k, v = torch.randn(3, 2, 100, 4, 16).unbind()  # B 2, T 100, H 4, K and V 16
        >>> k = torch.nn.functional.normalize(k, dim=-1)
        >>> beta, decay = torch.rand(2, 100, 4), -torch.rand(2, 100, 4)
        >>> y, state = gated_delta_attention(q, k, v, beta, decay)
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4, 16]), torch.Size([2, 4, 16, 16]))

    Cost:
        ``B H T (2 C (K + V) + 6 K V)`` FLOPs forward, causal half counted, and
        ``B H T (C (7 K + 4 V) + 12 K V)`` backward. At V <= 64 the kernels read and write
        ``B H T (3 K + 3 V + 2 C + K V / C)`` elements forward, of which they keep
        ``B H T (V + C + K V / C)``, and ``B H T (6 K + 7 V + C + 3 K V / C)`` backward. Programs
        that share wider values read queries and keys each.
    """
    kernels.check(q_BTHK, k_BTHK, v_BTHV)
    B, T, H, K = q_BTHK.shape
    V, P = v_BTHV.shape[3], len(lengths) or B
    segments.check(B, T, lengths)
    optional = {"log_decay": (log_decay_BTH, (B, T, H)), "initial": (initial_PHKV, (P, H, K, V))}
    for name, (x, shape) in ({"beta": (beta_BTH, (B, T, H))} | optional).items():
        if x is not None and x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; allowed: {shape}")
    factor = K**-0.5 if scale is None else scale
    runs = kernels.on_triton_device(v_BTHV) and not torch.version.hip
    if runs and op.takes(v_BTHV.dtype, K, V):
        single = (x if x is None else x.float() for x in (beta_BTH, log_decay_BTH, initial_PHKV))
        return op.delta(q_BTHK, k_BTHK, v_BTHV, *single, list(lengths), factor)[:2]
    tokens = (q_BTHK, k_BTHK, v_BTHV, beta_BTH, log_decay_BTH)
    return plain.attend(*tokens, initial_PHKV, lengths, factor, chunk)


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

    Args:
        q_BHK: Query of the token.
        k_BHK: Key of the token, of unit length.
        v_BHV: Value of the token.
        beta_BH: As in ``attend``.
        log_decay_BH: As in ``attend``.
        state_BHKV: State before the token, at least float32; updated.
        scale: As in ``attend``.

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
