"""What variants with a state of constant size share: projections, prefill and decode.

``Recurrent`` runs any of them. ``Normalized`` divides by the sum of weights, which is the last
column of its state, since a column of ones is appended to the values. ``Decaying`` has gates, half
as wide queries and keys, a norm for each head instead of the division, and an output gate: with
``4 D^2`` parameters it is as large as softmax attention.

Legend: B batch, T tokens, D model width, H heads, K key width, V value width.

Sources: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8 to 20; Yang et al. 2024
(arXiv:2312.06635), section 4.4, for the widths, the norm and the output gate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling import kernels
from lmscaling.attention._documents import Documents
from lmscaling.errors import UserError
from lmscaling.kernels import at_least_float32
from lmscaling.kernels.gated import chunked as gated
from lmscaling.kernels.gated import plain
from lmscaling.kernels.rotary import Rotary, Rotate, unrotated

Tokens = tuple[Tensor, ...]

EPSILON = 1e-12
"""Added to the mean square in an output norm. Narrow models start with outputs of 4e-5, beside the
square of which the usual 1e-5 would look like an effect of a model's size."""


@dataclass
class State:
    """The sum of ``k (x) v`` of the tokens so far, in at least float32, and their number."""

    kv_BHKV: Tensor
    length: int


class Recurrent(nn.Module):
    """Attention with a state. A subclass has ``_mix`` and the widths of its state."""

    CHUNKS = (plain.CHUNK, 32, 128, 256)
    """Tokens per chunk that calibration tries. FLOPs are counted at the first."""

    def __init__(self, d_model: int, n_head: int, rotate: Rotate, key: int, value: int) -> None:
        super().__init__()
        self.d_model, self.n_head, self.key, self.value = d_model, n_head, key, value
        self.chunk, self.rotate = self.CHUNKS[0], rotate
        self.out = nn.Linear(d_model, d_model)

    def tunable(self, device_type: str) -> dict[str, tuple[int | str, ...]]:
        """Tokens per chunk in plain PyTorch; GPU kernels have their own table."""
        by_kernels = device_type == "cuda" and getattr(self, "implementation", "plain") != "plain"
        return {} if by_kernels else {"chunk": self.CHUNKS}

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(self._mix(x_BTD, None)[0].flatten(2))

    def _mix(self, x_BTD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """What heads read, ``[B, T, H, V]``, and the state after it; None is an empty state."""
        raise NotImplementedError

    def init_state(self, batch: int, context: int) -> Any:
        """The same size for every context."""
        weight = at_least_float32(self.out.weight)
        return State(weight.new_zeros(batch, self.n_head, self.key, self.value), 0)

    @torch.no_grad()
    def prefill(self, x_BTD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Without a gradient; continues from any state, which must not be used again."""
        o_BTHV, state = self._mix(x_BTD, state)
        return self.out(o_BTHV.flatten(2)), state

    def decode_step(self, x_BD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Without a gradient; as ``prefill`` of one token."""
        y_BTD, state = self.prefill(x_BD.unsqueeze(1), state)
        return y_BTD.squeeze(1), state

    def _heads(self, x_BTW: Tensor, *widths: int) -> list[Tensor]:
        """Parts of these widths of each head, ``[B, T, H, width]``."""
        parts = x_BTW.split([width * self.n_head for width in widths], -1)
        return [part.unflatten(-1, (self.n_head, -1)) for part in parts]

    def _rotated(self, x_BTHK: Tensor, start: int) -> Tensor:
        return self.rotate(x_BTHK.transpose(1, 2), start).transpose(1, 2)

    def flops_per_token(self, context: int) -> float:
        """All projections; per head, products inside half a chunk and with the state.

        Counted at the default chunk, because the tuning of a device must not move a law's x-axis.
        Exponentials, norms and gates are not counted.
        """
        projections = [m for m in self.modules() if isinstance(m, nn.Linear)]
        chunk = min(self.CHUNKS[0], context)
        return 2 * sum(m.weight.numel() for m in projections) + self.n_head * self._flops(chunk)

    def _flops(self, chunk: int) -> float:
        """Of one head, without projections, with this many tokens per chunk."""
        return chunk * (self.key + self.value) + 4 * self.key * self.value


class Normalized(Recurrent):
    """Weights that are products of features, divided by their sum; always in plain PyTorch."""

    EPSILON = 0.0
    """Added to the sum of weights, where it can be zero."""

    inside: int
    """Width of the products of queries and keys inside a chunk."""

    def __init__(
        self, d_model: int, n_head: int, rotate: Rotate, width: int, features: int
    ) -> None:
        value = d_model // n_head
        super().__init__(d_model, n_head, rotate, features, value + 1)
        self.widths: tuple[int, ...] = (width, width, value)
        self.inside = features
        self.qkv = nn.Linear(d_model, n_head * sum(self.widths))

    def _mix(self, x_BTD: Tensor, state: Any) -> tuple[Tensor, Any]:
        q_BTHK, k_BTHK, v_BTHV, *more = self._heads(self.qkv(x_BTD), *self.widths)
        with torch.autocast(x_BTD.device.type, enabled=False):
            q, k, v = (at_least_float32(x) for x in (q_BTHK, k_BTHK, v_BTHV))
            sums, state = self._sums(q, k, F.pad(v, (0, 1), value=1.0), state, *more)
            o_BTHV = sums[..., :-1] / (sums[..., -1:] + self.EPSILON)
        return o_BTHV.to(v_BTHV.dtype), state

    def _flops(self, chunk: int) -> float:
        V = self.value - 1
        return chunk * (self.inside + V) + 4 * self.key * V

    def _sums(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, *more: Tensor
    ) -> tuple[Tensor, Any]:
        """Weighted sums of v, whose last column is ones, and the state after them. ``more`` are
        further parts of the projection, as ``widths`` says."""
        raise NotImplementedError


class Decaying(Recurrent):
    """Gates instead of a division; a subclass has ``_rates`` and ``_tokens``."""

    FAMILY, DEFAULT = "gated", "chunked"
    """The folder of ``kernels/``, and the file in it that is used."""
    TIMED_AS = "chunks"
    form: tuple[str, ...] = ("token",)
    """What has a gate of its own: a ``head``, each ``token`` or each ``channel``."""

    def __init__(self, d_model: int, n_head: int, rotate: Rotate) -> None:
        if d_model % (2 * n_head):
            raise UserError(
                f"heads of width {d_model / n_head:g} have no queries of half the width; "
                f"allowed: an even width, so a divisor of {d_model // 2} as n_head"
            )
        super().__init__(d_model, n_head, rotate, d_model // n_head // 2, d_model // n_head)
        self.qkvr = nn.Linear(d_model, 3 * d_model)
        self.implementation = self.DEFAULT

    @property
    def implementation(self) -> str:
        """File stem in the folder of ``kernels/`` that ``FAMILY`` names."""
        return self._implementation

    @implementation.setter
    def implementation(self, name: str) -> None:
        # Loaded here and not in every forward pass, because a compiler cannot trace an import.
        self._implementation, self._attend = name, kernels.load(self.FAMILY, name)
        self._takes_chunk = kernels.takes_chunk(self._attend)

    @property
    def COMPILES(self) -> bool:
        """Kernels of others stay outside of compiled graphs."""
        return self.implementation != "fla"

    def forward_documents(self, x_BTD: Tensor, documents: Documents) -> Tensor:
        """Our GPU kernels, which have no gates of channels, start a new state at each document."""
        is_ours = self.implementation == "chunked" and self.form != ("channel",)
        if not (is_ours and kernels.on_triton_device(x_BTD)):
            return documents.each(self, x_BTD)
        return self.out(self._mix(x_BTD, None, documents.lengths)[0].flatten(2))

    def _mix(self, x_BTD: Tensor, state: Any, lengths: Sequence[int] = ()) -> tuple[Tensor, Any]:
        K, V, start = self.key, self.value, 0 if state is None else state.length
        q, k, v, r = self._heads(self.qkvr(x_BTD), K, K, V, V)
        rates = self._rates(x_BTD)
        with torch.autocast(x_BTD.device.type, enabled=False):
            tokens = self._tokens(q, k, v, at_least_float32(rates), start)
            if state is not None and x_BTD.shape[1] == 1:
                o_BTHV, kv_BHKV = self._step(tokens, state.kv_BHKV)
            else:
                initial = None if state is None else state.kv_BHKV
                options: dict[str, Any] = {"lengths": lengths} if lengths else {}
                options |= {"chunk": self.chunk} if self._takes_chunk else {}
                o_BTHV, kv_BHKV = self._attend(*tokens, initial, **options)
            o_BTHV = self._norm(at_least_float32(o_BTHV)) * F.silu(at_least_float32(r))
        return o_BTHV.to(v.dtype), State(kv_BHKV, start + x_BTD.shape[1])

    def _norm(self, o_BTHV: Tensor) -> Tensor:
        return F.rms_norm(o_BTHV, (self.value,), eps=EPSILON)

    def _rates(self, x_BTD: Tensor) -> Tensor:
        """Projections for the gates."""
        raise NotImplementedError

    def _tokens(self, q: Tensor, k: Tensor, v: Tensor, rates: Tensor, start: int) -> Tokens:
        """The first arguments of an implementation: q, k, v and gates."""
        raise NotImplementedError

    def _step(self, tokens: Tokens, kv_BHKV: Tensor) -> tuple[Tensor, Tensor]:
        """The output of one token; updates the state in place."""
        q, k, v, g = (x if x.dim() == 1 else x[:, 0] for x in tokens)
        return gated.step(q, k, v, g, kv_BHKV).unsqueeze(1), kv_BHKV


class Decay(nn.Module):
    """Gates ``exp(-A dt)``, ``dt = softplus(rate + bias)``, with A and the bias of each head.

    ``dt`` starts at 0.1 for the head of the shortest half-life and at 0.001 for that of the
    longest, the range of Mamba-2, and A such that the half-lives are those of ``half_lives``.
    """

    def __init__(self, n_head: int, shortest: float, longest: float) -> None:
        super().__init__()
        dt = spread(n_head, 0.1, 0.001)
        tokens = half_lives(n_head, shortest, longest)
        log_A = [math.log(math.log(2) / (t * d)) for t, d in zip(tokens, dt, strict=True)]
        self.log_A_H = nn.Parameter(torch.tensor(log_A))
        self.bias_H = nn.Parameter(torch.tensor([d + math.log(-math.expm1(-d)) for d in dt]))

    def forward(self, rate_BTH: Tensor) -> tuple[Tensor, Tensor]:
        """``dt`` and the log-decay, ``[B, T, H]``."""
        dt = F.softplus(rate_BTH + self.bias_H)
        return dt, -self.log_A_H.exp() * dt


def half_lives(n_head: int, shortest: float, longest: float) -> list[float]:
    """Tokens after which half of a value is left, of each head.

    Spread evenly on a log scale: short runs learn local structure first, and a head that is local
    from the start decides how soon.

    Raises:
        UserError: The half-lives are not positive, or in the wrong order.
    """
    if not 0 < shortest <= longest:
        raise UserError(
            f"shortest {shortest:g}, longest {longest:g} are no half-lives; "
            "allowed: positive tokens, the longest at least the shortest"
        )
    return spread(n_head, shortest, longest)


def spread(n: int, first: float, last: float) -> list[float]:
    """n numbers between two, evenly on a log scale; one alone is their geometric mean."""
    shares = [i / (n - 1) for i in range(n)] if n > 1 else [0.5]
    return [first ** (1 - share) * last**share for share in shares]


def rotation(rotate: Rotate, width: int) -> Rotate:
    """The same kind of rotation for queries and keys of another width."""
    return rotate if rotate is unrotated else Rotary(width)
