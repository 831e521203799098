"""The tokens of a cell as a LightningDataModule: a batch is one rank's share of a whole update.

An update can then never end in the middle of its gradients, whatever Lightning counts in batches.
The position in the text follows from the number of updates, ``Trainer.global_step``.

Legend: B sequences, T context.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from lmscaling.config.cell import Cell
from lmscaling.data import document_positions, marks
from lmscaling.data.order import Order
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.plan import estimate
from lmscaling.train.checkpoint import Progress


class Updates:
    """One rank's share of each update: inputs and their targets, int64 ``[2, share]``, with -1 for
    targets that do not count. Iteration begins after ``done`` updates."""

    def __init__(self, stream: Stream, cell: Cell, done: int, rank: int, world: int) -> None:
        self.stream, self.cell, self.done = stream, cell, done
        self.rank, self.world = rank, world
        self.marks = marks.of(cell.data.source, cell.context)

    def __len__(self) -> int:
        """Updates of all epochs, those that are done included."""
        return self.stream.updates(self.cell.update_tokens) * self.cell.epochs

    def share(self, update: int) -> Tensor:
        """This rank's share of an update, which is counted from 1; pinned if there is a GPU."""
        slab = self.stream.slab(update, self.cell.update_tokens, self.rank, self.world)
        counted = self.marks.counted(slab) if self.marks else slab.astype("int64")
        tokens = torch.from_numpy(counted)
        return tokens.pin_memory() if self.cell.gpus else tokens

    def __iter__(self) -> Iterator[Tensor]:
        """The shares that are left; a thread reads the next one while the current one is used."""
        left = range(self.done + 1, len(self) + 1)
        with ThreadPoolExecutor(1) as reader:
            ahead = [reader.submit(self.share, update) for update in left[:1]]
            for update in left:
                share = ahead.pop().result()
                if update < left[-1]:
                    ahead.append(reader.submit(self.share, update + 1))
                yield share


class Text(LightningDataModule):
    """The training and the validation text of a cell.

    Args:
        cell: The cell.
        manifest: ``manifest.json`` of its tokens.
        micro_batch: Sequences of one forward pass in validation.

    Raises:
        UserError: The text is too short for the cell, or not what its model needs.
    """

    def __init__(self, cell: Cell, manifest: Any, micro_batch: int = 1) -> None:
        super().__init__()
        order = Order(cell.block_tokens, cell.seed) if cell.block_tokens else None
        self.train = Stream(manifest, "train", order=order)
        self.validation = Stream(manifest, "validation")
        self.cell, self.micro_batch = cell, micro_batch
        self.marks = marks.of(cell.data.source, cell.context)
        self._check()

    def train_dataloader(self) -> Updates:
        """Shares of the updates that are left."""
        trainer = self.trainer
        assert trainer
        place = trainer.global_rank, trainer.world_size
        return Updates(self.train, self.cell, trainer.global_step, *place)

    def val_dataloader(self) -> DataLoader:
        """This rank's share of the fixed validation tokens: ``B T + 1`` consecutive ones each,
        int64, and of a task the marks of their targets, uint8 ``[B T]``.

        Every rank has as many passes; one that has no tokens left gets a single one.
        """
        trainer, cell = self.trainer, self.cell
        assert trainer
        last, step = cell.validation.tokens, self.micro_batch * cell.context
        passes: Any = []
        for first in range(0, last, step * trainer.world_size):
            start = min(first + step * trainer.global_rank, last)
            tokens = self.validation.read(start, min(start + step, last) + 1)
            counts = self.marks.of(tokens[:-1]) if self.marks else tokens[:0].astype("uint8")
            passes.append((torch.from_numpy(tokens.astype("int64")), torch.from_numpy(counts)))
        return DataLoader(passes, batch_size=None)

    def state_dict(self) -> dict[str, Any]:
        """The run, and number and chain id of the last training shard read."""
        assert self.trainer
        shard, tokens_id = self.reached(self.trainer.global_step)
        return {"run": self.cell.run, "shard": shard, "tokens_id": tokens_id}

    def check(self, progress: Progress, run: str) -> None:
        """Raise ValueError if a checkpoint belongs to another run than this, or to other tokens."""
        if progress.run != run:
            raise ValueError(f"it belongs to run {progress.run}, and this is {run}")
        tokens = progress.update * self.cell.update_tokens
        self.train.go_on(tokens, progress.shard, progress.tokens_id)

    def reached(self, updates: int) -> tuple[int, str]:
        """Number and chain id of the last training shard that so many updates have read."""
        return self.train.reached(updates * self.cell.update_tokens)

    def last_update(self) -> int:
        """The last update for which there is text."""
        return self.train.updates(self.cell.update_tokens) * self.cell.epochs

    def exhausts(self, update_seconds: float | None) -> str:
        """A note if the text ends before the budget; empty if it does not, or if the budget is a
        time and the seconds of an update are not known."""
        cell = self.cell
        tokens = self.train.updates(cell.update_tokens) * cell.update_tokens
        return estimate.exhausts(cell, estimate.budget_updates(cell, update_seconds), tokens)

    def lengths(self) -> Any:
        """How often windows have documents of each length, if the documents are masked."""
        if not self.cell.is_masked:
            return None
        shards = [self.train.folder / shard.file for shard in self.train.shards]
        counts = document_positions.of_shards(shards)
        return document_positions.lengths_in_windows(counts, self.cell.context)

    def _check(self) -> None:
        """Refuse what would fail only after hours."""
        cell, train, validation = self.cell, self.train, self.validation
        if validation.tokens <= cell.validation.tokens:
            raise UserError(
                f"validation.tokens is {cell.validation.tokens} and the validation stream has "
                f"{validation.tokens} tokens; lower it to at most "
                f"{(validation.tokens - 1) // cell.context * cell.context} or add validation text"
            )
        if not train.updates(cell.update_tokens):
            raise UserError(
                f"update_tokens is {cell.update_tokens} and the training stream has {train.tokens} "
                "tokens; add training text"
            )
        if cell.is_masked and (found := train.end_of_text) != cell.model.vocab_size - 1:
            raise UserError(
                f"cell {cell.name}: token {found} begins the documents of {train.folder}; allowed "
                f"with documents: masked: {cell.model.vocab_size - 1}, the last of the vocabulary; "
                "write documents: mixed"
            )
