"""The copy task: how well a model learns to repeat a sequence, and what a step of it costs.

A sequence is ``w 0 w``: ``w`` are ``context // 2`` symbols, each drawn from 1 to ``symbols``, and 0
separates them from their copy. The model is given all tokens except the last and predicts the next
ones; an odd context begins with one more 0, so that the model is always given ``context`` tokens.
Only the copy counts in the loss, because the rest is random.

Legend: B batch, T tokens, V vocabulary (padded), N tokens of all copies.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), section 4.1.
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from lmscaling.bench.training_step import Step
from lmscaling.config.speed import Sweep
from lmscaling.errors import UserError
from lmscaling.records.timing import Outcome, Point

FAST_SHARE, SLOW_RATE = 3 / 5, 0.1
"""Share of the updates at the full rate, and the factor of the rate after them; Katharopoulos et
al. 2020 divide by 10 after 3,000 updates."""
FRESH_SYMBOLS = 2**14
"""Symbols of which the accuracy is computed: its standard error is then at most 0.4 %."""
FRESH_SEED = 1
"""Added to the cell's seed for sequences that were not trained on."""


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Learn for ``point.updates``, compute the accuracy on fresh sequences, time further steps.

    Raises:
        UserError: The context has no room for a copy.
        torch.OutOfMemoryError: Memory does not suffice.
    """
    if point.context < 2:
        raise UserError(f"a context of {point.context} has no room for a copy; allowed: at least 2")
    step = Step(sweep, point)
    random = torch.Generator().manual_seed(step.cell.seed)
    loss = accuracy = None
    if point.updates:
        _learn(step, point, random)
        loss, accuracy = _score(step, point)
    x_BT, y_BT = _sequences(step, point, random)
    return step.timed(lambda: _loss(step, x_BT, y_BT), loss=loss, accuracy=accuracy)


def sequences(batch: int, context: int, symbols: int, random: Generator) -> tuple[Tensor, Tensor]:
    """Inputs ``[B, T]`` and their targets ``[B, T]``, the next tokens."""
    w = torch.randint(1, symbols + 1, (batch, context // 2), generator=random)
    separator = w.new_zeros(batch, 1)
    tokens = torch.cat((separator, w, separator, w), 1)[:, -context - 1 :]
    return tokens[:, :-1], tokens[:, 1:]


def _learn(step: Step, point: Point, random: Generator) -> None:
    for update in range(1, point.updates + 1):
        fast = update <= FAST_SHARE * point.updates
        for group in step.adamw.param_groups:
            group["lr"] = step.cell.lr * (1 if fast else SLOW_RATE)
        x_BT, y_BT = _sequences(step, point, random)
        step(lambda x=x_BT, y=y_BT: _loss(step, x, y))


@torch.no_grad()
def _score(step: Step, point: Point) -> tuple[float, float]:
    """Mean loss in nats, and the share of symbols that are predicted, on fresh sequences."""
    random = torch.Generator().manual_seed(step.cell.seed + FRESH_SEED)
    losses, hits = [], []
    for _ in range(math.ceil(FRESH_SYMBOLS / (point.batch * (point.context // 2)))):
        x_BT, y_BT = _sequences(step, point, random)
        with step.autocast():
            logits_NV, y_N = _copy(step, x_BT, y_BT)
        losses.append(F.cross_entropy(logits_NV.float(), y_N))
        hits.append((logits_NV.argmax(-1) == y_N).float().mean())
    return torch.stack(losses).mean().item(), torch.stack(hits).mean().item()


def _sequences(step: Step, point: Point, random: Generator) -> tuple[Tensor, Tensor]:
    symbols = step.cell.model.vocab_size - 1
    x_BT, y_BT = sequences(point.batch, point.context, symbols, random)
    return x_BT.to(step.device), y_BT.to(step.device)


def _loss(step: Step, x_BT: Tensor, y_BT: Tensor) -> Tensor:
    logits_NV, y_N = _copy(step, x_BT, y_BT)
    return F.cross_entropy(logits_NV.float(), y_N)


def _copy(step: Step, x_BT: Tensor, y_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Logits ``[N, V]`` and targets of the tokens after the separator."""
    copied = slice(-(x_BT.shape[1] // 2), None)
    return step.gpt(x_BT)[:, copied].flatten(0, 1), y_BT[:, copied].flatten()
