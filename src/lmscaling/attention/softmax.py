"""Causal softmax attention, the baseline.

Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling import kernels
from lmscaling.position import Rotate

IMPLEMENTATIONS = {name: kernels.load("softmax", name) for name in ("flash", "cudnn")}
CUDNN_WIDTHS = range(8, 129, 8)
"""Head widths that cuDNN takes on every device."""


@dataclass
class State:
    """Keys and values of the tokens so far; ``length`` of the places are filled."""

    k_BHTK: Tensor
    v_BHTK: Tensor
    length: int


class Attention(nn.Module):
    """Mixes values by ``softmax(q k / sqrt(K))`` over this token and those before it."""

    def __init__(self, d_model: int, n_head: int, rotate: Rotate) -> None:
        super().__init__()
        self.d_model, self.n_head, self.rotate = d_model, n_head, rotate
        self.implementation = "flash"
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def tunable(self, device_type: str) -> dict[str, tuple[int | str, ...]]:
        """The back end on a GPU; a CPU has one only."""
        if device_type == "cuda" and self.d_model // self.n_head in CUDNN_WIDTHS:
            return {"implementation": ("flash", "cudnn")}
        return {}

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = self.qkv(x_BTD).unflatten(-1, (3, self.n_head, -1)).unbind(2)
        q, k = (self.rotate(x.transpose(1, 2), 0).transpose(1, 2) for x in (q, k))
        o_BTHK = IMPLEMENTATIONS[self.implementation](q, k, v)
        return self.out(o_BTHK.flatten(2))

    def init_state(self, batch: int, context: int) -> State:
        weight, shape = self.qkv.weight, (batch, self.n_head, context, self.d_model // self.n_head)
        return State(weight.new_zeros(shape), weight.new_zeros(shape), 0)

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        """Writes into the state's tensors: the state given is used up."""
        q, k, v = self.qkv(x_BD).unflatten(-1, (3, self.n_head, 1, -1)).unbind(1)  # [B, H, 1, K]
        here, length = slice(state.length, state.length + 1), state.length + 1
        state.k_BHTK[:, :, here], state.v_BHTK[:, :, here] = self.rotate(k, state.length), v
        o_BHTK = F.scaled_dot_product_attention(
            self.rotate(q, state.length), state.k_BHTK[:, :, :length], state.v_BHTK[:, :, :length]
        )
        return self.out(torch.flatten(o_BHTK, 1)), State(state.k_BHTK, state.v_BHTK, length)

    def flops_per_token(self, context: int) -> float:
        """Four D x D projections, and two products over half the context on average."""
        return 2 * 4 * self.d_model**2 + 2 * 2 * self.d_model * context / 2
