"""Rotary positions: queries and keys are rotated by an angle proportional to the position.

If positions are learned or absent, variants get ``unrotated`` and need no special case.

Legend: T tokens, K head width.

Source: Su et al. 2021 (arXiv:2104.09864), eq. 15 and 34, with halves instead of neighbours paired.
"""

from collections.abc import Callable

import torch
from torch import Tensor

BASE = 10_000.0
"""Wavelengths run from 2 pi to about 2 pi times this many tokens."""

Rotate = Callable[[Tensor, int], Tensor]
"""``rotate(x, start)``: ``x`` of shape ``[..., T, K]`` whose first token is at ``start``."""


def unrotated(x: Tensor, start: int) -> Tensor:
    """Leave queries and keys as they are."""
    return x


class Rotary:
    """Rotates pairs of coordinates, so that products depend on positions by their distance only."""

    def __init__(self, d_head: int) -> None:
        if d_head % 2:
            raise ValueError(
                f"d_head is {d_head}; allowed: even, because pairs of coordinates are rotated"
            )
        self.d_head = d_head

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """Rotate ``x`` of shape ``[..., T, K]``; computed in float32, or in float64 for float64."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        position = torch.arange(start, start + x.shape[-2], dtype=torch.float64, device=x.device)
        pair = torch.arange(0, self.d_head, 2, dtype=torch.float64, device=x.device)
        angle = position.unsqueeze(-1) * BASE ** (-pair / self.d_head)  # [T, K / 2]
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        a, b = x.to(dtype).chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)
