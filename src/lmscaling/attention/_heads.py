"""The projection of tokens to the queries, keys and values of all heads.

Legend: B batch, T tokens, D model width, H heads, G heads of keys and values, K head width,
W = (H + 2 G) K.
"""

import torch
from torch import Tensor, nn

EPSILON = 1e-5
"""Added to the mean square of a norm, as in Llama 3; that of PyTorch's layer norm."""


class Projection(nn.Linear):
    """Queries, keys and values side by side, ``[..., W]``, with their norms if they have some.

    Args:
        d_model: D.
        n_head: H.
        n_kv_head: G; H by default.
        qk_norm: Whether queries and keys are divided by their root mean square over each head.
    """

    def __init__(
        self, d_model: int, n_head: int, n_kv_head: int | None = None, qk_norm: bool = False
    ) -> None:
        shared, K = n_kv_head or n_head, d_model // n_head
        super().__init__(d_model, (n_head + 2 * shared) * K)
        self.counts = (n_head, shared, shared)
        self.q_norm = nn.RMSNorm(K, EPSILON) if qk_norm else None
        self.k_norm = nn.RMSNorm(K, EPSILON) if qk_norm else None

    def forward(self, input: Tensor) -> Tensor:
        y = super().forward(input)
        if self.q_norm is None or self.k_norm is None:
            return y
        q, k, v = self.heads(y)
        norms = (self.q_norm, q), (self.k_norm, k)
        q, k = (norm(x.to(norm.weight.dtype)).to(v.dtype) for norm, x in norms)
        return torch.cat((q, k, v), -2).flatten(-2)

    def heads(self, y: Tensor) -> tuple[Tensor, ...]:
        """Queries ``[..., H, K]``, and keys and values ``[..., G, K]``, of an output."""
        return y.unflatten(-1, (sum(self.counts), -1)).split(self.counts, -2)
