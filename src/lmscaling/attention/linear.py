"""Causal linear attention with a softplus feature map, divided by its running sum.

The variant of *Linear Transformers Are Faster After All* (Buckman and Gelada, 2024): softplus makes
queries and keys positive, so the sum of weights is positive and can be a divisor.

Rotary positions rotate the queries and keys of the numerator only: products of rotated vectors can
be negative, and their sum can be zero.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), eq. 8 to 12; rotated positions as in Su et al.
2021 (arXiv:2104.09864), eq. 19.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmscaling import kernels
from lmscaling.attention._documents import Documents
from lmscaling.attention._heads import Projection
from lmscaling.kernels import at_least_float32, decode
from lmscaling.kernels.chunked_triton import op
from lmscaling.kernels.feature_maps import find
from lmscaling.kernels.rotary import Rotate, unrotated

CHUNK = 64
"""Tokens per chunk without a calibration. FLOPs are counted at this size, so it never changes."""
LOOPS = ("attention", "state")
"""Forms with a loop over tokens, which a compiler would unroll."""


@dataclass
class State:
    """Sum of ``k (x) v`` over the tokens so far, the sum of ``k``, and their number; float32."""

    kv_BHKK: Tensor
    k_sum_BHK: Tensor
    length: int


class Attention(nn.Module):
    """Averages values with weights ``softplus(q) . softplus(k)`` over this and earlier tokens.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Applied to the features of the numerator.
        qk_norm: See ``_heads.Projection``; the norm precedes the feature map.
    """

    FAMILY = "linear"
    FEATURE_MAP = "softplus"
    TIMED_AS = "chunks"
    WIDEST_ON_GPU = op.WIDEST

    def __init__(self, d_model: int, n_head: int, rotate: Rotate, *, qk_norm: bool = False) -> None:
        super().__init__()
        self.d_model, self.n_head, self.rotate = d_model, n_head, rotate
        self.chunk = CHUNK
        self.form = (self.FEATURE_MAP, True) if rotate is unrotated else ("identity", False)
        self.implementation = "chunked"
        self.qkv = Projection(d_model, n_head, qk_norm=qk_norm)
        self.out = nn.Linear(d_model, d_model)

    @property
    def implementation(self) -> str:
        """A function of ``kernels/linear/forms.py``, or another file there."""
        return self._implementation

    @implementation.setter
    def implementation(self, name: str) -> None:
        # Loaded here and not in every forward pass, because a compiler cannot trace an import.
        self._implementation, attend = name, kernels.load("linear", name)
        self._takes_chunk = kernels.takes_chunk(attend)
        self._attend: Any = torch.compiler.disable(attend) if name in LOOPS else attend

    def tunable(self, device_type: str) -> dict[str, tuple[int | str, ...]]:
        """Tokens per chunk in plain PyTorch; the GPU kernels have their own table."""
        return {} if device_type == "cuda" else {"chunk": (CHUNK, 32, 128, 256)}

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(self._mix(self.qkv(x_BTD)).flatten(2))

    def forward_documents(self, x_BTD: Tensor, documents: Documents) -> Tensor:
        """The GPU kernels start a new state at each document; the rotated form sums keys without
        them, so its documents are rows of padded batches."""
        qkv_BTW = self.qkv(x_BTD)
        if self._has_kernels(qkv_BTW):
            o_BTHK = self._mix(qkv_BTW, documents.lengths)
        else:
            o_BTHK = documents.each(self._mix, qkv_BTW)
        return self.out(o_BTHK.flatten(2))

    def _has_kernels(self, qkv_BTW: Tensor) -> bool:
        """Whether GPU kernels read the projection, which then is not copied."""
        K, is_chunked = self.d_model // self.n_head, self.implementation == "chunked"
        return is_chunked and self.rotate is unrotated and op.runs(qkv_BTW, K, K)

    def _mix(self, qkv_BTW: Tensor, lengths: Sequence[int] = ()) -> Tensor:
        # Sums over a long context need more precision than bf16 has.
        with torch.autocast(qkv_BTW.device.type, enabled=False):
            if self._has_kernels(qkv_BTW):
                K = self.d_model // self.n_head
                return op.chunked(qkv_BTW, self.n_head, K, *self.form, lengths=lengths)[0]
            if self.rotate is not unrotated:
                return self._mix_rotated(*self._heads(qkv_BTW))
            return self._attend(*self._heads(qkv_BTW), *self.form, *self._options())

    def _mix_rotated(self, q_BTHK: Tensor, k_BTHK: Tensor, v_BTHK: Tensor) -> Tensor:
        q, k = (find(self.FEATURE_MAP).of(at_least_float32(x)) for x in (q_BTHK, k_BTHK))
        weights = (q * k.cumsum(1)).sum(-1, keepdim=True)
        # Divided before the products, so that in bf16 the result is rounded once.
        q, k = (x.to(v_BTHK.dtype) for x in (self._rotated(q) / weights, self._rotated(k)))
        return self._attend(q, k, v_BTHK, *self.form, *self._options())

    def _heads(self, qkv_BTW: Tensor) -> tuple[Tensor, ...]:
        return qkv_BTW.unflatten(-1, (3, self.n_head, -1)).unbind(2)

    def _rotated(self, x_BTHK: Tensor) -> Tensor:
        return self.rotate(x_BTHK.transpose(1, 2), 0).transpose(1, 2)

    def _options(self) -> tuple[int, ...]:
        return (self.chunk,) if self._takes_chunk else ()

    def init_state(self, batch: int, context: int) -> State:
        """The same size for every context."""
        K, weight = self.d_model // self.n_head, at_least_float32(self.qkv.weight)
        shape = (batch, self.n_head, K)
        return State(weight.new_zeros((*shape, K)), weight.new_zeros(shape), 0)

    @torch.no_grad()
    def prefill(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Without a gradient; ``state`` is empty and is not read."""
        qkv_BTW = self.qkv(x_BTD)
        with torch.autocast(x_BTD.device.type, enabled=False):
            sums = self._sums(*self._heads(qkv_BTW)[1:])
        return self.out(self._mix(qkv_BTW).flatten(2)), State(*sums, x_BTD.shape[1])

    def _sums(self, k_BTHK: Tensor, v_BTHK: Tensor) -> tuple[Tensor, Tensor]:
        if self.rotate is unrotated:
            return decode.prefill(k_BTHK, v_BTHK, self.FEATURE_MAP)
        k = find(self.FEATURE_MAP).of(at_least_float32(k_BTHK))
        kv_BHKK, _ = decode.prefill(self._rotated(k).to(v_BTHK.dtype), v_BTHK, "identity")
        return kv_BHKK, k.sum(1)

    @torch.no_grad()
    def decode_step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        """Without a gradient; updates the tensors of ``state``, which must not be used again."""
        q, k, v = self.qkv(x_BD).unflatten(-1, (3, self.n_head, -1)).unbind(1)  # [B, H, K]
        with torch.autocast(x_BD.device.type, enabled=False):
            o_BHK = self._decode_step(q, k, v, state)
        return self.out(o_BHK.flatten(1)), State(state.kv_BHKK, state.k_sum_BHK, state.length + 1)

    def _decode_step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> Tensor:
        sums = (state.kv_BHKK, state.k_sum_BHK)
        if self.rotate is unrotated:
            return decode.step(q, k, v, *sums, self.FEATURE_MAP, True)
        q, k = (find(self.FEATURE_MAP).of(x.to(state.k_sum_BHK.dtype)) for x in (q, k))
        state.k_sum_BHK += k
        q = q / (q * state.k_sum_BHK).sum(-1, keepdim=True)
        turned = (self.rotate(x.unsqueeze(2), state.length).squeeze(2) for x in (q, k))
        q, k = (x.to(v.dtype) for x in turned)
        return decode.step(q, k, v, *sums, "identity", False)

    def flops_per_token(self, context: int) -> float:
        """Four D x D projections; per head, two products over half a chunk and two with the state.

        Counted at the default chunk, because the tuning of a device must not move a law's x-axis.
        """
        K, chunk = self.d_model // self.n_head, min(CHUNK, context)
        return 2 * 4 * self.d_model**2 + 2 * self.d_model * (2 * chunk / 2 + 2 * K)
