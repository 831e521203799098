"""The gated delta rule: the state decays, then a key replaces what it reads.

    S'_t = exp(g_t) S_{t-1}    S_t = S'_t + beta_t k_t (v_t - S'_t^T k_t)^T    o_t = S_t^T q_t

with ``beta = sigmoid(x w)`` and the decay of ``mamba2`` for each token and head. Queries and keys
have half the width of a head; after SiLU they are divided by their length,
``(|x|^2 + 1e-6)^1/2``, and queries are scaled by ``K^-1/2``. A root mean square norm of each head,
then ``silu(x W_r)`` times the result before the last projection.

Choices among published alternatives: there is no short convolution, which is given to all variants
or to none, and the norm has no weights. A and the bias of dt start from half-lives spread over the
heads, see ``_recurrent.Decay``. Positions are not rotated: decay tells them apart, and ``rotate``
is ignored.

Source: Yang et al. 2024 (arXiv:2412.06464), eq. 10 and section 3; Grazzi et al. 2024
(arXiv:2411.12537) for beta up to 2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling.attention._recurrent import Decay, Decaying, Tokens
from lmscaling.errors import UserError
from lmscaling.kernels import at_least_float32, peer
from lmscaling.kernels.gated_delta import plain as delta
from lmscaling.kernels.rotary import Rotate

PACKAGE = "flash-linear-attention"
SQUARE = 1e-6
"""Added to the squared length of a key, so that its direction has a gradient at zero."""


class Attention(Decaying):
    """Replaces a part of what a key reads from a state that decays.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Ignored.
        largest_beta: ``beta = largest_beta * sigmoid``; with 2 the state can also change its sign
            along a key, which tracking of states needs.
        shortest: Half-life of the first head at the start, in tokens.
        longest: Half-life of the last head. A single head has their geometric mean.

    Raises:
        UserError: The largest beta is not in (0, 2], beyond which the state grows without bound.
    """

    FAMILY, DEFAULT = "gated_delta", peer.best()
    ON_GPU = {
        "fla": f"kernels of {PACKAGE}, checked before training",
        "plain": "plain PyTorch, which solves a triangular system for each chunk; the kernels of "
        f"{PACKAGE} are used once it is installed",
    }[DEFAULT]
    CHUNKS = (delta.CHUNK, 64)

    def __init__(
        self,
        d_model: int,
        n_head: int,
        rotate: Rotate,
        *,
        largest_beta: float = 1.0,
        shortest: float = 1.5,
        longest: float = 512.0,
    ) -> None:
        super().__init__(d_model, n_head, rotate)
        if not 0 < largest_beta <= 2:
            raise UserError(f"largest_beta is {largest_beta}; allowed: above 0, up to 2")
        self.largest_beta = largest_beta
        self.rate = nn.Linear(d_model, 2 * n_head, bias=False)
        self.decay = Decay(n_head, shortest, longest)

    def _rates(self, x_BTD: Tensor) -> Tensor:
        return self.rate(x_BTD)

    def _tokens(self, q: Tensor, k: Tensor, v: Tensor, rates: Tensor, start: int) -> Tokens:
        rate_BTH, strength_BTH = rates.chunk(2, -1)
        beta_BTH = self.largest_beta * strength_BTH.sigmoid()
        return _unit(q), _unit(k), v, beta_BTH, self.decay(rate_BTH)[1]

    def _step(self, tokens: Tokens, kv_BHKV: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, beta, g = (x.squeeze(1) for x in tokens)
        return delta.step(q, k, v, beta, g, kv_BHKV).unsqueeze(1), kv_BHKV

    def _flops(self, chunk: int) -> float:
        return chunk * (3 * self.key + 2 * self.value) + 6 * self.key * self.value


def _unit(x_BTHK: Tensor) -> Tensor:
    """SiLU, then unit length."""
    x = F.silu(at_least_float32(x_BTHK))
    return (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + SQUARE)).to(x_BTHK.dtype)
