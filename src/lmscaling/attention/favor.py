"""Performer: positive random features whose products are the exponential of softmax on average.

    phi(x) = exp(W x - |x|^2 / 2)  of  x / K^(1/4)       o_i = sum_j a_ij v_j / sum_j a_ij

with ``a_ij = phi(q_i) . phi(k_j)``. The rows of W are orthogonal in blocks of K and as long as
Gaussian vectors. One feature has a relative variance of ``exp(|q + k|^2 / sqrt(K)) - 1``.

The exponentials overflow, so each is taken relative to a maximum, which cancels in the quotient.
Keys are relative to the maximum of their feature up to their own token: when it grows, the state
shrinks by the difference, which is a gate of a channel. A maximum over all keys would tell a token
of later ones. The sum of weights is then at least 1, and nothing is added to it.

Choices among published alternatives: W is drawn once from ``seed``, for all layers and all seeds of
a study, and never again, because a new one would make states useless and the loss a matter of the
draw. Rotary positions rotate queries and keys before the map.

Source: Choromanski et al. 2020 (arXiv:2009.14794), lemma 1 and sections 2.3 and 2.4.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lmscaling.attention import _recurrent
from lmscaling.attention._recurrent import Normalized
from lmscaling.errors import UserError
from lmscaling.kernels.gated import plain
from lmscaling.kernels.rotary import Rotate


@dataclass
class State(_recurrent.State):
    """Also the largest logarithm of each feature of the keys so far, ``[B, H, features]``."""

    largest_BHF: Tensor


class Attention(Normalized):
    """Averages values with random estimates of softmax's weights.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Applied to queries and keys.
        features: Rows of W.
        seed: Of their draw.

    Raises:
        UserError: There is not one feature.
    """

    ON_GPU = (
        "plain PyTorch, because our kernels have no gates of channels: forward, about 26 float32 "
        "numbers are written and read for each feature of a token and head, 13 KB at 128 features"
    )

    def __init__(
        self, d_model: int, n_head: int, rotate: Rotate, *, features: int = 128, seed: int = 0
    ) -> None:
        if features < 1:
            raise UserError(f"features of favor is {features}; allowed: at least 1")
        K = d_model // n_head
        super().__init__(d_model, n_head, rotate, K, features)
        self.register_buffer("weight_FK", _orthogonal(features, K, seed).float(), persistent=False)

    def init_state(self, batch: int, context: int) -> State:
        """The same size for every context."""
        empty = super().init_state(batch, context)
        return State(empty.kv_BHKV, 0, empty.kv_BHKV.new_zeros(empty.kv_BHKV.shape[:3]))

    def _sums(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, *more: Tensor
    ) -> tuple[Tensor, State]:
        start, initial = (0, None) if state is None else (state.length, state.kv_BHKV)
        log_q, log_k = (self._log_features(self._rotated(x, start)) for x in (q, k))
        with torch.no_grad():
            largest = log_k.cummax(1).values
            before = largest[:, :1]
            if state is not None and start:
                before = state.largest_BHF.unsqueeze(1)
                largest = torch.maximum(largest, before)
            gates = torch.cat([before, largest[:, :-1]], 1) - largest
            top = (log_q + largest).amax(-1, keepdim=True)
        q, k = (log_q + largest - top).exp(), (log_k - largest).exp()
        sums, kv = plain.attend(q, k, v, gates, initial, self.chunk)
        return sums, State(kv, start + q.shape[1], largest[:, -1])

    def _log_features(self, x: Tensor) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        return x @ self.get_buffer("weight_FK").to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2

    def _flops(self, chunk: int) -> float:
        return super()._flops(chunk) + 4 * self.widths[0] * self.key


def _orthogonal(rows: int, width: int, seed: int) -> Tensor:
    """Blocks of orthogonal rows, as long as Gaussian vectors; float64, on the CPU."""
    drawn = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn, dtype=torch.float64, device="cpu")

    blocks = []
    for _ in range(-(-rows // width)):
        Q, R = torch.linalg.qr(normal(width, width))
        blocks.append((Q * R.diagonal().sign()).T)  # libraries differ in the signs
    return torch.cat(blocks)[:rows] * normal(rows, width).norm(dim=1, keepdim=True)
