"""One attention alone, without its projections: a pass forward, or forward and backward.

Linear implementations run with the feature map of their attention and normalised, those with gates
with the gates of theirs and keys as wide as values. Inputs are views of one packed projection, and
their gradients go back into one, as in a model.

Legend: B batch, T tokens, H heads, K head width.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from lmscaling import attention, kernels, registry
from lmscaling.bench.checks import exactness
from lmscaling.bench.checks.exactness import Attend
from lmscaling.bench.clock import device_of, timed
from lmscaling.bench.memory import Memory
from lmscaling.config.speed import PEERS, Sweep
from lmscaling.kernels import feature_maps
from lmscaling.records.timing import UNMASKED, Outcome, Point


def measure(sweep: Sweep, point: Point) -> Outcome:
    """The passes of one implementation on random numbers.

    Raises:
        UserError: The implementation has no file.
        torch.OutOfMemoryError: Memory does not suffice.
    """
    assert sweep.layer
    attend, kind = load(point.attention, point.implementation), registry.family(point.attention)
    if point.passes == UNMASKED:
        attend = unmasked if kind == "linear" else partial(attend, causal=False)
    device, dtype = device_of(sweep)
    memory = Memory(device)
    shape = (point.batch, point.context, sweep.layer.n_head, sweep.layer.d_head)
    form = exactness.LINEAR if kind == "peer" else _form(point.attention)
    passes = call(attend, kind, point.passes, shape, dtype, device, form)
    return timed(passes, memory, sweep.target_seconds, sweep.repeats).outcome(point, dtype)


def _form(name: str) -> tuple[Any, ...]:
    """Which gates an attention has, or its feature map and that it is normalised."""
    variant = attention.load(name)
    return getattr(variant, "form", (getattr(variant, "FEATURE_MAP", "softplus"), True))


def unmasked(q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool) -> Tensor:
    """Linear attention in which each token sees all others: two products with one state."""
    phi = feature_maps.find(feature_map)
    q, k = phi.of(q), phi.of(k)
    y = torch.einsum("bthk,bhkv->bthv", q, torch.einsum("bthk,bthv->bhkv", k, v))
    return y / (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True) if normalize else y


def load(attention: str, implementation: str) -> Attend:
    """The function of an implementation, ours or of another library.

    Raises:
        UserError: The implementation has no file.
        RuntimeError: The other library is not installed.
    """
    if attention != "peer":
        return kernels.load(registry.family(attention), implementation)
    if implementation not in peers():
        raise RuntimeError(f"{PEERS[implementation]} is not installed")
    return peers()[implementation]


def peers() -> dict[str, Attend]:
    """Implementations of installed libraries by name; all need a GPU."""
    return {"fla_chunk": fla_chunk} if find_spec("fla") else {}


def fla_chunk(q: Tensor, k: Tensor, v: Tensor, feature_map: str, normalize: bool) -> Tensor:
    """flash-linear-attention's ``chunk_linear_attn``; its layer applies the feature map before it.

    Source: Yang and Zhang 2024, https://github.com/fla-org/flash-linear-attention.
    """
    phi = feature_maps.find(feature_map)
    attend = import_module("fla.ops.linear_attn").chunk_linear_attn
    return attend(phi.of(q), phi.of(k), v, scale=1.0, normalize=normalize)[0]


def call(
    attend: Attend,
    kind: str,
    passes: str,
    shape_BTHK: tuple[int, int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    form: tuple[object, ...] = exactness.LINEAR,
) -> Callable[[], object]:
    """A call that computes the ``passes`` of an implementation of a kind on random numbers."""
    options = exactness.moved(exactness.options(kind, shape_BTHK, form), device, dtype)
    B, T, H, K = shape_BTHK
    packed = torch.randn(B, T, 3, H, K, device=device, dtype=dtype)
    if passes in ("forward", UNMASKED):
        return partial(attend, *packed.unbind(2), *options)
    dy = torch.randn_like(packed[:, :, 0])
    packed.requires_grad_()
    gates = [x for x in options if isinstance(x, Tensor)]

    def both() -> tuple[Tensor, ...]:
        made = attend(*packed.unbind(2), *options)
        y = made[0] if isinstance(made, tuple) else made
        return torch.autograd.grad(y, [packed, *gates], dy)

    return both
