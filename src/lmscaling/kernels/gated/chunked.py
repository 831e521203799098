"""Linear attention with gates, in chunks: Triton kernels on CUDA tensors, plain PyTorch on others.

The definition is in ``plain.py``. The kernels have gates of heads and of tokens, but none of
channels, which are computed in plain PyTorch everywhere.

Legend: B batch, T tokens, H heads, K key width, V value width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import decode
from lmscaling.kernels.gated import plain
from lmscaling.kernels.gated.plain import CHUNK


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay: Tensor,
    initial_BHKV: Tensor | None = None,
    chunk: int = CHUNK,
    lengths: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """Weighted sums of values, and the state after the last token; see ``plain.attend``.

    The kernels support bfloat16 up to width 128 and float32 up to 64, and have a table of chunk
    sizes of their own; ``chunk`` is that of plain PyTorch. ``lengths``, not with gates of channels,
    are the tokens of the sequences in the rows; see ``linear_attention``.

    Raises:
        ValueError: The arguments do not match.
    """
    kernels.check(q_BTHK, k_BTHK, v_BTHV)
    if not lengths and (log_decay.dim() == 4 or not kernels.on_triton_device(v_BTHV)):
        return plain.attend(q_BTHK, k_BTHK, v_BTHV, log_decay, initial_BHKV, chunk)
    # Without a division nothing reads the sum of keys.
    initial = None if initial_BHKV is None else kernels.State(initial_BHKV, initial_BHKV[..., 0])
    y_BTHV, state = kernels.linear_attention(
        q_BTHK, k_BTHK, v_BTHV,
        feature_map="identity", normalize=False, log_decay=log_decay, initial=initial,
        lengths=lengths,
    )  # fmt: skip
    return y_BTHV, state.kv_NHKV.contiguous()  # as the kernel of ``step`` needs it


@torch.no_grad()
def step(
    q_BHK: Tensor, k_BHK: Tensor, v_BHV: Tensor, log_decay: Tensor, state_BHKV: Tensor
) -> Tensor:
    """The next token's ``y_BHV``; updates the state in place, no gradient.

    Args:
        q_BHK: Query of the token.
        k_BHK: Key of the token.
        v_BHV: Value of the token.
        log_decay: Its gates, ``[H]``, ``[B, H]`` or ``[B, H, K]``.
        state_BHKV: State before the token, at least float32; updated.

    Cost:
        ``5 B H K V`` FLOPs; the state is read and written once.
    """
    if log_decay.dim() < 3:
        g_BH = log_decay.expand(q_BHK.shape[:2])
        sums = (state_BHKV, state_BHKV[..., 0])  # nothing reads the sum of keys
        return decode.step(q_BHK, k_BHK, v_BHV, *sums, "identity", False, g_BH)
    q, k, v, g = (x.to(state_BHKV.dtype) for x in (q_BHK, k_BHK, v_BHV, log_decay))
    state_BHKV *= g.exp().unsqueeze(-1)
    state_BHKV += k.unsqueeze(-1) * v.unsqueeze(-2)
    return (q.unsqueeze(-2) @ state_BHKV).squeeze(-2).to(v_BHV.dtype)
