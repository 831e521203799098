"""Linear attention with one part changed: how its state forgets, or what its output is divided by.

    S_t = exp(g_t) S_{t-1} + phi(k_t) (v_t, 1)^T    (n_t, d_t) = S_t^T phi(q_t)    phi = softplus

The output is ``n_t / d_t`` with ``norm: sum``, and ``n_t`` over its root mean square with ``rms``.
``g_t`` is 0 with ``gate: none``, ``log sigmoid(x_t w + 6)`` for each head with ``scalar``, and
``-log(2) / half_life`` with ``decay``. By default it is ``linear`` without positions. The other
variants with a state change widths, norm, output gate and decay at once, so a contrast of one of
them with ``linear`` does not say which part matters. Positions are not rotated: ``rotate`` is
ignored.

Sources: Katharopoulos et al. 2020 (arXiv:2006.16236) for the sum; Qin et al. 2022
(arXiv:2210.10340), section 4.1, for the norm in its place.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling.attention._recurrent import EPSILON, Decaying, Recurrent, State
from lmscaling.errors import UserError
from lmscaling.kernels import at_least_float32
from lmscaling.kernels.chunked_triton import op
from lmscaling.kernels.feature_maps import find
from lmscaling.kernels.rotary import Rotate, unrotated

NORMS, GATES = ("sum", "rms"), ("none", "scalar", "decay")
BIAS = 6.0
"""Of a learned gate: at the start half of a value is left after 280 tokens."""


class Attention(Decaying):
    """Weighted sums of values, of whose state one part can be chosen.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Ignored.
        norm: ``sum`` divides by the sum of weights, ``rms`` by the root mean square of the output.
        gate: ``none``, ``scalar`` for each token and head, or a fixed ``decay``.
        half_life: Tokens after which a fixed decay leaves half of a value.

    Raises:
        UserError: There is no such norm or gate, or the half-life is not positive.
    """

    FEATURE_MAP = "softplus"
    WIDEST_ON_GPU = op.WIDEST - 1
    smallest_divisor: Tensor | None = None
    """The smallest sum of weights of the last forward pass, which the log keeps."""

    def __init__(
        self,
        d_model: int,
        n_head: int,
        rotate: Rotate,
        *,
        norm: str = "sum",
        gate: str = "none",
        half_life: float = 64.0,
    ) -> None:
        for key, value, allowed in (("norm", norm, NORMS), ("gate", gate, GATES)):
            if value not in allowed:
                raise UserError(
                    f"{key} of linear_parts is {value!r}; allowed: {', '.join(allowed)}"
                )
        if not half_life > 0:
            raise UserError(f"half_life of linear_parts is {half_life:g}; allowed: above 0 tokens")
        self.width, self.has_sum = d_model // n_head, norm == "sum"
        # Not that of Decaying, whose queries have half the width and whose output has a gate.
        widths = self.width, self.width + self.has_sum
        Recurrent.__init__(self, d_model, n_head, unrotated, *widths)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.implementation = self.DEFAULT
        self.form = ("token",) if gate == "scalar" else ("head",)
        self.rate = nn.Linear(d_model, n_head, bias=False) if gate == "scalar" else None
        if self.rate:
            self.bias_H = nn.Parameter(torch.full((n_head,), BIAS))
        rate = -math.log(2) / half_life if gate == "decay" else 0.0
        self.register_buffer("log_decay_H", torch.full((n_head,), rate), persistent=False)

    def _log_decay(self, x_BTD: Tensor) -> Tensor:
        """Logarithms of gates, ``[B, T, H]`` or ``[H]``."""
        if self.rate is None:
            return self.get_buffer("log_decay_H")
        return F.logsigmoid(at_least_float32(self.rate(x_BTD)) + self.bias_H)

    def _mix(self, x_BTD: Tensor, state: Any, lengths: Sequence[int] = ()) -> tuple[Tensor, Any]:
        q, k, v = self._heads(self.qkv(x_BTD), *[self.width] * 3)
        log_decay = self._log_decay(x_BTD)
        with torch.autocast(x_BTD.device.type, enabled=False):
            q, k, v_BTHV = (at_least_float32(x) for x in (q, k, v))
            ones = F.pad(v_BTHV, (0, 1), value=1.0) if self.has_sum else v_BTHV
            phi, epsilon = find(self.FEATURE_MAP)
            tokens = phi(q), phi(k), ones, log_decay
            if state is not None and x_BTD.shape[1] == 1:
                o_BTHV, kv_BHKV = self._step(tokens, state.kv_BHKV)
            else:
                options: dict[str, Any] = {"lengths": lengths} if lengths else {}
                options |= {"chunk": self.chunk} if self._takes_chunk else {}
                initial = None if state is None else state.kv_BHKV
                o_BTHV, kv_BHKV = self._attend(*tokens, initial, **options)
            if self.has_sum:
                self.smallest_divisor = o_BTHV[..., -1].detach().amin()
                o_BTHV = o_BTHV[..., :-1] / (o_BTHV[..., -1:] + epsilon)
            else:
                o_BTHV = F.rms_norm(o_BTHV, (self.width,), eps=EPSILON)
        length = (0 if state is None else state.length) + x_BTD.shape[1]
        return o_BTHV.to(v.dtype), State(kv_BHKV, length)

    def _flops(self, chunk: int) -> float:
        return chunk * 2 * self.width + 4 * self.width**2
