"""Norms of gradients and weights at every tenth update, for the gradient-noise scale and the log.

A micro-batch and the whole update are the two batch sizes of McCandlish et al. 2018
(arXiv:1812.06162, appendix A.1). The gradient of a device's first micro-batch exists before any
other is added, so its norm costs one pass over the gradient. All of it is part of the update and
counts as productive time.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lmscaling.model.gpt import GPT
from lmscaling.records.run import Gradients, finite

EVERY = 10
"""Updates from one measurement to the next. Norms then cost 0.3 % of the CPU time of training the
smallest model of the demo (4,328 parameters), and 0.1 % with 182,080 parameters."""

DIGITS = 5
"""Significant digits of a norm in the log; those of float32 are 7."""


class Norms:
    """The norms of one update, on the device until they are written.

    Args:
        model: The model; its weights are those before the update.
        small_tokens: Tokens of the first micro-batch of each device; None if it is all of the
            update.
    """

    def __init__(self, model: GPT, small_tokens: int | None) -> None:
        self.small_tokens = small_tokens
        self.small_squared: Tensor | None = None
        """Squared norm of the gradient of the first micro-batches, mean over devices."""
        self._layers = [list(_trainable(parts)) for parts in _parts(model)]
        self._weights = torch.stack([_norm(layer) for layer in self._layers])

    def gradient(self) -> Tensor:
        """Norm of the gradient as it is now."""
        return _norm(p.grad for layer in self._layers for p in layer)

    def measure_layers(self) -> None:
        """Keep the norms of the gradient of each layer, before it is clipped."""
        self._gradients = torch.stack([_norm(p.grad for p in layer) for layer in self._layers])

    def row(self, attempt: int, update: int, tokens: int) -> Gradients:
        """The line of the log."""
        small = None if self.small_squared is None else float(self.small_squared.sqrt())
        return Gradients(
            attempt=attempt,
            update=update,
            tokens=tokens,
            small_tokens=self.small_tokens,
            small_grad_norm=None if small is None else _rounded(small),
            layer_grad_norms=list(map(_rounded, self._gradients.tolist())),
            layer_weight_norms=list(map(_rounded, self._weights.tolist())),
        )


def _parts(model: GPT) -> list[list[nn.Module | None]]:
    """Embeddings, each block, final norm. A token shift is as long as a norm and left out."""
    return [[model.wte, model.wpe], *([block] for block in model.blocks), [model.norm]]


def _trainable(parts: Iterable[nn.Module | None]) -> Iterable[nn.Parameter]:
    return (p for part in parts if part for p in part.parameters() if p.requires_grad)


def _norm(tensors: Iterable[Tensor | None]) -> Tensor:
    return nn.utils.get_total_norm([t for t in tensors if t is not None])


def _rounded(value: float) -> float | None:
    return finite(float(f"{value:.{DIGITS}g}"))
