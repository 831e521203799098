"""Symmetric power attention of degree 2 with a gate for each token and head.

    a_ij = (q_i . k_j)^2 / K * exp(g_{j+1} + ... + g_i)      o_i = sum_j a_ij v_j / (sum_j a_ij + e)

with ``g_t = log sigmoid(x_t w + b)``. A square of a product is a product of features, the
``K (K + 1) / 2`` monomials of degree 2 of a query and of a key, and the state has as many rows. No
weight is negative.

Choices among published alternatives: queries and keys have a width of their own, since the state
grows with its square; b starts from half-lives spread over the heads, as in ``gated``; e is 1e-6.
Rotary positions rotate queries and keys before the square.

Source: Buckman, Gelada and Zhang 2025 (arXiv:2507.04239), sections 2 and 3.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling.attention._recurrent import Normalized, State, half_lives, rotation
from lmscaling.kernels.gated import plain
from lmscaling.kernels.rotary import Rotate


class Attention(Normalized):
    """Averages values with weights that are squares of scores and decay.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Applied to queries and keys.
        width: Width of a query and a key.
        shortest: Half-life of the first head at the start, in tokens.
        longest: Half-life of the last head. A single head has their geometric mean.
    """

    EPSILON = 1e-6
    ON_GPU = (
        "plain PyTorch, because our kernels have no features that are products of elements: "
        "forward, about 6 KB are written and read for each token and head at width 16"
    )

    def __init__(
        self,
        d_model: int,
        n_head: int,
        rotate: Rotate,
        *,
        width: int = 16,
        shortest: float = 1.5,
        longest: float = 512.0,
    ) -> None:
        super().__init__(d_model, n_head, rotation(rotate, width), width, width * (width + 1) // 2)
        self.inside, self.widths = width, (*self.widths, 1)
        self.qkv = nn.Linear(d_model, n_head * sum(self.widths))
        # The gate is 2^(-1 / half-life) at the start.
        starts = (math.log(2) / t for t in half_lives(n_head, shortest, longest))
        # -log(expm1(x)), which also holds where expm1 overflows
        self.bias_H = nn.Parameter(torch.tensor([-x - math.log(-math.expm1(-x)) for x in starts]))
        i, j = torch.triu_indices(width, width)
        self.register_buffer("i_F", i, persistent=False)
        self.register_buffer("j_F", j, persistent=False)

    def _sums(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, *more: Tensor
    ) -> tuple[Tensor, State]:
        start, initial = (0, None) if state is None else (state.length, state.kv_BHKV)
        q, k = (self._rotated(x, start) * self.inside**-0.25 for x in (q, k))
        log_decay_BTH = F.logsigmoid(more[0].squeeze(-1).to(q.dtype) + self.bias_H)
        options = (self.chunk, self._features, torch.square)
        sums, kv = plain.attend(q, k, v, log_decay_BTH, initial, *options)
        return sums, State(kv, start + q.shape[1])

    def _features(self, x: Tensor) -> Tensor:
        """Products of two elements, each pair once: their own products are the squared score."""
        i, j = self.get_buffer("i_F"), self.get_buffer("j_F")
        return x[..., i] * x[..., j] * torch.where(i == j, 1.0, 2.0).to(x.dtype).sqrt()
