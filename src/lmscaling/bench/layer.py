"""One attention alone, without its projections: a pass forward, or forward and backward.

Linear implementations run with softplus and normalised, those with gates with gates of tokens and
keys as wide as values; inputs are views of one packed projection, and their gradients go back into
one, as in a model.

Legend: B batch, T tokens, H heads, K head width.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lmscaling import kernels, registry
from lmscaling.bench import peers
from lmscaling.bench.checks import exactness
from lmscaling.bench.checks.exactness import Attend
from lmscaling.bench.clock import device_of, timed
from lmscaling.bench.memory import Memory
from lmscaling.config.speed import PEERS, Sweep
from lmscaling.records.timing import Outcome, Point


def measure(sweep: Sweep, point: Point) -> Outcome:
    """The passes of one implementation on random numbers.

    Raises:
        UserError: The implementation has no file.
        torch.OutOfMemoryError: Memory does not suffice.
    """
    assert sweep.layer
    attend = load(point.attention, point.implementation)
    device, dtype = device_of(sweep)
    memory = Memory(device)
    shape = (point.batch, point.context, sweep.layer.n_head, sweep.layer.d_head)
    passes = call(attend, registry.family(point.attention), point.passes, shape, dtype, device)
    return timed(passes, memory, sweep.target_seconds, sweep.repeats).outcome(point, dtype)


def load(attention: str, implementation: str) -> Attend:
    """The function of an implementation, ours or of another library.

    Raises:
        UserError: The implementation has no file.
        RuntimeError: The other library is not installed.
    """
    if attention != "peer":
        return kernels.load(registry.family(attention), implementation)
    if implementation not in peers.installed():
        raise RuntimeError(f"{PEERS[implementation]} is not installed")
    return peers.installed()[implementation]


def call(
    attend: Attend,
    kind: str,
    passes: str,
    shape_BTHK: tuple[int, int, int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> Callable[[], object]:
    """A call that computes the ``passes`` of an implementation of a kind on random numbers."""
    options = exactness.moved(exactness.options(kind, shape_BTHK), device, dtype)
    B, T, H, K = shape_BTHK
    packed = torch.randn(B, T, 3, H, K, device=device, dtype=dtype)
    if passes == "forward":
        return partial(attend, *packed.unbind(2), *options)
    dy = torch.randn_like(packed[:, :, 0])
    packed.requires_grad_()
    gates = [x for x in options if isinstance(x, Tensor)]

    def both() -> tuple[Tensor, ...]:
        made = attend(*packed.unbind(2), *options)
        y = made[0] if isinstance(made, tuple) else made
        return torch.autograd.grad(y, [packed, *gates], dy)

    return both
