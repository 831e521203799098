"""Retention: linear attention in which each head forgets at a fixed rate.

    S_t = gamma S_{t-1} + k_t v_t^T        o_t = S_t^T q_t

with queries and keys of half the width of a head, ``k`` scaled by ``K^-1/2``, a root mean square
norm of each head without weights, and ``silu(x W_r)`` times the result before the last projection.

Choices among published alternatives: rotary positions are applied where the study asks for them, as
in every variant (the paper always rotates, which with decay is its xPos). The rates are fixed
by half-lives, ``gamma = 2^(-1 / half-life)``, spread over the heads, not by
``gamma = 1 - 2^(-5-h)``, with which half of 12 heads hardly forget and no head is local. The
paper's two rescalings of rows are left out: the norm removes them. All weights together are
``4 D^2``, not its ``8 D^2``.

Source: Sun et al. 2023 (arXiv:2307.08621), eq. 5 to 8, sections 2.1 and 2.2.
"""

import math

import torch
from torch import Tensor

from lmscaling.attention._recurrent import Decaying, Tokens, half_lives, rotation
from lmscaling.kernels.chunked_triton import op
from lmscaling.kernels.rotary import Rotate


class Attention(Decaying):
    """Decays at a fixed rate for each head.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Applied to queries and keys.
        shortest: Half-life of the first head in tokens.
        longest: Half-life of the last head. A single head has their geometric mean.
    """

    WIDEST_ON_GPU = op.WIDEST
    form = ("head",)

    def __init__(
        self,
        d_model: int,
        n_head: int,
        rotate: Rotate,
        *,
        shortest: float = 1.5,
        longest: float = 512.0,
    ) -> None:
        super().__init__(d_model, n_head, rotate)
        self.rotate = rotation(rotate, self.key)
        log_decay = [-math.log(2) / t for t in half_lives(n_head, shortest, longest)]
        self.register_buffer("log_decay_H", torch.tensor(log_decay), persistent=False)

    def _rates(self, x_BTD: Tensor) -> Tensor:
        return self.get_buffer("log_decay_H")

    def _tokens(self, q: Tensor, k: Tensor, v: Tensor, rates: Tensor, start: int) -> Tokens:
        return self._rotated(q, start), self._rotated(k, start) * self.key**-0.5, v, rates
