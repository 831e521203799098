"""A GPT as a LightningModule: model, loss, optimizer and learning rate.

Optimization is manual. A batch is one rank's share of an update, which is split here into
micro-batches whose gradients are accumulated and averaged over the ranks once. An optimizer step
is therefore an update, and ``Trainer.global_step`` counts updates.

    module = Training(cell)
    Trainer(max_steps=100).fit(module, Text(cell, manifest))

Legend: B sequences, T context.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, distributed, nn, optim

from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import Decay, WarmUp
from lmscaling.data import marks
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
from lmscaling.train import scoring, settings


class Training(LightningModule):
    """Trains the model of a cell.

    Args:
        cell: The cell.
        calibration: Settings that a calibration has measured; None uses the plan's guess.
    """

    def __init__(self, cell: Cell, calibration: Calibration | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        calibration = calibration or settings.guessed(cell)
        self.cell, self.micro_batch, self.marks = (
            cell,
            calibration.micro_batch,
            marks.of(cell.data.source, cell.context),
        )
        self.model = GPT(cell)
        self.model.tune(calibration.choice)
        self.model.recompute = calibration.recompute
        if calibration.compiled:
            self.model.compile_blocks()
        self.model.is_marked = self.marks is not None
        self.rates: WarmUp | Decay = cell.rates
        """Learning rates; those of a branch replace them."""
        self.spent: float | None = None
        """Share of the budget that is spent, 0 to 1, the same on every rank; see ``Budget``. None
        counts the updates of ``Trainer(max_steps=...)``."""
        self.rate = 0.0
        """Learning rate of the last update."""
        self.grad_norm = torch.zeros(())
        """Norm of the gradient of the last update before it was clipped."""
        self.val_loss: float | None = None
        self.groups: dict[str, Any] | None = None
        """Accuracy of a task by group of targets, as of the last validation."""

    @property
    def updates(self) -> int:
        """Updates completed."""
        return self.trainer.global_step

    def configure_optimizers(self) -> optim.Optimizer:
        """That of the cell; this is called when the model is on its device."""
        return optimizer.build(self.model, self.cell)

    def on_fit_start(self) -> None:
        """Compute micro-batches of zeros forward and backward, without changing weights.

        The time of the first update then includes neither compilation nor loading of libraries.
        The second one is for DistributedDataParallel, which arranges its buckets after the first.
        """
        shape = self.micro_batch, self.cell.context
        x_BT = torch.zeros(shape, dtype=torch.int64, device=self.device)
        for _ in range(min(2, self.trainer.world_size)):
            with self.trainer.precision_plugin.train_step_context():
                loss = self.model.loss(x_BT, x_BT)
            self.manual_backward(loss)
        self._clear_gradients()

    def training_step(self, slab: Tensor, batch_idx: int) -> dict[str, Tensor]:
        """One update; returns its mean loss over all ranks.

        Args:
            slab: Inputs and targets of this rank, int64 ``[2, share]``.
            batch_idx: Not used.
        """
        self._seed()
        steps = self.optimizers()
        assert isinstance(steps, LightningOptimizer)  # there is one
        spent = max(0.0, self.updates / self.trainer.max_steps)
        self.rate = self.rates.rate(self.updates + 1, spent if self.spent is None else self.spent)
        for group in steps.param_groups:
            group["lr"] = self.rate * group.get("share", 1.0)
        pairs = list(micro_batches(slab, self.cell.context, self.micro_batch))
        parts = self._parts(pairs)
        total = torch.zeros((), device=self.device)
        for i, (x_BT, y_BT) in enumerate(pairs):
            with nullcontext() if i == len(pairs) - 1 else self._accumulating():
                loss = self.model.loss(x_BT, y_BT) / parts[i]
                with torch.autocast(self.device.type, enabled=False):
                    self.manual_backward(loss)
            total += loss.detach()
        with torch.autocast(self.device.type, enabled=False):
            steps.step()
        self._clear_gradients()
        loss = self._sum(total) / self.trainer.world_size
        if self.trainer.loggers or self.trainer.progress_bar_callback:  # else it costs time
            self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss}

    def on_before_optimizer_step(self, optimizer: optim.Optimizer) -> None:
        """Clip the gradient, after the callbacks have seen it."""
        most = self.cell.optimizer.clip_norm
        self.grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), most)

    def on_validation_epoch_start(self) -> None:
        """Begin the sums over the validation tokens."""
        n_groups = 1 + len(self.marks.groups if self.marks else ())
        self._sums_G3 = torch.zeros(n_groups, 3, dtype=torch.float64, device=self.device)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Add the losses of some sequences: ``B T + 1`` tokens, and of a task their marks."""
        tokens, counts = batch
        x_BT, y_BT = (side.view(-1, self.cell.context) for side in (tokens[:-1], tokens[1:]))
        if self.marks and y_BT.numel():
            scoring.add(self._sums_G3, self.model, x_BT, y_BT, counts)
        elif y_BT.numel():
            self._sums_G3[-1, 0] += y_BT.numel()
            self._sums_G3[-1, 1] += self.model.loss(x_BT, y_BT).double() * y_BT.numel()

    def on_validation_epoch_end(self) -> None:
        """Mean cross-entropy in nats per target that counts, over all ranks: ``val_loss``."""
        sums_G3 = self._sum(self._sums_G3)
        self.val_loss = float(sums_G3[-1, 1] / sums_G3[-1, 0])
        self.groups = scoring.by_group(sums_G3, self.marks.groups if self.marks else ())
        self.log("val_loss", self.val_loss)

    def on_validation_model_zero_grad(self) -> None:
        """Nothing to do: gradients are cleared after each update, and stay in their buckets."""

    def _parts(self, pairs: list[tuple[Tensor, Tensor]]) -> list[float]:
        """All targets of the update that count get the same weight."""
        if not self.marks:
            return [len(pairs)] * len(pairs)
        counts = torch.stack([(y_BT >= 0).sum() for _, y_BT in pairs])
        mean = self._sum(counts.sum()) / self.trainer.world_size
        return (mean / counts).tolist()

    def _accumulating(self) -> AbstractContextManager:
        """Around every micro-batch of an update but the last: gradients are not averaged yet."""
        strategy = self.trainer.strategy
        return (
            strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) else nullcontext()
        )

    def _clear_gradients(self) -> None:
        """Forget the gradients of an update; those that several ranks share stay in their buckets,
        beside which they would be allocated again."""
        self.model.zero_grad(set_to_none=self.trainer.world_size == 1)

    def _sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over the ranks, in place."""
        if self.trainer.world_size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def _seed(self) -> None:
        """Seed the random numbers that a variant may draw, so that no checkpoint has to hold them.

        The seed is the first eight bytes, big-endian, of the SHA-256 of ``seed:updates:rank`` in
        decimal digits, where ``updates`` are those done: the same in every version of Python.
        """
        key = f"{self.cell.seed}:{self.updates}:{self.trainer.global_rank}"
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        # Not torch.manual_seed: without a GPU it keeps a stack trace of every call.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)


def micro_batches(slab: Tensor, context: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A slab in equal parts of ``size`` sequences, as inputs and targets ``[B, T]``."""
    x_BT, y_BT = slab.unflatten(1, (-1, context))
    assert x_BT.shape[0] % size == 0
    return zip(x_BT.split(size), y_BT.split(size), strict=True)
