"""Causal linear attention with a softplus feature map, divided by its running sum.

The variant of *Linear Transformers Are Faster After All* (Buckman and Gelada, 2024): keys and
queries are made positive by softplus, so that the sum of weights can divide.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8 to 12.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling.kernels.chunked import CHUNK, linear_attention


@dataclass
class State:
    """Sum of ``k (x) v`` over the tokens so far, and the sum of ``k``; float32."""

    kv_BHKK: Tensor
    k_BHK: Tensor


class Attention(nn.Module):
    """Mixes values by ``softplus(q) . softplus(k)`` over this token and those before it."""

    def __init__(self, d_model: int, n_head: int) -> None:
        super().__init__()
        self.d_model, self.n_head = d_model, n_head
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = self.qkv(x_BTD).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        # Sums over a long context need more digits than bf16 has.
        with torch.autocast(x_BTD.device.type, enabled=False):
            o_BHTK = linear_attention(F.softplus(q.float()), F.softplus(k.float()), v)
        return self.out(o_BHTK.transpose(1, 2).flatten(2))

    def init_state(self, batch: int, context: int) -> State:
        """The same size for every context."""
        K, weight = self.d_model // self.n_head, self.qkv.weight
        shape = (batch, self.n_head, K)
        return State(
            weight.new_zeros((*shape, K), dtype=torch.float32),
            weight.new_zeros(shape, dtype=torch.float32),
        )

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        q, k, v = self.qkv(x_BD).unflatten(-1, (3, self.n_head, -1)).float().unbind(1)  # [B, H, K]
        q, k = F.softplus(q), F.softplus(k)
        kv_BHKK = state.kv_BHKK + k.unsqueeze(-1) * v.unsqueeze(-2)
        k_BHK = state.k_BHK + k
        o_BHK = (q.unsqueeze(-2) @ kv_BHKK).squeeze(-2) / (q * k_BHK).sum(-1, keepdim=True)
        return self.out(o_BHK.flatten(1).to(x_BD.dtype)), State(kv_BHKK, k_BHK)

    def flops_per_token(self, context: int) -> float:
        """Four D x D projections; per head, half a chunk of products and two by the state."""
        K, chunk = self.d_model // self.n_head, min(CHUNK, context)
        return 2 * 4 * self.d_model**2 + 2 * self.d_model * (2 * chunk / 2 + 2 * K)
