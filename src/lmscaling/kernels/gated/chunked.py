"""Linear attention with gates, in chunks: Triton kernels on CUDA tensors, plain PyTorch on others.

The definition is in ``plain.py``. The kernels have gates of heads and of tokens, but none of
channels, which are computed in plain PyTorch everywhere.

Legend: B batch, T tokens, H heads, K key width, V value width.
"""

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import decode
from lmscaling.kernels.chunked_triton import op
from lmscaling.kernels.chunked_triton.packing import packed
from lmscaling.kernels.chunked_triton.plan import block, check_lengths, compiles_gates, numbered
from lmscaling.kernels.gated import plain


def attend(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay: Tensor,
    initial_NHKV: Tensor | None = None,
    chunk: int = plain.CHUNK,
    lengths: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """Weighted sums of values, and the state after each sequence; see ``plain.attend``.

    The kernels are those of ``linear.forms.chunked``. Within a chunk sums of gates are float32: a
    gate after a sum of -1,000 is exact to 1e-4.

    With ``lengths``, the tokens of N sequences that follow one another in the rows, and of which
    none crosses the end of a row, there are N states. Not with gates of channels.

    Raises:
        ValueError: The arguments do not match.
    """
    kernels.check(q_BTHK, k_BTHK, v_BTHV)
    B, T, H, V = v_BTHV.shape
    K = k_BTHK.shape[3]
    if op.runs(v_BTHV, K, V) and log_decay.dim() < 4 and _runs_gates(v_BTHV.device.index):
        y_BTHV, states_NHX = op.chunked(
            packed(q_BTHK, k_BTHK, v_BTHV), H, K, "identity", False,
            log_decay=log_decay, initial=None if initial_NHKV is None else _padded(initial_NHKV),
            lengths=lengths, final=True,
        )  # fmt: skip
        state = states_NHX[..., : block(K) * block(V)].unflatten(-1, (block(K), -1))
        return y_BTHV, state[..., :K, :V].contiguous()  # as the kernel of ``step`` needs it
    if not lengths:
        return plain.attend(q_BTHK, k_BTHK, v_BTHV, log_decay, initial_NHKV, chunk)
    check_lengths(B, T, lengths)
    tokens = (q_BTHK, k_BTHK, v_BTHV, log_decay.expand(B, T, H))
    parts = zip(*(x.flatten(0, 1).split(list(lengths)) for x in tokens), strict=True)
    initial = [None] * len(lengths) if initial_NHKV is None else initial_NHKV.split(1)
    done = [
        plain.attend(q[None], k[None], v[None], g[None], state, chunk)
        for (q, k, v, g), state in zip(parts, initial, strict=True)
    ]
    y, final = zip(*done, strict=True)
    return torch.cat(y, 1).view(v_BTHV.shape), torch.cat(final)


@kernels.constant
def _runs_gates(device: int) -> bool:
    """Whether the kernels run with gates on a GPU, by its number; warns once about one without."""
    if compiles_gates(numbered(*torch.cuda.get_device_capability(device))):
        return True
    warnings.warn(
        f"the kernels with gates do not compile for {torch.cuda.get_device_name(device)} by Triton "
        "3.6 and 3.7: plain PyTorch is used, which is slower",
        stacklevel=2,
    )
    return False


def _padded(state_NHKV: Tensor) -> Tensor:
    """A state as the kernels read it, ``[N, H, state_width]``: the sum of keys, which only a
    division reads, is zero."""
    K, V = state_NHKV.shape[2:]
    padded = F.pad(state_NHKV, (0, block(V) - V, 0, block(K) - K)).flatten(2)
    return F.pad(padded, (0, block(K))).float()


@torch.no_grad()
def step(
    q_BHK: Tensor, k_BHK: Tensor, v_BHV: Tensor, log_decay: Tensor, state_BHKV: Tensor
) -> Tensor:
    """The next token's ``y_BHV``; updates the state in place, no gradient.

    ``log_decay`` are its gates, ``[H]``, ``[B, H]`` or ``[B, H, K]``; the state is that before the
    token, at least float32.

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
