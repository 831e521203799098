"""Checkpoints: everything that Lightning saves, in one safetensors file under one digest.

``SafetensorsIO`` is a ``CheckpointIO`` of Lightning: ``Trainer(plugins=[SafetensorsIO()])``.
Training waits only until the tensors are copied into host memory; a thread writes the file, which
appears complete or not at all. What is no tensor is JSON in the metadata, so loading a checkpoint
executes nothing. The order of the data is fixed and random numbers are seeded at each update, so
nothing else is needed to resume a run. ``Checkpoints`` decides when a run is saved.
"""

# Hooks of callbacks that know which module they belong to.
# pyright: reportIncompatibleMethodOverride=false

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins import CheckpointIO
from safetensors import SafetensorError
from torch import Tensor, nn

from lmscaling.config.cell import branch_checkpoint
from lmscaling.config.schedule import BRANCH_AT
from lmscaling.errors import TRY_AGAIN
from lmscaling.model import tensor_file
from lmscaling.train.budget import Budget, of_rank_0, validates
from lmscaling.train.journal import Journal
from lmscaling.train.module import Training
from lmscaling.train.ranks import Requests

CHECKPOINT_SECONDS = 900.0
"""Time between two checkpoints, and so the most that a kill can cost. Writing one is not
productive time."""

KEPT = 2
"""Checkpoints kept: if the newest is damaged, the previous one is used."""

UNUSABLE = (SafetensorError, ValueError, OSError)
"""Errors of a checkpoint that is damaged, missing, or belongs to another run."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run has got to: updates completed; productive seconds so far, those of an update, and
    those of stalls; number and chain id of the last training shard read. See ``Budget.state_dict``
    and ``Text``."""

    run: str
    update: int
    train_seconds: float
    update_seconds: float
    shard: int
    tokens_id: str
    stalled_seconds: float = 0.0


class Checkpoint(NamedTuple):
    """A checkpoint that has been read; ``content`` is what Lightning has saved."""

    path: Path
    progress: Progress
    content: dict[str, Any]
    digest: str


