"""cosFormer: ReLU features, and weights that fall with the distance like a cosine.

    a_ij = relu(q_i) . relu(k_j) cos(pi (i - j) / 2M)      o_i = sum_j a_ij v_j / sum_j a_ij

The cosine of a difference is a product of features: ``relu(x) cos`` beside ``relu(x) sin`` of the
position, so the state has twice as many rows as a key has elements.

Choices among published alternatives: M is the context of the cell, not the length of a batch, with
which decoding would differ from training; distances beyond it would have negative weights. All
features of the first tokens can be zero, so 1e-6 is added to the sum of weights. Rotary positions
rotate the numerator only, as in ``linear``.

Source: Qin et al. 2022 (arXiv:2202.08791), section 3.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling.attention._recurrent import Normalized, State
from lmscaling.kernels.gated import plain
from lmscaling.kernels.rotary import Rotate, unrotated


class Attention(Normalized):
    """Averages values with weights of ReLU features that fall with the distance.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Applied to the features of the numerator.
        context: Longest context of the model, M.
    """

    ON_GPU = (
        "plain PyTorch, because our kernels divide by sums of weights that cannot be zero: "
        "forward, about 5 float32 numbers are written and read for each element of queries, keys "
        "and values"
    )
    EPSILON = 1e-6

    def __init__(self, d_model: int, n_head: int, rotate: Rotate, *, context: int) -> None:
        K = d_model // n_head
        super().__init__(d_model, n_head, rotate, K, 2 * K)
        self.context = context

    def _sums(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, *more: Tensor
    ) -> tuple[Tensor, State]:
        start, T = 0 if state is None else state.length, q.shape[1]
        angle_T = torch.arange(start, start + T, device=q.device).to(q.dtype)
        angle_T1 = (angle_T * (math.pi / 2 / self.context))[:, None, None]

        def read(q: Tensor, k: Tensor, v: Tensor, initial: Tensor | None) -> tuple[Tensor, Tensor]:
            q, k = (torch.cat([x * angle_T1.cos(), x * angle_T1.sin()], -1) for x in (q, k))
            return plain.attend(q, k, v, None, initial, self.chunk)

        q, k, widths = F.relu(q), F.relu(k), [v.shape[-1] - 1, 1]
        if self.rotate is unrotated:
            sums, kv = read(q, k, v, None if state is None else state.kv_BHKV)
        else:
            above, below = (None, None) if state is None else state.kv_BHKV.split(widths, -1)
            values, ones = v.split(widths, -1)
            parts = (
                read(self._rotated(q, start), self._rotated(k, start), values, above),
                read(q, k, ones, below),
            )
            sums, kv = (torch.cat(x, -1) for x in zip(*parts, strict=True))
        return sums, State(kv, start + T)
