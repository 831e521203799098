"""Linear attention as a function of tensors, with gates, states and sequences of several lengths.

A state is a matrix for each head. Token t scales it by a gate and adds its key and value::

    S_t = exp(g_t) S_{t-1} + phi(k_t) v_t^T        z_t = exp(g_t) z_{t-1} + phi(k_t)
    y_t = S_t^T phi(q_t)                           divided by phi(q_t) . z_t if normalized

Without gates this is linear attention; with one constant gate for each head, retention; with one
for each token and head, the recurrence of Mamba-2 and of gated linear attention with scalar gates.

A case to check by hand: one head, K = V = 1, feature map ``identity``, not normalized, queries
1, 1, keys 1, 1, values 3, 5 and gates exp(g) = 1/2. Then S_1 = 3, S_2 = 3/2 + 5 = 13/2, and y is
3, 13/2. In one chunk the same numbers are a masked product: the weight of token 1 in row 2 is
1/2, so y_2 = 1/2 * 3 + 1 * 5.

Legend: B batch, T tokens, H heads, K key width, V value width, C chunk, N sequences.

Sources: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 16 to 20; Sun et al. 2023
(arXiv:2307.08621), eq. 5 to 7; Yang et al. 2024 (arXiv:2312.06635), section 4; Dao and Gu 2024
(arXiv:2405.21060), section 6.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import segments
from lmscaling.kernels.chunked_triton import op
from lmscaling.kernels.chunked_triton.plan import block, compiles_gates, numbered
from lmscaling.kernels.feature_maps import find
from lmscaling.kernels.gated import plain
from lmscaling.kernels.gated.plain import CHUNK
from lmscaling.kernels.linear.chunked import packed


class State(NamedTuple):
    """What a sequence has stored, for N sequences; at least float32."""

    kv_NHKV: Tensor
    """Sum of phi(k) v^T, each scaled by the gates after it."""
    k_NHK: Tensor
    """Sum of phi(k), likewise; without meaning unless normalized."""


def linear_attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    *,
    feature_map: str = "softplus",
    normalize: bool = True,
    log_decay: Tensor | None = None,
    initial: State | None = None,
    lengths: Sequence[int] = (),
) -> tuple[Tensor, State]:
    """Causal linear attention, and the state after each sequence.

    Gradients flow to queries, keys, values, gates and the initial state, from the result and from
    the state. On CUDA devices, float32 up to width 64 and bfloat16 up to width 128 are computed by
    Triton kernels; everything else by plain PyTorch. Under autocast, the arguments of the kernels
    have its dtype. A feature map is added to ``kernels/feature_maps.py`` and, for the kernels, to
    ``kernels/chunked_triton/features.py``.

    Args:
        q_BTHK: Queries; float32, float64 or bfloat16.
        k_BTHK: Keys. They and the values may have fewer heads, of which each serves as many
            consecutive heads of queries; they are then copied for each.
        v_BTHV: Values.
        feature_map: A name of ``feature_maps.FEATURE_MAPS``.
        normalize: Whether to divide by the sum of weights.
        log_decay: Natural logarithms of the gates, not positive, which is not checked: ``[H]`` or
            ``[B, T, H]``; 1 everywhere if not given. Within a chunk their sums are float32: a gate
            after a sum of -1,000 is exact to 1e-4.
        initial: State before each sequence; zero if not given.
        lengths: Tokens of each sequence. Sequences follow one another in a row and none crosses
            its end. If not given, each row is a sequence.

    Returns:
        ``y_BTHV`` in the dtype of ``v``, and the state after each sequence.

    Raises:
        ValueError: The arguments do not match, or the feature map is unknown.

    Examples:
        >>> import torch
        >>> from lmscaling.kernels import linear_attention
        >>> q, k, v = torch.randn(3, 2, 100, 4, 16).unbind()  # B 2, T 100, H 4, K and V 16
        >>> y, state = linear_attention(q, k, v)
        >>> y.shape, state.kv_NHKV.shape
        (torch.Size([2, 100, 4, 16]), torch.Size([2, 4, 16, 16]))

        In two parts, the second from the state after the first:

        >>> head, state = linear_attention(q[:, :60], k[:, :60], v[:, :60])
        >>> tail, state = linear_attention(q[:, 60:], k[:, 60:], v[:, 60:], initial=state)
        >>> torch.allclose(torch.cat([head, tail], 1), y, atol=1e-5)
        True

    Cost:
        ``4 B H T (C + K) V`` FLOPs forward and ``10 B H T (C + K) V`` backward at K = V. The
        kernels read q, k and v once and write y once; for the backward pass they write a state of
        ``K V`` for each chunk. They split long sequences among programs where there are too few
        heads to fill a device.
    """
    if torch.is_autocast_enabled(v_BTHV.device.type):
        dtype = torch.get_autocast_dtype(v_BTHV.device.type)
        q_BTHK, k_BTHK, v_BTHV = (x.to(dtype) for x in (q_BTHK, k_BTHK, v_BTHV))
    k_BTHK, v_BTHV = (_for_each_query(x, q_BTHK, n) for x, n in ((k_BTHK, "k"), (v_BTHV, "v")))
    kernels.check(q_BTHK, k_BTHK, v_BTHV)
    find(feature_map)
    _check(v_BTHV, k_BTHK.shape[3], log_decay, initial, lengths)
    key, value = k_BTHK.shape[3], v_BTHV.shape[3]
    runs = kernels.on_triton_device(v_BTHV) and op.takes(v_BTHV.dtype, key, value)
    if runs and (log_decay is None or _runs_gates(v_BTHV.device.index)):
        with torch.autocast("cuda", enabled=False):
            y_BTHV, states = op.chunked(
                packed(q_BTHK, k_BTHK, v_BTHV), q_BTHK.shape[2], key, feature_map, normalize,
                log_decay=log_decay, initial=None if initial is None else join(initial),
                lengths=lengths, final=True,
            )  # fmt: skip
        return y_BTHV, split(states, key, value)
    return _plain(q_BTHK, k_BTHK, v_BTHV, feature_map, normalize, log_decay, initial, lengths)


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


def join(state: State) -> Tensor:
    """A state as the kernels read it: ``[N, H, state_width]``, float32, widths padded by zeros."""
    key, value = state.kv_NHKV.shape[2:]
    more_k, more_v = block(key) - key, block(value) - value
    kv_NHX = F.pad(state.kv_NHKV, (0, more_v, 0, more_k)).flatten(2)
    return torch.cat([kv_NHX, F.pad(state.k_NHK, (0, more_k))], -1).float()


def split(state_NHX: Tensor, key: int, value: int) -> State:
    """The inverse of ``join``."""
    K, V = block(key), block(value)
    kv_NHX, k_NHK = state_NHX.split([K * V, K], -1)
    return State(kv_NHX.unflatten(-1, (K, V))[..., :key, :value], k_NHK[..., :key])


def _for_each_query(x_BTHX: Tensor, q_BTHK: Tensor, name: str) -> Tensor:
    """Keys or values with as many heads as the queries."""
    if x_BTHX.dim() != q_BTHK.dim() or x_BTHX.shape[2] in (0, q_BTHK.shape[2]):
        return x_BTHX
    heads, groups = q_BTHK.shape[2], x_BTHX.shape[2]
    if heads % groups:
        raise ValueError(f"{name} has {groups} heads; allowed: divisors of the {heads} of q")
    return x_BTHX.repeat_interleave(heads // groups, 2)


def _check(
    v_BTHV: Tensor,
    key: int,
    log_decay: Tensor | None,
    initial: State | None,
    lengths: Sequence[int],
) -> None:
    """Raise ValueError if gates, states or lengths do not match the values."""
    B, T, H, V = v_BTHV.shape
    if log_decay is not None and log_decay.shape not in ((H,), (B, T, H)):
        raise ValueError(
            f"log_decay has shape {tuple(log_decay.shape)}; allowed: ({H},) or ({B}, {T}, {H})"
        )
    segments.check(B, T, lengths)
    if initial is not None:
        N = len(lengths) or B
        for name, allowed in zip(State._fields, ((N, H, key, V), (N, H, key)), strict=True):
            found = tuple(getattr(initial, name).shape)
            if found != allowed:
                raise ValueError(f"initial.{name} has shape {found}; allowed: {allowed}")


def _plain(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    feature_map: str,
    normalize: bool,
    log_decay: Tensor | None,
    initial: State | None,
    lengths: Sequence[int],
) -> tuple[Tensor, State]:
    """The same in plain PyTorch; a column of ones beside the values sums the weights."""
    phi, (B, T, H, V) = find(feature_map), v_BTHV.shape
    q, k = (phi.of(kernels.at_least_float32(x)) for x in (q_BTHK, k_BTHK))
    v = F.pad(kernels.at_least_float32(v_BTHV), (0, 1), value=1.0)
    g = q.new_zeros(H) if log_decay is None else log_decay.to(q.dtype)
    state_NHKV = q.new_zeros(len(lengths) or B, H, q.shape[3], V + 1)
    if initial is not None:
        state_NHKV = torch.cat([initial.kv_NHKV, initial.k_NHK.unsqueeze(-1)], -1).to(q.dtype)
    if not lengths:
        sums, state_NHKV = plain.attend(q, k, v, g, state_NHKV, CHUNK)
    else:
        parts = [x.flatten(0, 1).split(list(lengths)) for x in (q, k, v, g.expand(B, T, H))]
        rows = ([x.unsqueeze(0) for x in each] for each in zip(*parts, state_NHKV, strict=True))
        done = [plain.attend(q, k, v, g, state, CHUNK) for q, k, v, g, state in rows]
        sums = torch.cat([y for y, _ in done], 1).view(B, T, H, V + 1)
        state_NHKV = torch.cat([state for _, state in done])
    y_BTHV = sums[..., :V]
    if normalize:
        y_BTHV = y_BTHV / (sums[..., V:] + phi.epsilon)
    return y_BTHV.to(v_BTHV.dtype), State(state_NHKV[..., :V], state_NHKV[..., V])