class SafetensorsIO(CheckpointIO):
    """Writes checkpoints in a thread, from a copy in host memory; one at a time.

    The buffers of the copy are made once. On a GPU they are pinned, so that copying 18.7 GB takes
    less than a second.
    """

    def __init__(self) -> None:
        self.opened: Checkpoint | None = None
        """A checkpoint that has been read, to be returned when its path is loaded."""
        self._buffers: dict[str, Tensor] = {}
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Callable[[], None] | None = None,
    ) -> None:
        """Copy what Lightning saves, tensors and values that JSON can express, and begin to write
        it; a write that still goes on is awaited first. ``storage_options`` is called in the thread
        when the file is on the disk."""
        self.wait()
        tensors: dict[str, Tensor] = {}
        values = json.dumps(_packed(checkpoint, "", tensors))
        copies = {name: self._copy(name, tensor) for name, tensor in tensors.items()}
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

        def write() -> None:
            tensor_file.write(Path(path), copies, checkpoint=values)
            if storage_options:
                storage_options()

        self._writing = self._writer.submit(write)

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self._buffers:
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._buffers[name] = buffer.contiguous()
        return self._buffers[name].copy_(tensor, non_blocking=True)

    def check(self) -> None:
        """Raise the error of the last write, if it has failed."""
        if self._writing and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk; raise its error if it has failed."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def teardown(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        wait([self._writing] if self._writing else [])

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint and compare it with its digests.

        Raises:
            SafetensorError, ValueError, OSError: It is damaged or missing.
        """
        opened, self.opened = self.opened, None
        return opened.content if opened and opened.path == Path(path) else _content(Path(path))[0]

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


@dataclass(eq=False)
class Checkpoints(Callback):
    """Saves a run when an update is complete: its row and, if one is due, its validation.

    What a checkpoint holds is therefore in the log, too. After a request to stop the process ends
    with exit code 75.
    """

    scratch: Path
    """Folder of the checkpoints."""
    io: SafetensorsIO
    """The plugin of the Trainer that writes them."""
    budget: Budget
    """A callback before this one."""
    requests: Requests
    journal: Journal | None = None
    """On the disk before a checkpoint of its rows; None on ranks other than 0."""
    alike: str = ""
    """What all ranks must have alike, such as the digest of the checkpoint."""
    _saved: float = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: Training) -> None:
        """Requests wait from now on for the end of an update. RuntimeError if this rank is about to
        train something else than rank 0."""
        expected = trainer.strategy.broadcast(self.alike)
        if self.alike != expected:
            place = f"rank {trainer.global_rank} has {self.alike}"
            raise RuntimeError(f"ranks disagree: {place}, rank 0 has {expected}")
        self.requests.wait_for_updates()
        self._saved = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Training, *_: object) -> None:
        """Save what is due, unless Lightning validates now."""
        if not validates(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Training) -> None:
        """Save what is due."""
        self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: Training) -> None:
        """Wait for the last file."""
        self.io.wait()

    def _save(self, trainer: Trainer) -> None:
        budget, update, seconds = self.budget, trainer.global_step, self.budget.seconds
        for share in budget.cell.keep:  # does its branch leave within this update?
            begins, previous = BRANCH_AT * share, budget.fraction(update - 1, budget.before)
            if previous < begins <= budget.fraction(update, seconds):
                with budget.clock.excluded():
                    trainer.save_checkpoint(self.scratch / branch_checkpoint(share))
        self.io.check()
        is_due = time.monotonic() - self._saved >= CHECKPOINT_SECONDS
        due, asked = of_rank_0(trainer, is_due, self.requests.has_come())
        if budget.status or not (due or asked):
            return

        def written() -> None:
            if self.journal:
                self.journal.note("checkpoint", update, train_seconds=seconds)
            prune(self.scratch)

        with budget.clock.excluded():
            if self.journal:
                self.journal.sync()
            trainer.save_checkpoint(path_of(self.scratch, update), storage_options=written)
        self._saved = time.monotonic()
        if asked:
            self.io.wait()
            sys.exit(TRY_AGAIN)


def _packed(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON, whose tensors are moved to ``tensors`` under their path."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return {"tensor": path}
    if isinstance(value, dict):  # keys may be numbers, which JSON would turn into strings
        return {"dict": [[k, _packed(v, f"{path}/{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        parts = [_packed(v, f"{path}/{i}", tensors) for i, v in enumerate(value)]
        return {"tuple": parts} if isinstance(value, tuple) else parts
    return value


def _unpacked(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "tensor":
        return tensors[inside]
    if kind == "tuple":
        return tuple(_unpacked(inside, tensors))
    return {k: _unpacked(v, tensors) for k, v in inside}


def _content(path: Path) -> tuple[dict[str, Any], str]:
    """What was saved, and the digest of the file."""
    tensors, metadata, digest = tensor_file.read(path)
    if "checkpoint" not in metadata:
        raise ValueError("it is no checkpoint")
    return _unpacked(json.loads(metadata["checkpoint"]), tensors), digest


def load(path: Path, check: Callable[[Progress], None] | None = None) -> Checkpoint:
    """Read a checkpoint of any run, or of one that passes ``check``, such as ``Text.check``.

    Raises:
        SafetensorError, ValueError, OSError: It is damaged, missing, or belongs to another run.
    """
    content, digest = _content(path)
    try:
        clock, text = content["callbacks"]["Budget"], content["Text"]
        progress = Progress(update=content["global_step"], **clock, **text)
    except (KeyError, TypeError):
        raise ValueError("another version of lmscaling wrote it") from None
    if path.name.startswith("checkpoint-") and path != path_of(path.parent, progress.update):
        raise ValueError(f"it is of update {progress.update}")
    if check:
        check(progress)
    return Checkpoint(path, progress, content, digest)


def newest(folder: Path, check: Callable[[Progress], None]) -> Checkpoint | None:
    """The newest checkpoint that can be read and passes a check, or None.

    Standard error says which checkpoints are not used and why.
    """
    for path in paths(folder):
        try:
            return load(path, check)
        except UNUSABLE as error:
            print(f"checkpoint {path.name} is not used: {error}", file=sys.stderr, flush=True)
    return None


def paths(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted(folder.glob("checkpoint-*.safetensors"), reverse=True)


def prune(folder: Path) -> None:
    """Delete all checkpoints but the newest ``KEPT``."""
    for old in paths(folder)[KEPT:]:
        old.unlink(missing_ok=True)


def path_of(folder: Path, update: int) -> Path:
    """The checkpoint of a run after an update."""
    return folder / f"checkpoint-{update:09d}.safetensors"


def save_weights(path: Path, model: nn.Module) -> None:
    """Write the weights alone, the final result of a run."""
    weights = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    tensor_file.write(path, weights)
