"""Checks that an implementation of attention must pass before its time counts.

Integers come first: with the identity as feature map and inputs of -1, 0 and 1, every weight, state
and sum is an integer that bf16 operands and float32 sums represent exactly, so a correct
implementation gives the exact result, rounded once. Then random numbers are compared with float64:
all elements together, and the one that is furthest off.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lmscaling import kernels
from lmscaling.kernels import feature_maps

Attend = Callable[..., Any]
"""y, or a pair of y and a state."""
Shape = tuple[int, int, int, int]
"""Sequences, tokens, heads, width."""

TOKENS = 200
"""No multiple of a tile; states of 200 products of ones stay below 256, which bf16 represents."""
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Relative root mean square. bf16 kernels differ from float64 by 0.2 to 1 % at this length."""
LARGEST = 10
"""How often the tolerance a single element may be off: ours reach 2.7 in bf16, and PyTorch's
softmax without flash attention 5."""
ROWS = 16
"""Tokens whose root mean square is the size of an element: gradients shrink along a sequence, and
those of the first token can be zero."""
SEGMENTED = (1, 1600, 2)
"""Sequences, tokens and heads that every GPU cuts into segments. The integers of ``integers`` are
drawn so that its states stay below 256, too."""
NAMES = ("y", "dq", "dk", "dv")
LINEAR = ("softplus", True)
"""Feature map of linear attention, and whether it is normalised."""


class Comparison(NamedTuple):
    """One result compared with the exact one."""

    case: str
    """A key of ``FAULTS``."""
    quantity: str
    error: float
    allowed: float


FAULTS = {
    "integers": "{0.quantity} of integers is not exact: off by up to {0.error:g}",
    "numbers": "{0.quantity} is {0.error:.2g} from float64; allowed: {0.allowed:g}",
    "elements": "an element of {0.quantity} is {0.error:.2g} off; allowed: {0.allowed:g}",
    "repeated": "{0.quantity} differs between two calls in {0.error:g} elements",
}
"""What is said of a result that is wrong."""


def first_fault(comparisons: Iterable[Comparison]) -> str | None:
    """The first wrong result as a message, also if its error is NaN; None if all are right."""
    wrong = (found for found in comparisons if not found.error <= found.allowed)
    return next((FAULTS[found.case].format(found) for found in wrong), None)


def every(
    kind: str,
    attend: Attend,
    device: torch.device,
    dtype: torch.dtype,
    shape: Shape,
    form: tuple[Any, ...] = LINEAR,
) -> Iterator[Comparison]:
    """All comparisons of an implementation at one shape; ``form`` as in ``numbers``."""
    if kind == "linear" and (shape[1] <= TOKENS or shape[:3] == SEGMENTED):
        yield from integers(attend, device, dtype, shape)
    yield from numbers(kind, attend, device, dtype, shape, form)


def integers(
    attend: Attend, device: torch.device, dtype: torch.dtype, shape: Shape
) -> Iterator[Comparison]:
    """Linear attention of integers: y, dq, dk, dv, each with its largest difference, which
    must be 0.

    Sums of more than ``TOKENS`` tokens can exceed what bf16 represents; those of ``SEGMENTED`` do
    not.
    """
    generator = torch.Generator().manual_seed(0)
    digits = [torch.randint(-1, 2, shape, generator=generator).double() for _ in range(4)]
    exact = outcome(linear, digits, device, torch.float64, "identity", False)
    results = outcome(attend, digits, device, dtype, "identity", False)
    for name, x, y in zip(NAMES, results, exact, strict=True):
        off = (x.double() - y.to(dtype).double()).abs().max().item()
        yield Comparison("integers", name, off, 0.0)


def numbers(
    kind: str,
    attend: Attend,
    device: torch.device,
    dtype: torch.dtype,
    shape: Shape,
    form: tuple[Any, ...] = LINEAR,
) -> Iterator[Comparison]:
    """Attention of a kind, of normal numbers: y, dq, dk, dv and the gradients of gates, each with
    its relative error, with that of the element that is furthest off, and with how many elements
    differ in a second call, which must be 0.

    ``form`` is what an implementation takes besides tensors, or which gates; see ``options``. Kinds
    with gates are compared with their plain PyTorch, which their tests compare with the definition.
    """
    drawn = _drawn(shape, dtype, kind)
    given = options(kind, drawn[0].shape, form)
    definition = DEFINITIONS.get(kind) or kernels.load(kind, "plain")
    exact = outcome(definition, drawn, device, torch.float64, *given)
    results = outcome(attend, drawn, device, dtype, *given)
    allowed, gates = TOLERANCE[dtype], len(exact) - len(NAMES)
    names = NAMES + ("dbeta", "dg")[2 - gates :]
    for name, x, y in zip(names, results, exact, strict=True):
        yield Comparison("numbers", name, distance(x, y), allowed)
        yield Comparison("elements", name, largest(x, y), LARGEST * allowed)
    if kind in ("softmax", "peer"):  # theirs may add up gradients in any order
        return
    again = outcome(attend, drawn, device, dtype, *given)
    for name, x, y in zip(names, results, again, strict=True):
        yield Comparison("repeated", name, float((x != y).sum()), 0.0)


