"""One update and one validation of a GPT, on one rank of a run.

A batch is one rank's share of an update, split here into micro-batches whose gradients are
accumulated and reduced over the ranks once.

Legend: B sequences, T context.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lmscaling.config.calibration import Calibration
from lmscaling.config.cell import Cell
from lmscaling.config.schedule import Rates
from lmscaling.data import document_positions, marks
from lmscaling.data.stream import Stream
from lmscaling.errors import UserError
from lmscaling.model import optimizer
from lmscaling.model.gpt import GPT
from lmscaling.train import norms, parallel, scoring
from lmscaling.train.ranks import Rank

STEPS = 2
"""Marks of a rank in an update: when it begins, and before the gradients are reduced."""


class Updates:
    """One rank's share of each update after the first ``done``: inputs and their targets, int64
    ``[2, share]``, with -1 for targets that do not count."""

    def __init__(self, stream: Stream, cell: Cell, done: int, rank: int, world: int) -> None:
        self.stream, self.cell, self.done = stream, cell, done
        self.rank, self.world = rank, world
        self.marks = marks.of(cell)

    def __len__(self) -> int:
        return self.stream.updates(self.cell.update_tokens) * self.cell.epochs - self.done

    def __getitem__(self, index: int) -> Tensor:
        update = self.done + index + 1
        slab = self.stream.slab(update, self.cell.update_tokens, self.rank, self.world)
        counted = self.marks.counted(slab) if self.marks else slab.astype("int64")
        return torch.from_numpy(counted)

    def __iter__(self) -> Iterator[Tensor]:
        """All shares in order; a thread reads the next one while the current one is used."""
        count = len(self)
        with ThreadPoolExecutor(1) as reader:
            ahead = deque(reader.submit(self.__getitem__, index) for index in range(min(1, count)))
            for following in range(1, count + 1):
                slab = ahead.popleft().result()
                if following < count:
                    ahead.append(reader.submit(self.__getitem__, following))
                yield slab


class Training:
    """Trains the model of a cell on a stream, with the settings of a calibration."""

    def __init__(
        self, cell: Cell, train: Stream, validation: Stream, calibration: Calibration
    ) -> None:
        self.cell, self.train_stream, self.validation_stream = cell, train, validation
        if cell.is_masked:
            _check_end_of_text(cell, train)
        self.micro_batch, self.compiled = calibration.micro_batch, calibration.compiled
        self.model = prepared(cell, calibration)
        self.marks = marks.of(cell)
        self.model.is_marked = self.marks is not None
        self.groups: dict[str, Any] | None = None
        """Accuracy of a task by group of targets, as of the last validation."""
        self.kernels = ""
        """What stands in for kernels that failed their check, see ``checked_kernels``."""
        self.updates = 0
        """Updates completed."""
        self.rates: Rates = cell.rates
        """Learning rates; those of a branch replace them when its trunk's checkpoint is read."""
        self.spent = 0.0
        """Share of the budget that is spent, 0 to 1, the same on every rank."""
        self.rate = 0.0
        """Learning rate of the last update."""
        self.norms: norms.Norms | None = None
        """Norms of the last update, if it was one that measures them."""

    def start(self, rank: Rank) -> None:
        """Move the model to the device of this rank and make its optimizer."""
        self.rank = rank
        self.model.to(rank.device)
        self.adamw = optimizer.build(self.model, self.cell)
        is_shared = rank.world > 1
        self._loss = parallel.shared_loss(self.model) if is_shared else parallel.Loss(self.model)

    def slabs(self) -> Updates:
        """This rank's share of each update that is left."""
        return Updates(
            self.train_stream, self.cell, self.updates, self.rank.number, self.rank.world
        )

    def update(self, slab: Tensor) -> tuple[float, float]:
        """Do one update; return the mean loss over all ranks and the norm of the gradient."""
        self.rank.mark(STEPS * self.updates)
        self._seed()
        self.rate = self.rates.rate(self.updates + 1, self.spent)
        for group in self.adamw.param_groups:
            group["lr"] = self.rate
        pairs = list(micro_batches(self._moved(slab), self.cell.context, self.micro_batch))
        self.norms = self._norms(len(pairs))
        # A device's only micro-batch is measured before it is averaged over the devices.
        is_averaged_late = self.norms is not None and len(pairs) == 1 < self.rank.world
        total = torch.zeros((), device=self.rank.device)
        parts = self._parts(pairs)
        for i, (x_BT, y_BT) in enumerate(pairs):
            is_last = i == len(pairs) - 1
            is_averaged = is_last and not is_averaged_late
            with nullcontext() if is_averaged else parallel.accumulating(self._loss):
                with self._precision():
                    loss = self._loss(x_BT, y_BT) / parts[i]
                self.rank.mark(STEPS * self.updates + is_last)
                loss.backward()
            total += loss.detach()
            if i == 0 and self.norms and self.norms.small_tokens:
                squared = (self.norms.gradient() * parts[0]).square()
                self.norms.small_squared = self.rank.sum(squared) / self.rank.world
        if is_averaged_late:
            parallel.average_gradients(self.model, self.rank.world)
        if self.norms:
            self.norms.measure_layers()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cell.optimizer.clip_norm)
        self.adamw.step()
        parallel.clear_gradients(self.model, self.rank.world > 1)
        self.updates += 1
        return float(self.rank.sum(total)) / self.rank.world, float(norm)

    def _parts(self, pairs: list[tuple[Tensor, Tensor]]) -> list[float]:
        """What the mean loss of each micro-batch is divided by, so that all targets of the update
        that count have the same weight."""
        if not self.marks:
            return [len(pairs)] * len(pairs)
        counts = torch.stack([(y_BT >= 0).sum() for _, y_BT in pairs])
        mean = self.rank.sum(counts.sum()) / self.rank.world
        return (mean / counts).tolist()

    def _norms(self, micro_batches: int) -> norms.Norms | None:
        """What measures the norms of the next update; None for most updates."""
        if (self.updates + 1) % norms.EVERY:
            return None
        is_whole = micro_batches * self.rank.world == 1
        small_tokens = None if is_whole else self.micro_batch * self.cell.context
        return norms.Norms(self.model, small_tokens)

    def _moved(self, tokens: Tensor) -> Tensor:
        if self.rank.device.type == "cpu":
            return tokens
        return tokens.pin_memory().to(self.rank.device, non_blocking=True)

    def _precision(self) -> AbstractContextManager:
        """bf16 on a GPU, float32 on the CPU."""
        is_gpu = self.rank.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if is_gpu else nullcontext()

    def _seed(self) -> None:
        """Seed the random numbers that a variant may draw, so that no checkpoint has to hold them.

        The seed is the first eight bytes, big-endian, of the SHA-256 of ``seed:updates:rank`` in
        decimal digits, where ``updates`` are those done: the same in every version of Python.
        """
        key = f"{self.cell.seed}:{self.updates}:{self.rank.number}"
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        # Not torch.manual_seed: without a GPU it keeps a stack trace of every call.
        torch.default_generator.manual_seed(seed)
        if self.rank.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def warm_up(self) -> None:
        """Compute micro-batches of zeros forward and backward, without changing weights.

        The time of the first update then includes neither compilation nor loading of libraries.
        The second one is for DistributedDataParallel, which arranges its buckets after the first.
        """
        slab = torch.zeros(2, self.micro_batch * self.cell.context, dtype=torch.int64)
        x_BT, y_BT = self._moved(slab).unflatten(1, (-1, self.cell.context))
        for _ in range(min(2, self.rank.world)):
            with self._precision():
                self._loss(x_BT, y_BT).backward()
        parallel.clear_gradients(self.model, self.rank.world > 1)

    def flops_per_token(self) -> float:
        """Training FLOPs per token, of masked documents at the lengths that the text has."""
        if not self.cell.is_masked:
            return self.model.flops_per_token()
        shards = [self.train_stream.folder / shard.file for shard in self.train_stream.shards]
        counts = document_positions.of_shards(shards)
        lengths = document_positions.lengths_in_windows(counts, self.cell.context)
        return self.model.flops_per_token(lengths)

    def last_update(self) -> int:
        """The last update for which there is data."""
        return self.train_stream.updates(self.cell.update_tokens) * self.cell.epochs

    def reached(self) -> tuple[int, str]:
        """Number and chain id of the last training shard read."""
        return self.train_stream.reached(self.updates * self.cell.update_tokens)

    def peak_memory_bytes(self) -> int | None:
        """Peak allocated memory of this rank's device; None on the CPU."""
        device = self.rank.device
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Mean cross-entropy on the fixed validation tokens, nats per target that counts, over all
        ranks; of a task also ``groups``."""
        cell, rank = self.cell, self.rank
        if self.marks:
            self.model.eval()
            with self._precision():
                scores = scoring.validate(
                    self.model, self.validation_stream, self.marks, cell, self.micro_batch, rank
                )
            self.model.train()
            loss, self.groups = scores.read(rank)
            return loss
        tokens_per_pass = self.micro_batch * cell.context
        total = torch.zeros((), dtype=torch.float64, device=rank.device)
        self.model.eval()
        starts = range(0, cell.validation.tokens, tokens_per_pass)
        for start in starts[rank.number :: rank.world]:
            stop = min(start + tokens_per_pass, cell.validation.tokens)
            tokens = torch.from_numpy(self.validation_stream.read(start, stop + 1).astype("int64"))
            x_BT, y_BT = pair(self._moved(tokens), cell.context)
            with self._precision():
                total += self.model.loss(x_BT, y_BT).double() * y_BT.numel()
            rank.mark(STEPS * self.updates)
        self.model.train()
        return float(rank.sum(total)) / cell.validation.tokens


def _check_end_of_text(cell: Cell, stream: Stream) -> None:
    """The model of masked documents knows where they begin by the last token alone."""
    found, last = stream.end_of_text, cell.model.vocab_size - 1
    if found != last:
        raise UserError(
            f"cell {cell.name}: token {found} begins the documents of {stream.folder}; allowed "
            f"with documents: masked: {last}, the last of the vocabulary; write documents: mixed"
        )


def pair(tokens: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets ``[B, T]`` of ``B T + 1`` consecutive tokens."""
    return tokens[:-1].view(-1, context), tokens[1:].view(-1, context)


def micro_batches(slab: Tensor, context: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A slab in equal parts of ``size`` sequences, as inputs and targets ``[B, T]``."""
    x_BT, y_BT = slab.unflatten(1, (-1, context))
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
