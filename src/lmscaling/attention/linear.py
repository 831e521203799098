"""Causal linear attention with a softplus feature map, divided by its running sum.

The variant of *Linear Transformers Are Faster After All* (Buckman and Gelada, 2024): keys and
queries are made positive by softplus, so that the sum of weights can divide.

Rotated positions turn the queries and keys of the numerator only: products of turned vectors can
be negative, and their sum could not divide.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8 to 12; rotated positions as in Su et al.
2021 (arXiv:2104.09864), eq. 19.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling.kernels.chunked import CHUNK, linear_attention, weighted_sum
from lmscaling.position import Rotate, unrotated


@dataclass
class State:
    """Sum of ``k (x) v`` over the tokens so far, the sum of ``k``, and their number; float32."""

    kv_BHKK: Tensor
    k_BHK: Tensor
    length: int


class Attention(nn.Module):
    """Mixes values by ``softplus(q) . softplus(k)`` over this token and those before it."""

    tunable: ClassVar[dict[str, tuple[int, ...]]] = {"chunk": (CHUNK, 32, 128, 256)}

    def __init__(self, d_model: int, n_head: int, rotate: Rotate) -> None:
        super().__init__()
        self.d_model, self.n_head, self.rotate = d_model, n_head, rotate
        self.chunk = CHUNK
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = self.qkv(x_BTD).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        # Sums over a long context need more digits than bf16 has.
        with torch.autocast(x_BTD.device.type, enabled=False):
            o_BHTK = self._mix(F.softplus(at_least_float32(q)), F.softplus(at_least_float32(k)), v)
        return self.out(o_BHTK.transpose(1, 2).flatten(2))

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.rotate is unrotated:
            return linear_attention(q, k, v, self.chunk)
        sums = weighted_sum(self.rotate(q, 0), self.rotate(k, 0), v.to(q.dtype), self.chunk)
        return (sums / (q * k.cumsum(2)).sum(-1, keepdim=True)).to(v.dtype)

    def init_state(self, batch: int, context: int) -> State:
        """The same size for every context."""
        K, weight = self.d_model // self.n_head, self.qkv.weight
        shape = (batch, self.n_head, K)
        return State(
            weight.new_zeros((*shape, K), dtype=torch.float32),
            weight.new_zeros(shape, dtype=torch.float32),
            0,
        )

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        q, k, v = self.qkv(x_BD).unflatten(-1, (3, self.n_head, 1, -1)).unbind(1)  # [B, H, 1, K]
        q, k = F.softplus(q.float()), F.softplus(k.float())
        turned_q, turned_k = self.rotate(q, state.length), self.rotate(k, state.length)
        kv_BHKK = state.kv_BHKK + turned_k.transpose(-1, -2) * v.float()
        k_BHK = state.k_BHK + k.squeeze(2)
        o_BH1K = turned_q @ kv_BHKK / (q @ k_BHK.unsqueeze(-1))
        return self.out(o_BH1K.flatten(1).to(x_BD.dtype)), State(kv_BHKK, k_BHK, state.length + 1)

    def flops_per_token(self, context: int) -> float:
        """Four D x D projections; per head, half a chunk of products and two by the state.

        Counted at the default chunk: what a device is tuned to must not move a law's x-axis.
        """
        K, chunk = self.d_model // self.n_head, min(CHUNK, context)
        return 2 * 4 * self.d_model**2 + 2 * self.d_model * (2 * chunk / 2 + 2 * K)


def at_least_float32(x: Tensor) -> Tensor:
    """Float32 for lower precisions; float64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
