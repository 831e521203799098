"""Norms of gradients and weights at every tenth update, for the log."""

# Hooks of callbacks that know which module they belong to.
# pyright: reportIncompatibleMethodOverride=false

from itertools import chain
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn, optim

from lmscaling.model.gpt import GPT
from lmscaling.records.run import Gradients, finite
from lmscaling.train.journal import Journal
from lmscaling.train.module import Training

EVERY = 10
"""Updates from one measurement to the next. Norms then cost 0.3 % of the CPU time of training the
smallest model of the demo (4,328 parameters), and 0.1 % with 182,080 parameters."""

DIGITS = 5
"""Significant digits of a norm in the log; those of float32 are 7."""


class Norms(Callback):
    """Measures norms on every rank; rank 0 writes them into ``journal``, a callback before this."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = journal
        self._measures = False
        self._row: dict[str, Any] = {}

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Training, batch: Tensor, *_: object
    ) -> None:
        """Measure the weights, if the norms of this update are due."""
        self._measures = (trainer.global_step + 1) % EVERY == 0
        if self._measures:
            self._row = {"layer_weight_norms": _norms(pl_module.model, of_gradients=False)}

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: Training, optimizer: optim.Optimizer
    ) -> None:
        """Measure the gradient of each layer, before it is clipped."""
        if self._measures:
            self._row["layer_grad_norms"] = _norms(pl_module.model, of_gradients=True)
            layers = chain.from_iterable(pl_module.model.each_attention().values())
            divisors = [getattr(layer, "smallest_divisor", None) for layer in layers]
            found = [divisor for divisor in divisors if divisor is not None]
            self._row["smallest_divisor"] = torch.stack(found).amin() if found else None

    def on_train_batch_end(self, trainer: Trainer, pl_module: Training, *_: Any) -> None:
        """Write the norms."""
        if self._measures and self.journal:
            attempt, update = self.journal.attempt, trainer.global_step
            tokens = update * pl_module.cell.update_tokens
            row = {name: _rounded(value) for name, value in self._row.items()}
            self.journal.write(Gradients(attempt=attempt, update=update, tokens=tokens, **row))


@torch.no_grad()
def _norms(model: GPT, of_gradients: bool) -> Tensor:
    """Norms of the embeddings, each block, and the final norm with a head of its own. A token shift
    is as long as a norm and left out."""
    ends = [model.wte, model.wpe], [model.norm, model.head]
    layers = [ends[0], *([block] for block in model.blocks), ends[1]]
    norms = []
    for layer in layers:
        trained = [p for part in layer if part for p in part.parameters() if p.requires_grad]
        tensors = [p.grad if of_gradients else p for p in trained]
        norms.append(nn.utils.get_total_norm([t for t in tensors if t is not None]))
    return torch.stack(norms)


def _rounded(value: Any) -> Any:
    """A tensor as numbers of a row; other values as they are."""
    if isinstance(value, Tensor):
        return _rounded(value.tolist())
    if isinstance(value, list):
        return list(map(_rounded, value))
    return finite(float(f"{value:.{DIGITS}g}")) if isinstance(value, float) else value