def _drawn(shape: Shape, dtype: torch.dtype, kind: str) -> list[Tensor]:
    """q, k, v and dy: normal numbers that the dtype represents, in float64.

    Kinds with gates have queries and keys of half the width, and the delta rule keys of length 1.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v, dy = (torch.randn(shape, generator=generator) for _ in range(4))
    if kind not in DEFINITIONS:
        q, k = (x[..., : shape[3] // 2] for x in (q, k))
    k = F.normalize(k, dim=-1) if kind == "gated_delta" else k
    return [x.to(dtype).double() for x in (q, k, v, dy)]


def options(kind: str, shape: Sequence[int], form: tuple[Any, ...] = LINEAR) -> tuple[Any, ...]:
    """What an implementation of a kind takes behind q, k and v.

    Linear attention takes ``form``; the delta rule beta and logarithms of decays; gated linear
    attention those of ``form[0]``: of each ``head``, of each token and ``channel`` of keys that are
    as wide as ``shape`` says, or else of each token and head.
    """
    generator = torch.Generator().manual_seed(1)
    beta, decay = (torch.randn(shape[:3], generator=generator).double() for _ in range(2))
    decay = F.logsigmoid(decay)
    if kind == "gated" and form[0] == "channel":
        channels = torch.randn(shape, generator=generator).double()
        return (F.logsigmoid(channels).requires_grad_(),)
    if kind == "gated":
        return (decay[0, 0],) if form[0] == "head" else (decay.requires_grad_(),)
    if kind == "gated_delta":
        return beta.sigmoid().requires_grad_(), decay.requires_grad_()
    return () if kind == "softmax" else form


def moved(options: tuple[Any, ...], device: torch.device, dtype: torch.dtype) -> list[Any]:
    """Options with their tensors on a device, in at least float32."""
    single = torch.promote_types(dtype, torch.float32)
    return [
        x.detach().to(device, single).requires_grad_(x.requires_grad)
        if isinstance(x, Tensor)
        else x
        for x in options
    ]


def distance(x: Tensor, exact: Tensor) -> float:
    """Root mean square of the difference over that of the exact result."""
    norm = torch.linalg.vector_norm
    return (norm(x.double() - exact.double()) / norm(exact.double())).item()


def largest(x_BTHX: Tensor, exact_BTHX: Tensor) -> float:
    """Largest difference of an element, over the root mean square of ``ROWS`` tokens of a head."""
    # Gradients of gates have three axes.
    found, exact = (x.double().reshape(*x.shape[:3], -1) for x in (x_BTHX, exact_BTHX))
    parts = zip(found.split(ROWS, 1), exact.split(ROWS, 1), strict=True)
    off = [(x - y).abs().amax((1, 3)) / y.square().mean((1, 3)).sqrt() for x, y in parts]
    return torch.stack(off).max().item()


def outcome(
    attend: Attend,
    tensors: list[Tensor],
    device: torch.device,
    dtype: torch.dtype,
    *options: object,
) -> list[Tensor]:
    """y, dq, dk and dv, and the gradients of options that need one; gates are at least float32."""
    q, k, v, dy = (x.to(device, dtype) for x in tensors)
    same = q.shape == v.shape  # as if cut from one projection
    leaves = list(torch.stack((q, k, v), 2).unbind(2)) if same else [q, k, v]
    leaves, given = [x.requires_grad_() for x in leaves], moved(options, device, dtype)
    made = attend(*leaves, *given)
    y = made[0] if isinstance(made, tuple) else made
    leaves += [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def linear(q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool) -> Tensor:
    """Linear attention by its definition."""
    phi = feature_maps.find(feature_map)
    a = torch.einsum("bthk,bshk->bhts", phi.of(q), phi.of(k)).tril()
    if normalize:
        a = a / (a.sum(-1, keepdim=True) + phi.epsilon)
    return torch.einsum("bhts,bshv->bthv", a, v)


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention by its definition."""
    T, K = q.shape[1], q.shape[-1]
    later = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    scores = torch.einsum("bthk,bshk->bhts", q, k) / K**0.5
    return torch.einsum("bhts,bshv->bthv", scores.masked_fill(later, -torch.inf).softmax(-1), v)


DEFINITIONS: dict[str, Attend] = {"linear": linear, "peer": linear, "softmax": softmax}
"""Of the kinds without gates."""
