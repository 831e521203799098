"""Gated linear attention: a gate for each token and channel of the keys.

    S_t = exp(g_t) S_{t-1} + k_t v_t^T    o_t = S_t^T q_t    g_t = log sigmoid(x W_1 W_2 + b) / tau

The gate scales rows of the state. Queries and keys have half the width of a head and queries are
scaled by ``K^-1/2``; a root mean square norm of each head with one weight for each channel, then
``silu(x W_r + b_r)`` times the result before the last projection.

Choices among published alternatives: b starts from half-lives spread over the heads,
``b = -log(expm1(tau log 2 / half-life))``, not at 0, which is a half-life of 16 tokens everywhere
and was the worst start of those that decay in small models. Positions are not rotated: decay tells
them apart, and ``rotate`` is ignored.

Source: Yang et al. 2024 (arXiv:2312.06635), sections 4.1 to 4.4.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling.attention._recurrent import Decaying, Tokens, half_lives
from lmscaling.errors import UserError
from lmscaling.kernels import peer
from lmscaling.kernels.rotary import Rotate

PACKAGE = "flash-linear-attention"


class Attention(Decaying):
    """Decays at a rate that each token sets for each channel of the keys.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Ignored.
        rank: Width between the two projections of the gates.
        temperature: tau; larger ones forget more slowly.
        shortest: Half-life of the first head at the start, in tokens.
        longest: Half-life of the last head. A single head has their geometric mean.

    Raises:
        UserError: An option is not positive.
    """

    DEFAULT, form = peer.best(), ("channel",)
    ON_GPU = {
        "fla": f"kernels of {PACKAGE}, checked before training",
        "plain": "plain PyTorch, because our kernels have gates of heads but none of channels: "
        "forward, about 7 float32 numbers are written and read for each element of queries, keys "
        f"and values; those of {PACKAGE} are used once it is installed",
    }[DEFAULT]

    def __init__(
        self,
        d_model: int,
        n_head: int,
        rotate: Rotate,
        *,
        rank: int = 16,
        temperature: float = 16.0,
        shortest: float = 1.5,
        longest: float = 512.0,
    ) -> None:
        super().__init__(d_model, n_head, rotate)
        for name, value in {"rank": rank, "temperature": temperature}.items():
            if value <= 0:
                raise UserError(f"{name} of gated is {value}; allowed: positive numbers")
        self.temperature = temperature
        self.down = nn.Linear(d_model, rank, bias=False)
        self.up = nn.Linear(rank, n_head * self.key, bias=False)
        exponents = [temperature * math.log(2) / t for t in half_lives(n_head, shortest, longest)]
        # -log(expm1(x)), which also holds where expm1 overflows
        bias = torch.tensor([-x - math.log(-math.expm1(-x)) for x in exponents])
        self.bias_W = nn.Parameter(bias.repeat_interleave(self.key))
        self.weight_V = nn.Parameter(torch.ones(self.value))

    def _norm(self, o_BTHV: Tensor) -> Tensor:
        return super()._norm(o_BTHV) * self.weight_V

    def _rates(self, x_BTD: Tensor) -> Tensor:
        return self.up(self.down(x_BTD))

    def _tokens(self, q: Tensor, k: Tensor, v: Tensor, rates: Tensor, start: int) -> Tokens:
        g_BTW = F.logsigmoid(rates + self.bias_W) / self.temperature
        return q * self.key**-0.5, k, v, g_BTW.unflatten(-1, (self.n_head, -1))
