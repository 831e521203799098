"""The quadratic kernels as PyTorch operators, for autograd and ``torch.compile``.

Triton is loaded when an operator first runs, so that this module can be imported without it.
"""

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("lmscaling::quadratic_forward", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool, window: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``launch.forward``."""
    from lmscaling.kernels.tiled_triton import launch

    return launch.forward(q, k, v, feature_map, normalize, window)


@forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool, window: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    B, T, H, _ = q.shape
    y = v.new_empty(B, T, H, v.shape[3])
    y32 = v.new_empty(y.shape if normalize else (0,), dtype=torch.float32)
    return y, y32, v.new_empty((B, H, T) if normalize else (0,), dtype=torch.float32)


@torch.library.custom_op("lmscaling::quadratic_backward", mutates_args=())
def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dy: Tensor,
    y32: Tensor,
    inverse: Tensor,
    feature_map: str,
    window: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``launch.backward``."""
    from lmscaling.kernels.tiled_triton import launch

    return launch.backward(q, k, v, dy, y32, inverse, feature_map, window)


@backward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dy: Tensor,
    y32: Tensor,
    inverse: Tensor,
    feature_map: str,
    window: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return dq, dk, dv


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, ctx.feature_map, _, ctx.window = inputs
    _, y32, inverse = output
    ctx.save_for_backward(q, k, v, y32, inverse)
    ctx.mark_non_differentiable(y32, inverse)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dy: Tensor | None, *unused: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 6
    q, k, v, y32, inverse = ctx.saved_tensors
    gradients = backward(q, k, v, dy, y32, inverse, ctx.feature_map, ctx.window)
    return *gradients, None, None, None


forward.register_autograd(_gradients, setup_context=_keep)


def attend(
    q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool, window: int = 0
) -> Tensor:
    """Linear attention in tiles; see ``kernels/linear/attention_parallel.py``; no window is 0."""
    return forward(q, k, v, feature_map, normalize, window)[0]
