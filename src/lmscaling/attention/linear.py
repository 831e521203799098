"""Causal linear attention with a softplus feature map, divided by its running sum.

The variant of *Linear Transformers Are Faster After All* (Buckman and Gelada, 2024): keys and
queries are made positive by softplus, so that the sum of weights can divide.

Rotated positions turn the queries and keys of the numerator only: products of turned vectors can
be negative, and their sum could not divide.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8 to 12; rotated positions as in Su et al.
2021 (arXiv:2104.09864), eq. 19.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lmscaling.kernels import at_least_float32, decode
from lmscaling.kernels.feature_maps import find
from lmscaling.kernels.linear import chunked
from lmscaling.position import Rotate, unrotated

FEATURE_MAP = "softplus"
CHUNK = 64
"""Tokens per chunk where none was calibrated; FLOPs are counted at it, so it never changes."""


@dataclass
class State:
    """Sum of ``k (x) v`` over the tokens so far, the sum of ``k``, and their number; float32."""

    kv_BHKK: Tensor
    k_sum_BHK: Tensor
    length: int


class Attention(nn.Module):
    """Mixes values by ``softplus(q) . softplus(k)`` over this token and those before it."""

    def __init__(self, d_model: int, n_head: int, rotate: Rotate) -> None:
        super().__init__()
        self.d_model, self.n_head, self.rotate = d_model, n_head, rotate
        self.chunk = CHUNK
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def tunable(self, device_type: str) -> dict[str, tuple[int | str, ...]]:
        """Tokens per chunk in plain PyTorch; the kernels of a GPU have a table of their own."""
        return {} if device_type == "cuda" else {"chunk": (CHUNK, 32, 128, 256)}

    def forward(self, x_BTD: Tensor) -> Tensor:
        qkv_BTW = self.qkv(x_BTD)
        # Sums over a long context need more digits than bf16 has.
        with torch.autocast(x_BTD.device.type, enabled=False):
            if self.rotate is unrotated:
                o_BTHK = chunked.attend_packed(qkv_BTW, self.n_head, FEATURE_MAP, True, self.chunk)
            else:
                o_BTHK = self._mix_rotated(qkv_BTW)
        return self.out(o_BTHK.flatten(2))

    def _mix_rotated(self, qkv_BTW: Tensor) -> Tensor:
        q, k, v = qkv_BTW.unflatten(-1, (3, self.n_head, -1)).unbind(2)
        q, k = (find(FEATURE_MAP).of(at_least_float32(x)) for x in (q, k))
        turned_q, turned_k = (self.rotate(x.transpose(1, 2), 0).transpose(1, 2) for x in (q, k))
        values = v.to(q.dtype)
        sums = chunked.attend(turned_q, turned_k, values, "identity", False, self.chunk)
        return (sums / (q * k.cumsum(1)).sum(-1, keepdim=True)).to(v.dtype)

    def init_state(self, batch: int, context: int) -> State:
        """The same size for every context."""
        K, weight = self.d_model // self.n_head, at_least_float32(self.qkv.weight)
        shape = (batch, self.n_head, K)
        return State(weight.new_zeros((*shape, K)), weight.new_zeros(shape), 0)

    @torch.no_grad()
    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        """Adds to the state's tensors, without gradient: the state given is used up."""
        q, k, v = self.qkv(x_BD).unflatten(-1, (3, self.n_head, -1)).unbind(1)  # [B, H, K]
        with torch.autocast(x_BD.device.type, enabled=False):
            o_BHK = self._step(q, k, v, state)
        return self.out(o_BHK.flatten(1)), State(state.kv_BHKK, state.k_sum_BHK, state.length + 1)

    def _step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
        sums = (state.kv_BHKK, state.k_sum_BHK)
        if self.rotate is unrotated:
            return decode.step(q, k, v, *sums, FEATURE_MAP, True)
        q, k = (find(FEATURE_MAP).of(x.to(state.k_sum_BHK.dtype)) for x in (q, k))
        turned_q, turned_k = (self.rotate(x.unsqueeze(2), state.length).squeeze(2) for x in (q, k))
        o_BHK = decode.step(turned_q, turned_k, v.to(q.dtype), *sums, "identity", False)
        state.k_sum_BHK += k
        return (o_BHK / (q * state.k_sum_BHK).sum(-1, keepdim=True)).to(v.dtype)

    def flops_per_token(self, context: int) -> float:
        """Four D x D projections; per head, half a chunk of products and two by the state.

        Counted at the default chunk: what a device is tuned to must not move a law's x-axis.
        """
        K, chunk = self.d_model // self.n_head, min(CHUNK, context)
        return 2 * 4 * self.d_model**2 + 2 * self.d_model * (2 * chunk / 2 + 2 * K)
