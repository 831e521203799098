"""Mean cross-entropy of a linear head that never keeps its logits.

The rows are computed in parts. The forward pass turns the logits of a part into their gradient in
place and multiplies it into the gradients of the head's input and weight at once, so the backward
pass only scales these.

The idea is that of Liger Kernel (Hsu et al. 2024, arXiv:2410.10989, section 3.2). Its own code is
as exact, but at D = 768 and 16,384 tokens its parts have 256 rows, and to add up the gradient of
the weight it moves 24 bytes more per token and entry, where 4,096 rows move 2.

Legend: N tokens, D model width, V vocabulary.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmscaling.kernels import at_least_float32, on_triton_device


def mean(
    h_ND: Tensor, weight_VD: Tensor, y_N: Tensor, rows: int, softcap: float | None = None
) -> Tensor:
    """Mean of ``token_losses``, with gradients by ``h`` and the weight.

    The gradients are those of one backward pass; a second raises RuntimeError. They are held from
    the forward pass on, that of the weight in float32.

    Cost:
        ``6 N D V`` FLOPs, all in the forward pass. In bfloat16 each logit is written once, read
        twice and overwritten once by its gradient, which is read twice: 12 bytes.
    """
    if torch.is_grad_enabled() and (h_ND.requires_grad or weight_VD.requires_grad):
        return _Mean.apply(h_ND, weight_VD, y_N, rows, softcap)
    return token_losses(h_ND, weight_VD, y_N, rows, softcap).sum() / len(y_N)


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """``c tanh(x / c)`` of logits, computed in at least float32; themselves without c."""
    if softcap is None:
        return logits
    return (softcap * (at_least_float32(logits) / softcap).tanh()).to(logits.dtype)


@torch.no_grad()
def token_losses(
    h_ND: Tensor, weight_VD: Tensor, y_N: Tensor, rows: int, softcap: float | None = None
) -> Tensor:
    """Cross-entropy of every token in nats, ``[N]`` in at least float32, without a gradient.

    Args:
        h_ND: Input of the head.
        weight_VD: Its weight; under autocast both are converted as ``F.linear`` does.
        y_N: The token that follows, int64, below V.
        rows: Most rows whose logits are in memory at one time.
        softcap: See ``capped``.
    """
    h_ND, weight_VD = _operands(h_ND, weight_VD)
    parts = _parts(rows, h_ND, y_N)
    return torch.cat([_losses(capped(h @ weight_VD.t(), softcap), y, None) for h, y in parts])


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_ND: Tensor, weight_VD: Tensor, y_N: Tensor, rows: int, softcap: float | None
    ) -> Tensor:
        ctx.dtypes = h_ND.dtype, weight_VD.dtype
        h_ND, weight_VD = _operands(h_ND, weight_VD)
        dh_ND, dweight_VD = torch.empty_like(h_ND), None
        losses = []
        for h, y, dh in _parts(rows, h_ND, y_N, dh_ND):
            raw = h @ weight_VD.t()
            logits = capped(raw, softcap)
            losses.append(_losses(logits, y, 1 / len(y_N)))
            if softcap is not None:  # the slope of the cap
                logits.mul_(1 - (at_least_float32(raw) / softcap).tanh().square())
            torch.mm(logits, weight_VD, out=dh)  # the logits are their gradient now
            part = logits.t() @ h
            del logits, raw
            # The sum over parts is float32, because in bfloat16 small parts would be lost.
            dweight_VD = at_least_float32(part) if dweight_VD is None else dweight_VD.add_(part)
        ctx.gradients = dh_ND, dweight_VD
        return torch.cat(losses).sum() / len(y_N)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, scale: Tensor
    ) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradients of this loss were used; allowed: one backward pass")
        (dh_ND, dweight_VD), ctx.gradients = ctx.gradients, None
        scaled = (x.to(t).mul_(scale) for x, t in zip((dh_ND, dweight_VD), ctx.dtypes, strict=True))
        return *scaled, None, None, None


def _parts(rows: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """As few parts of at most ``rows`` rows as possible, of nearly the same size."""
    count = math.ceil(len(tensors[0]) / rows)
    size = math.ceil(len(tensors[0]) / count)
    return zip(*(x.split(size) for x in tensors), strict=True)


def _operands(h_ND: Tensor, weight_VD: Tensor) -> tuple[Tensor, Tensor]:
    """What ``F.linear`` would multiply: under autocast, both in its dtype."""
    device = h_ND.device.type
    if not torch.is_autocast_enabled(device) or h_ND.dtype == torch.float64:
        return h_ND, weight_VD
    dtype = torch.get_autocast_dtype(device)
    return h_ND.to(dtype), weight_VD.to(dtype)


def _losses(logits_NV: Tensor, y_N: Tensor, scale: float | None) -> Tensor:
    """Losses ``[N]``; with ``scale``, the logits become ``scale`` times their gradient."""
    if on_triton_device(logits_NV) and logits_NV.dtype in (torch.float32, torch.bfloat16):
        from lmscaling.kernels import cross_entropy_triton  # needs Triton

        return cross_entropy_triton.cross_entropy(logits_NV, y_N.contiguous(), scale)
    y_N1, x_NV = y_N.unsqueeze(1), at_least_float32(logits_NV)
    at_target_N1, peak_N1 = x_NV.gather(1, y_N1), x_NV.amax(1, keepdim=True)
    total_N1 = x_NV.sub_(peak_N1).exp_().sum(1, keepdim=True)
    if scale is not None:
        x_NV.mul_(scale / total_N1).scatter_add_(1, y_N1, x_NV.new_full(y_N1.shape, -scale))
        if x_NV is not logits_NV:
            logits_NV.copy_(x_NV)
    return (total_N1.log() + (peak_N1 - at_target_N1)).squeeze(1)
