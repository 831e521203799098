"""Mamba-2 as attention: one gate for each token and head, which also scales what is written.

    dt = softplus(x w + b)    S_t = exp(-A dt_t) S_{t-1} + k_t (dt_t v_t)^T    o_t = S_t^T q_t

with a positive A and one w and b for each head, queries (the paper's C) and keys (its B) of half
the width of a head and without scale, a root mean square norm of each head, and ``silu(x W_r)``
times the result before the last projection.

Choices among published alternatives: each head has queries and keys of its own. There is no short
convolution, which is given to all variants or to none, and no skip ``D v``, because the residual
stream is one. The norm is of each head and precedes the gate, as in the other gated variants, so
heads with a long memory and small ``dt`` are not drowned at the start. A and b start from
half-lives spread over the heads instead of random ones, see ``_recurrent.Decay``. Positions are not
rotated: decay tells them apart, and ``rotate`` is ignored.

Source: Dao and Gu 2024 (arXiv:2405.21060), section 6, listing 1, and section 7.
"""

from torch import Tensor, nn

from lmscaling.attention._recurrent import Decay, Decaying, Tokens
from lmscaling.kernels.chunked_triton import op
from lmscaling.kernels.rotary import Rotate


class Attention(Decaying):
    """Decays at a rate that each token sets for each head.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Ignored.
        shortest: Half-life of the first head at the start, in tokens.
        longest: Half-life of the last head. A single head has their geometric mean.
    """

    WIDEST_ON_GPU = op.WIDEST

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
        self.rate = nn.Linear(d_model, n_head, bias=False)
        self.decay = Decay(n_head, shortest, longest)

    def _rates(self, x_BTD: Tensor) -> Tensor:
        return self.rate(x_BTD)

    def _tokens(self, q: Tensor, k: Tensor, v: Tensor, rates: Tensor, start: int) -> Tokens:
        dt, log_decay = self.decay(rates)
        return q, k, (dt.unsqueeze(-1) * v).to(v.dtype), log_decay
