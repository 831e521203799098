"""What an implementation of attention must pass before its time counts.

Integers first: with the identity as feature map and inputs of -1, 0 and 1, every weight, state and
sum is an integer that bf16 operands and float32 sums hold exactly, so a right implementation gives
the exact result, rounded once. Then numbers, against float64.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lmscaling.kernels import feature_maps

Attend = Callable[..., Tensor]

TOKENS = 200
"""A multiple of no tile; states of 200 products of ones stay below 256, which bf16 still holds."""
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Relative, root of mean squares. bf16 kernels are 0.2 to 1 % from float64 at this length."""
NAMES = ("y", "dq", "dk", "dv")


def fault(
    kind: str, attend: Attend, device: torch.device, dtype: torch.dtype, d_head: int
) -> str | None:
    """What is wrong with an implementation, in words; None if nothing is."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, TOKENS, 3, d_head)
    if kind == "linear":
        digits = [torch.randint(-1, 2, shape, generator=generator).double() for _ in range(4)]
        exact = outcome(linear, digits, device, torch.float64, "identity", False)
        found = outcome(attend, digits, device, dtype, "identity", False)
        for name, x, y in zip(NAMES, found, exact, strict=True):
            if not torch.equal(x, y.to(dtype)):
                most = (x.double() - y).abs().max().item()
                return f"{name} of integers is not exact: off by up to {most:g}"
    numbers = [torch.randn(shape, generator=generator).to(dtype).double() for _ in range(4)]
    definition, options = (softmax, ()) if kind == "softmax" else (linear, ("softplus", True))
    exact = outcome(definition, numbers, device, torch.float64, *options)
    found = outcome(attend, numbers, device, dtype, *options)
    for name, x, y in zip(NAMES, found, exact, strict=True):
        distance = ((x.double() - y).square().mean() / y.square().mean()).sqrt().item()
        if not distance <= TOLERANCE[dtype]:
            return f"{name} is {distance:.2g} from float64; allowed: {TOLERANCE[dtype]:g}"
    return None


def outcome(
    attend: Attend,
    tensors: list[Tensor],
    device: torch.device,
    dtype: torch.dtype,
    *options: object,
) -> list[Tensor]:
    """y, dq, dk and dv."""
    q, k, v, dy = (x.to(device, dtype) for x in tensors)
    leaves = [x.requires_grad_() for x in torch.stack((q, k, v), 2).unbind(2)]
    y = attend(*leaves, *options)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def linear(q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool) -> Tensor:
    """The definition."""
    phi = feature_maps.find(feature_map)
    a = torch.einsum("bthk,bshk->bhts", phi.of(q), phi.of(k)).tril()
    if normalize:
        a = a / (a.sum(-1, keepdim=True) + phi.epsilon)
    return torch.einsum("bhts,bshv->bthv", a, v)


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition."""
    T, K = q.shape[1], q.shape[-1]
    later = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    scores = torch.einsum("bthk,bshk->bhts", q, k) / K**0.5
    return torch.einsum("bhts,bshv->bthv", scores.masked_fill(later, -torch.inf).softmax(-1), v)
