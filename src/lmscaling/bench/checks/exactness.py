"""What an implementation of attention must pass before its time counts.

Integers first: with the identity as feature map and inputs of -1, 0 and 1, every weight, state and
sum is an integer that bf16 operands and float32 sums hold exactly, so a right implementation gives
the exact result, rounded once. Then numbers, against float64.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lmscaling.kernels import feature_maps

Attend = Callable[..., Tensor]
Shape = tuple[int, int, int, int]
"""Sequences, tokens, heads, width."""

TOKENS = 200
"""A multiple of no tile; states of 200 products of ones stay below 256, which bf16 still holds."""
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Relative, root of mean squares. bf16 kernels are 0.2 to 1 % from float64 at this length."""
NAMES = ("y", "dq", "dk", "dv")


@dataclass(frozen=True)
class Found:
    """One result beside the exact one."""

    case: str
    """Inputs and shape."""
    quantity: str
    error: float
    allowed: float

    @property
    def right(self) -> bool:
        """False for an error that is no number, too."""
        return self.error <= self.allowed

    @property
    def words(self) -> str:
        """What is wrong with it."""
        if self.case.startswith("integers"):
            return f"{self.quantity} of integers is not exact: off by up to {self.error:g}"
        return f"{self.quantity} is {self.error:.2g} from float64; allowed: {self.allowed:g}"


def fault(
    kind: str, attend: Attend, device: torch.device, dtype: torch.dtype, d_head: int
) -> str | None:
    """What is wrong with an implementation, in words; None if nothing is."""
    shape = (2, TOKENS, 3, d_head)
    if kind == "linear":
        for found in integers(attend, device, dtype, shape):
            if not found.right:
                return found.words
    for found in numbers(kind, attend, device, dtype, shape):
        if not found.right:
            return found.words
    return None


def integers(
    attend: Attend, device: torch.device, dtype: torch.dtype, shape: Shape
) -> Iterator[Found]:
    """Linear attention of integers: y, dq, dk, dv, each with its largest difference; none allowed.

    More than ``TOKENS`` tokens make sums that bf16 does not hold.
    """
    generator = torch.Generator().manual_seed(0)
    digits = [torch.randint(-1, 2, shape, generator=generator).double() for _ in range(4)]
    exact = outcome(linear, digits, device, torch.float64, "identity", False)
    found = outcome(attend, digits, device, dtype, "identity", False)
    for name, x, y in zip(NAMES, found, exact, strict=True):
        off = (x.double() - y.to(dtype).double()).abs().max().item()
        yield Found(_case("integers", shape), name, off, 0.0)


def numbers(
    kind: str, attend: Attend, device: torch.device, dtype: torch.dtype, shape: Shape
) -> Iterator[Found]:
    """Attention of a kind, of normal numbers: y, dq, dk, dv, each with its relative error."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator).to(dtype).double() for _ in range(4)]
    definition, options = (softmax, ()) if kind == "softmax" else (linear, ("softplus", True))
    exact = outcome(definition, drawn, device, torch.float64, *options)
    found = outcome(attend, drawn, device, dtype, *options)
    for name, x, y in zip(NAMES, found, exact, strict=True):
        yield Found(_case("numbers", shape), name, distance(x, y), TOLERANCE[dtype])


def distance(x: Tensor, exact: Tensor) -> float:
    """Root mean square of the difference over that of the exact result."""
    norm = torch.linalg.vector_norm
    return (norm(x.double() - exact.double()) / norm(exact.double())).item()


def _case(inputs: str, shape: Shape) -> str:
    return f"{inputs}, {' x '.join(map(str, shape))}"


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
