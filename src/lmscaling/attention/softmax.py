"""Causal softmax attention, the baseline.

Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling import kernels
from lmscaling.attention._documents import Documents
from lmscaling.kernels.rotary import Rotate
from lmscaling.kernels.softmax import _pytorch

CUDNN_WIDTHS = range(8, 129, 8)
"""Head widths that cuDNN supports on every device."""


@dataclass
class State:
    """Keys and values of the tokens so far; the first ``length`` positions are filled."""

    k_BHTK: Tensor
    v_BHTK: Tensor
    length: int


class Attention(nn.Module):
    """Averages values with weights ``softmax(q k / sqrt(K))`` over this and earlier tokens."""

    TIMED_AS = "flash"

    def __init__(self, d_model: int, n_head: int, rotate: Rotate) -> None:
        super().__init__()
        self.d_model, self.n_head, self.rotate = d_model, n_head, rotate
        self.implementation = "flash"
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    @property
    def implementation(self) -> str:
        """A function of ``kernels/softmax/forms.py``, or another file there."""
        return self._implementation

    @implementation.setter
    def implementation(self, name: str) -> None:
        # Loaded here and not in every forward pass, because a compiler cannot trace an import.
        attend = kernels.load("softmax", name)
        _pytorch.use_flash(4 if name == "flash4" else 2)  # which no compiled graph does
        self._implementation, self._attend = name, attend

    def tunable(self, device_type: str) -> dict[str, tuple[int | str, ...]]:
        """The back end on a GPU; a CPU has only one."""
        if device_type != "cuda":
            return {}
        cudnn = ("cudnn",) * (self.d_model // self.n_head in CUDNN_WIDTHS)
        names = ("flash", *cudnn, *("flash4",) * _pytorch.has_flash4())
        return {"implementation": names} if len(names) > 1 else {}

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(self._mix(self.qkv(x_BTD)).flatten(2))

    def forward_documents(self, x_BTD: Tensor, documents: Documents) -> Tensor:
        """By sequences of several lengths in one call where flash attention runs."""
        qkv_BTW = self.qkv(x_BTD)
        if self.implementation == "flash" and _pytorch.is_forced(qkv_BTW):
            given = documents.bounds_P, max(documents.lengths)
            o_BTHK = _pytorch.attend_documents(*self._heads(qkv_BTW), *given)
        else:
            o_BTHK = documents.each(self._mix, qkv_BTW)
        return self.out(o_BTHK.flatten(2))

    def _mix(self, qkv_BTW: Tensor) -> Tensor:
        return self._attend(*self._heads(qkv_BTW))

    def _heads(self, qkv_BTW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, ``[B, T, H, K]``, of the first tokens."""
        q, k, v = qkv_BTW.unflatten(-1, (3, self.n_head, -1)).unbind(2)
        q, k = (self.rotate(x.transpose(1, 2), 0).transpose(1, 2) for x in (q, k))
        return q, k, v

    def init_state(self, batch: int, context: int) -> State:
        weight, shape = self.qkv.weight, (batch, self.n_head, context, self.d_model // self.n_head)
        return State(weight.new_zeros(shape), weight.new_zeros(shape), 0)

    @torch.no_grad()
    def prefill(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Without a gradient; updates the tensors of ``state``, which must not be used again."""
        q, k, v = self._heads(self.qkv(x_BTD))
        here, length = _next(state, x_BTD.shape[1])
        state.k_BHTK[:, :, here], state.v_BHTK[:, :, here] = k.transpose(1, 2), v.transpose(1, 2)
        y_BTD = self.out(self._attend(q, k, v).flatten(2))
        return y_BTD, State(state.k_BHTK, state.v_BHTK, length)

    @torch.no_grad()
    def decode_step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        """Without a gradient; updates the tensors of ``state``, which must not be used again."""
        q, k, v = self.qkv(x_BD).unflatten(-1, (3, self.n_head, 1, -1)).unbind(1)  # [B, H, 1, K]
        here, length = _next(state, 1)
        state.k_BHTK[:, :, here], state.v_BHTK[:, :, here] = self.rotate(k, state.length), v
        o_BHTK = F.scaled_dot_product_attention(
            self.rotate(q, state.length), state.k_BHTK[:, :, :length], state.v_BHTK[:, :, :length]
        )
        return self.out(torch.flatten(o_BHTK, 1)), State(state.k_BHTK, state.v_BHTK, length)

    def flops_per_token(self, context: int) -> float:
        """Four D x D projections, and two products over half the context on average."""
        return 2 * 4 * self.d_model**2 + 2 * 2 * self.d_model * context / 2


def _next(state: State, tokens: int) -> tuple[slice, int]:
    """The positions of the next tokens, and the length after them."""
    length, room = state.length + tokens, state.k_BHTK.shape[2]
    if length > room:  # writing to a slice past the end would raise no error
        raise ValueError(f"{length} tokens do not fit into a state for {room}; allowed: {room}")
    return slice(state.length, length), length
