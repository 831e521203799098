"""What tells an attention where a token stands: rotated queries and keys, or nothing.

A variant gets a ``Rotate`` and applies it to whatever its queries and keys are compared by; where
positions are learned or absent it changes nothing, so a variant has no case of its own for it.

Legend: T tokens, K head width.

Source: Su et al. 2021 (arXiv:2104.09864), eq. 15 and 34, with halves instead of neighbours paired.
"""

from collections.abc import Callable

import torch
from torch import Tensor

BASE = 10_000.0
"""Wavelengths run from 2 pi to about 2 pi times this many tokens."""

Rotate = Callable[[Tensor, int], Tensor]
"""``rotate(x, start)``: ``x`` of shape ``[..., T, K]`` whose first token stands at ``start``."""


def unrotated(x: Tensor, start: int) -> Tensor:
    """Leave queries and keys as they are."""
    return x


class Rotary:
    """Turns pairs of coordinates by an angle that grows with the position.

    The product of a query and a key then depends on their distance only.
    """

    def __init__(self, d_head: int) -> None:
        if d_head % 2:
            raise ValueError(f"d_head is {d_head}; allowed: even, for pairs are turned")
        self.d_head = d_head

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """``x`` of shape ``[..., T, K]``; angles and turns are float32, or float64 for float64."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        position = torch.arange(start, start + x.shape[-2], dtype=torch.float64, device=x.device)
        pair = torch.arange(0, self.d_head, 2, dtype=torch.float64, device=x.device)
        angle = position.unsqueeze(-1) * BASE ** (-pair / self.d_head)  # [T, K / 2]
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        a, b = x.to(dtype).chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)
