"""Attention with the exponential of softmax replaced by its Taylor polynomial of even order.

    a_ij = sum_{m <= n} s^m / m!,  s = q_i . k_j / sqrt(K)      o_i = sum_j a_ij v_j / sum_j a_ij

The polynomial is a product of features, the monomials of a query and of a key up to degree n, of
which each set of indices is kept once: ``binomial(K + n, n)`` of them, 153 for K = 16 and n = 2.
Larger orders approach softmax, the error being about ``|s|^(n+1) / (n+1)!``. Even orders are
positive for every score; odd ones are negative for some, so they are no average and are refused.

Queries and keys have a width of their own, since the state grows with its power. Inside a chunk
the polynomial of the scores is computed and no features. Rotary positions rotate queries and
keys before the map. Nothing is added to the sum of weights, to which each token adds at least a
half at order 2.

Source: Arora et al. 2024 (arXiv:2402.18668), section 3, for order 2.
"""

import math
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from lmscaling.attention._recurrent import Normalized, State, rotation
from lmscaling.errors import UserError
from lmscaling.kernels.gated import plain
from lmscaling.kernels.rotary import Rotate


class Attention(Normalized):
    """Averages values with weights that are a polynomial of the score.

    Args:
        d_model: Width of the model.
        n_head: Heads.
        rotate: Applied to queries and keys.
        order: Degree of the polynomial, even.
        width: Width of a query and a key.

    Raises:
        UserError: The order is odd or below 2.
    """

    ON_GPU = (
        "plain PyTorch, because our kernels have no features that are products of elements: "
        "forward, about 6 KB are written and read for each token and head at order 2 and width 16"
    )

    def __init__(
        self, d_model: int, n_head: int, rotate: Rotate, *, order: int = 2, width: int = 16
    ) -> None:
        if order < 2 or order % 2:
            raise UserError(
                f"order of taylor2 is {order}; allowed: even numbers from 2, because odd orders "
                f"give negative weights; nearest is {max(2, order + order % 2)}"
            )
        super().__init__(
            d_model, n_head, rotation(rotate, width), width, math.comb(width + order, order)
        )
        self.order, self.inside = order, width
        self.degrees = [math.comb(width + m - 1, m) for m in range(1, order + 1)]
        rows = _monomials(width, order)
        self.register_buffer("parent_F", torch.tensor([r[0] for r in rows]), persistent=False)
        self.register_buffer("last_F", torch.tensor([r[1] for r in rows]), persistent=False)
        weights = torch.tensor([1.0, *(r[2] for r in rows)], dtype=torch.float64)
        self.register_buffer("weight_F", weights, persistent=False)

    def _sums(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, *more: Tensor
    ) -> tuple[Tensor, State]:
        start, initial = (0, None) if state is None else (state.length, state.kv_BHKV)
        q, k = (self._rotated(x, start) * self.inside**-0.25 for x in (q, k))
        options = (self.chunk, self._features, self._series)
        sums, kv = plain.attend(q, k, v, None, initial, *options)
        return sums, State(kv, start + q.shape[1])

    def _series(self, s: Tensor) -> Tensor:
        y = torch.ones_like(s)
        for m in range(self.order, 0, -1):
            y = 1 + s * y / m
        return y

    def _features(self, x: Tensor) -> Tensor:
        """Monomials up to the order, each by one product more than its parent."""
        made = [torch.ones_like(x[..., :1])]
        parents, lasts = (self.get_buffer(n).split(self.degrees) for n in ("parent_F", "last_F"))
        for parent, last in zip(parents, lasts, strict=True):
            made.append(made[-1][..., parent] * x[..., last])
        return torch.cat(made, -1) * self.get_buffer("weight_F").to(x.dtype)


def _monomials(width: int, order: int) -> list[tuple[int, int, float]]:
    """Of each monomial but 1: its place without the last factor among those of one degree less,
    the last factor, and its weight, the root of its share in ``s^m / m!``."""
    rows: list[tuple[int, int, float]] = []
    before: dict[tuple[int, ...], int] = {(): 0}
    for m in range(1, order + 1):
        each = list(combinations_with_replacement(range(width), m))
        for index in each:
            repeats = math.prod(math.factorial(index.count(i)) for i in set(index))
            rows.append((before[index[:-1]], index[-1], repeats**-0.5))
        before = {index: i for i, index in enumerate(each)}
    return rows
