"""CPU seconds of each attention variant, forward and backward, as a multiple of those of linear.

    python benchmarks/attentions.py [variant ...]

All variants take turns in one process with one thread, so that a machine that slows down slows all;
prints the median ratio of the rounds with its range. Variants keep their default chunk.

Legend: B batch, T tokens, D model width, H heads.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from lmscaling import attention, registry
from lmscaling.kernels.rotary import unrotated

B, T, D, H = 4, 1024, 256, 4
ROUNDS = 9
BOUNDS = {"retention": 1.5, "mamba2": 1.5, "gated": 3.0, "gated_delta": 3.0}


def passes(name: str, x_BTD: torch.Tensor) -> Callable[[], float]:
    """A call that returns the CPU seconds of one forward and backward pass."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"context": T} if name == "cosformer" else {}
    layer = attention.load(name)(D, H, unrotated, **options)

    def seconds() -> float:
        started = time.process_time()
        torch.autograd.grad(layer(x_BTD).square().mean(), [x_BTD, *layer.parameters()])
        return time.process_time() - started

    return seconds


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    x_BTD = torch.randn(B, T, D, requires_grad=True)
    calls = {name: passes(name, x_BTD) for name in dict.fromkeys(["linear", *names])}
    rounds = [{name: call() for name, call in calls.items()} for _ in range(ROUNDS + 1)][1:]
    for name in calls:
        ratios = [each[name] / each["linear"] for each in rounds]
        seconds = statistics.median(each[name] for each in rounds)
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        bound = f"  bound {BOUNDS[name]:.1f}" if name in BOUNDS else ""
        print(f"{name:12} {seconds:6.3f} s  {middle:5.2f} ({low:.2f} to {high:.2f}){bound}")


if __name__ == "__main__":
    main(sys.argv[1:] or registry.attentions())
