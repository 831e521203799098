"""One update and one validation of a GPT, as a Lightning module.

Optimization is manual: a batch is one rank's share of an update, split here into micro-batches
whose gradients are accumulated. None of Lightning's counters (steps, epochs, accumulated batches)
is used, so an update can never end before all its gradients are summed.

Legend: B sequences, T context.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import Rates
from lmscaling.data.stream import Stream
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT


class Updates(Dataset):
    """One rank's share of each update after the first ``done``: int64 tokens ``[share + 1]``."""

    def __init__(self, stream: Stream, cell: Cell, done: int, rank: int, world: int) -> None:
        self.stream, self.cell, self.done = stream, cell, done
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return self.stream.updates(self.cell.update_tokens) * self.cell.epochs - self.done

    def __getitem__(self, index: int) -> Tensor:
        update = self.done + index + 1
        slab = self.stream.slab(update, self.cell.update_tokens, self.rank, self.world)
        return torch.from_numpy(slab.astype("int64"))


class Training(lightning.LightningModule):
    """Trains the model of a cell on a stream, with the settings of a calibration."""

    def __init__(
        self, cell: Cell, train: Stream, validation: Stream, calibration: Calibration
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.cell, self.train_stream, self.validation_stream = cell, train, validation
        self.micro_batch = calibration.micro_batch
        self.model = prepared(cell, calibration)
        self.updates = 0
        """Updates completed."""
        self.rates: Rates = cell.rates
        """Learning rates; those of a branch replace them when its trunk's checkpoint is read."""
        self.spent = 0.0
        """Share of the budget that is spent, 0 to 1, the same on every rank."""
        self.rate = 0.0
        """Learning rate of the last update."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer.build(self.model, self.cell)

    def train_dataloader(self) -> DataLoader:
        updates = Updates(
            self.train_stream,
            self.cell,
            self.updates,
            self.trainer.global_rank,
            self.trainer.world_size,
        )
        return DataLoader(updates, batch_size=None)

    def training_step(self, slab: Tensor, index: int) -> dict[str, Tensor]:
        """Do one update; return the mean loss over all ranks and the norm of the gradient."""
        self._seed()
        (adamw,) = self.trainer.optimizers
        self.rate = self.rates.rate(self.updates + 1, self.spent)
        for group in adamw.param_groups:
            group["lr"] = self.rate
        pairs = list(micro_batches(slab, self.cell.context, self.micro_batch))
        total = torch.zeros((), device=self.device)
        for i, (x_BT, y_BT) in enumerate(pairs):
            with nullcontext() if i == len(pairs) - 1 else self._without_reduction():
                loss = self.model.loss(x_BT, y_BT) / len(pairs)
                self.manual_backward(loss)
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.cell.optimizer.clip_norm
        )
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        self.updates += 1
        return {"loss": self.trainer.strategy.reduce(total, reduce_op="mean"), "norm": norm}

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

    def warm_up(self) -> None:
        """Compute one micro-batch of zeros forward and backward, without changing weights.

        The time of the first update then includes neither compilation nor loading of libraries.
        """
        share = self.cell.update_tokens // self.trainer.world_size
        slab = torch.zeros(share + 1, dtype=torch.int64, device=self.device)
        x_BT, y_BT = next(iter(micro_batches(slab, self.cell.context, self.micro_batch)))
        with self.trainer.precision_plugin.train_step_context():
            self.model.loss(x_BT, y_BT).backward()
        self.model.zero_grad(set_to_none=True)

    def last_update(self) -> int:
        """The last update for which there is data."""
        return self.train_stream.updates(self.cell.update_tokens) * self.cell.epochs

    def reached(self) -> tuple[int, str]:
        """Number and chain id of the last training shard read."""
        return self.train_stream.reached(self.updates * self.cell.update_tokens)

    def peak_memory_bytes(self) -> int | None:
        """Peak allocated memory of this rank's device; None on the CPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    def _without_reduction(self) -> AbstractContextManager:
        """Only the last micro-batch of an update reduces its gradients over the ranks."""
        strategy = self.trainer.strategy
        return (
            strategy.block_backward_sync() if isinstance(strategy, DDPStrategy) else nullcontext()
        )

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Mean cross-entropy on the fixed validation tokens, nats per token, over all ranks."""
        cell, world = self.cell, self.trainer.world_size
        tokens_per_pass = self.micro_batch * cell.context
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.model.eval()
        starts = range(0, cell.validation.tokens, tokens_per_pass)
        for start in starts[self.trainer.global_rank :: world]:
            stop = min(start + tokens_per_pass, cell.validation.tokens)
            tokens = torch.from_numpy(self.validation_stream.read(start, stop + 1).astype("int64"))
            x_BT, y_BT = pair(tokens.to(self.device), cell.context)
            with self.trainer.precision_plugin.val_step_context():
                total += self.model.loss(x_BT, y_BT).double() * y_BT.numel()
        self.model.train()
        return float(self.trainer.strategy.reduce(total, reduce_op="sum")) / cell.validation.tokens


def pair(tokens: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets ``[B, T]`` of ``B T + 1`` consecutive tokens."""
    return tokens[:-1].view(-1, context), tokens[1:].view(-1, context)


def micro_batches(slab: Tensor, context: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """An update in equal parts of ``size`` sequences, as inputs and targets ``[B, T]``."""
    x_BT, y_BT = pair(slab, context)
    assert x_BT.shape[0] % size == 0
    return zip(x_BT.split(size), y_BT.split(size), strict=True)


def prepared(cell: Cell, calibration: Calibration) -> GPT:
    """The model of a cell with the settings of a calibration."""
    gpt = GPT(cell)
    gpt.tune(calibration.choice)
    gpt.recompute = calibration.recompute
    if calibration.compiled:
        gpt.compile_blocks()
    return gpt
