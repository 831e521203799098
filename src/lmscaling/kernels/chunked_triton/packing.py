"""Queries, keys and values as one tensor, without a copy where they are views of one."""

import torch
from torch import Tensor


def packed(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> Tensor:
    """Rows of queries, keys, values, ``[B, T, H (2 K + V)]``: what they are views of, or a copy.

    Under ``torch.compile`` it is always a copy, because memory offsets cannot be traced; callers
    that have the projection use ``op.chunked``.
    """
    arguments = (q_BTHK, k_BTHK, v_BTHV)
    widths = [x.shape[2] * x.shape[3] for x in arguments]
    base = None if torch.compiler.is_compiling() else v_BTHV._base
    if (
        base is not None
        and base.is_contiguous()
        and base.numel() == sum(x.numel() for x in arguments)
        # A view that is a leaf must receive its own gradient, which its base would not pass on.
        and all(x._base is base and x.requires_grad == base.requires_grad for x in arguments)
        and not any(x.requires_grad and x.is_leaf for x in arguments)
    ):
        rows_BTW = base.view(*v_BTHV.shape[:2], sum(widths))
        parts = rows_BTW.split(widths, -1)
        if all(_same(part.view(x.shape), x) for part, x in zip(parts, arguments, strict=True)):
            return rows_BTW
    return torch.cat([x.flatten(2) for x in arguments], -1)


def _same(x: Tensor, y: Tensor) -> bool:
    """Whether two views with the same base and shape have the same elements."""
    strides = zip(x.shape, x.stride(), y.stride(), strict=True)
    return x.storage_offset() == y.storage_offset() and all(n == 1 or a == b for n, a, b in strides)
