"""A step of the copy task: what it costs in time and memory at a length.

A sequence is ``w 0 w``: ``w`` are ``context // 2`` symbols, each drawn from 1 to ``symbols``, and 0
separates them from their copy. The model is given all tokens except the last and predicts the next
ones; an odd context begins with one more 0, so that the model is always given ``context`` tokens.
Only the copy counts in the loss, because the rest is random. Runs that learn to copy are tasks of a
dataset of kind ``copy``.

Legend: B batch, T tokens, V vocabulary (padded), N tokens of all copies.

Source: Katharopoulos et al. 2020 (arXiv:2006.16236), section 4.1.
"""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from lmscaling.bench.training_step import Step
from lmscaling.config.speed import Sweep
from lmscaling.errors import UserError
from lmscaling.records.timing import Outcome, Point


def measure(sweep: Sweep, point: Point) -> Outcome:
    """Time steps on random sequences.

    Raises:
        UserError: The context has no room for a copy.
        torch.OutOfMemoryError: Memory does not suffice.
    """
    if point.context < 2:
        raise UserError(f"a context of {point.context} has no room for a copy; allowed: at least 2")
    step = Step(sweep, point)
    random = torch.Generator().manual_seed(step.cell.seed)
    symbols = step.cell.model.vocab_size - 1
    x_BT, y_BT = sequences(point.batch, point.context, symbols, random)
    x_BT, y_BT = x_BT.to(step.device), y_BT.to(step.device)
    return step.timed(lambda: _loss(step, x_BT, y_BT))


def sequences(batch: int, context: int, symbols: int, random: Generator) -> tuple[Tensor, Tensor]:
    """Inputs ``[B, T]`` and their targets ``[B, T]``, the next tokens."""
    w = torch.randint(1, symbols + 1, (batch, context // 2), generator=random)
    separator = w.new_zeros(batch, 1)
    tokens = torch.cat((separator, w, separator, w), 1)[:, -context - 1 :]
    return tokens[:, :-1], tokens[:, 1:]


def _loss(step: Step, x_BT: Tensor, y_BT: Tensor) -> Tensor:
    copied = slice(-(x_BT.shape[1] // 2), None)
    logits_NV, y_N = step.gpt(x_BT)[:, copied].flatten(0, 1), y_BT[:, copied].flatten()
    return F.cross_entropy(logits_NV.float(), y_N)
