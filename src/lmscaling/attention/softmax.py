"""Causal softmax attention, the baseline.

Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmscaling import kernels
from lmscaling.attention._documents import Documents
from lmscaling.attention._heads import Projection
from lmscaling.kernels.rotary import Rotate
from lmscaling.kernels.softmax import _pytorch

CUDNN_WIDTHS = range(8, 129, 8)
"""Head widths that cuDNN supports on every device."""


@dataclass
class State:
    """Keys and values of the tokens so far; the first ``length`` positions are filled."""

    k_BGTK: Tensor
    v_BGTK: Tensor
    length: int


class Attention(nn.Module):
    """Averages values with weights ``softmax(q k / sqrt(K))`` over this and earlier tokens.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Applied to queries and keys.
        n_kv_head: Heads of keys and values, G. The state has these; kernels get copies of them.
        qk_norm: See ``_heads.Projection``.
    """

    TIMED_AS = "flash"

    def __init__(
        self,
        d_model: int,
        n_head: int,
        rotate: Rotate,
        *,
        n_kv_head: int | None = None,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        self.d_model, self.n_head, self.rotate = d_model, n_head, rotate
        self.implementation = "flash"
        self.shared = n_head // (n_kv_head or n_head)
        self.qkv = Projection(d_model, n_head, n_kv_head, qk_norm)
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
            o_BTHK = _pytorch.attend_documents(*self._copied(*self._heads(qkv_BTW)), *given)
        else:
            o_BTHK = documents.each(self._mix, qkv_BTW)
        return self.out(o_BTHK.flatten(2))

    def _mix(self, qkv_BTW: Tensor) -> Tensor:
        return self._attend(*self._copied(*self._heads(qkv_BTW)))

    def _copied(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """With keys and values for each head."""
        if self.shared == 1:
            return q, k, v
        k, v = (x.repeat_interleave(self.shared, 2) for x in (k, v))
        return q, k, v

    def _heads(self, qkv_BTW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries ``[B, T, H, K]`` and keys, and values, ``[B, T, G, K]``, of the first
        tokens."""
        q, k, v = self.qkv.heads(qkv_BTW)
        q, k = (self.rotate(x.transpose(1, 2), 0).transpose(1, 2) for x in (q, k))
        return q, k, v

    def init_state(self, batch: int, context: int) -> State:
        weight, G = self.qkv.weight, self.n_head // self.shared
        shape = batch, G, context, self.d_model // self.n_head
        return State(weight.new_zeros(shape), weight.new_zeros(shape), 0)

    @torch.no_grad()
    def prefill(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Without a gradient; updates the tensors of ``state``, which must not be used again."""
        q, k, v = self._heads(self.qkv(x_BTD))
        here, length = _next(state, x_BTD.shape[1])
        state.k_BGTK[:, :, here], state.v_BGTK[:, :, here] = k.transpose(1, 2), v.transpose(1, 2)
        y_BTD = self.out(self._attend(*self._copied(q, k, v)).flatten(2))
        return y_BTD, State(state.k_BGTK, state.v_BGTK, length)

    @torch.no_grad()
    def decode_step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        """Without a gradient; updates the tensors of ``state``, which must not be used again."""
        q, k, v = (x.unsqueeze(2) for x in self.qkv.heads(self.qkv(x_BD)))  # [B, H or G, 1, K]
        here, length = _next(state, 1)
        state.k_BGTK[:, :, here], state.v_BGTK[:, :, here] = self.rotate(k, state.length), v
        o_BHTK = F.scaled_dot_product_attention(
            self.rotate(q, state.length),
            state.k_BGTK[:, :, :length],
            state.v_BGTK[:, :, :length],
            enable_gqa=self.shared > 1,
        )
        return self.out(torch.flatten(o_BHTK, 1)), State(state.k_BGTK, state.v_BGTK, length)

    def flops_per_token(self, context: int) -> float:
        """The projections, and two products over half the context on average."""
        projections = self.qkv.weight.numel() + self.out.weight.numel()
        return 2 * projections + 2 * 2 * self.d_model * context / 2


def _next(state: State, tokens: int) -> tuple[slice, int]:
    """The positions of the next tokens, and the length after them."""
    length, room = state.length + tokens, state.k_BGTK.shape[2]
    if length > room:  # writing to a slice past the end would raise no error
        raise ValueError(f"{length} tokens do not fit into a state for {room}; allowed: {room}")
    return slice(state.length, length), length
