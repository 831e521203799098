"""Checkpoints: the weights and optimizer moments of a run in one file, and where it has got to.

A checkpoint is a safetensors file whose metadata hold the update, the run, the productive time,
the identity of the tokens read so far, and the SHA-256 of each tensor; loading it executes nothing.
Training waits only until the state is copied into host memory; a thread writes the file,
atomically, and the previous one is kept. The order of the data is fixed and random numbers are
seeded at each update, so nothing else is needed to resume a run.
"""

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn, optim

from lmscaling.config.cell import branch_checkpoint
from lmscaling.model import tensor_file

KEPT = 2
"""Checkpoints kept: if the newest is damaged, the previous one is used."""

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run has got to."""

    run: str
    update: int
    """Updates completed."""
    train_seconds: float
    """Productive time so far."""
    shard: int
    """Number of the last training shard read."""
    tokens_id: str
    """Chain id of that shard."""
    update_seconds: float
    """Productive time of an update: the mean over the most recent ones."""


@dataclass(frozen=True)
class Expected:
    """The run and the tokens that a checkpoint must belong to."""

    run: str
    update_tokens: int
    go_on: Callable[[int, int, str], None]
    """``Stream.go_on`` of the text."""

    def check(self, progress: Progress) -> None:
        """Raise ValueError if the checkpoint belongs to another run or to other tokens."""
        if progress.run != self.run:
            raise ValueError(f"it belongs to run {progress.run}, and this is {self.run}")
        tokens = progress.update * self.update_tokens
        self.go_on(tokens, progress.shard, progress.tokens_id)


class Checkpoint(NamedTuple):
    """A checkpoint that has been read."""

    progress: Progress
    tensors: dict[str, Tensor]
    digest: str
    """Of all tensors; see ``tensor_file.Content``."""


class Saver:
    """Writes checkpoints in a thread, from a copy in host memory; one at a time.

    The buffers of the copy are made once. On a GPU they are pinned, so that copying 18.7 GB takes
    less than a second.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(
        self,
        path: Path,
        progress: Progress,
        model: nn.Module,
        optimizer: optim.Optimizer,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Copy the state and begin to write it; a write that still goes on is awaited first.

        Args:
            path: The file, which appears complete or not at all.
            progress: Where the run has got to.
            model: Model whose weights are saved.
            optimizer: Optimizer whose moments are saved.
            then: Called in the thread when the file is on the disk.
        """
        self.wait()
        tensors = self._copy(_state(model, optimizer))

        def write() -> None:
            try:
                tensor_file.write(path, tensors, progress=json.dumps(asdict(progress)))
                then()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=write, name="checkpoint")
        self._thread.start()

    def check(self) -> None:
        """Raise the error of the last write, if it has failed."""
        if self._error:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk; raise its error if it has failed."""
        if self._thread:
            self._thread.join()
            self._thread = None
        self.check()

    def _copy(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state in host memory, in the order of its names."""
        for name, tensor in state.items():
            if name not in self._buffers:
                buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
                self._buffers[name] = buffer.contiguous()
            self._buffers[name].copy_(tensor, non_blocking=True)
        if any(tensor.is_cuda for tensor in state.values()):
            torch.cuda.synchronize()
        return {name: self._buffers[name] for name in state}


def prune(folder: Path) -> None:
    """Delete all checkpoints but the newest ``KEPT``."""
    for old in paths(folder)[KEPT:]:
        old.unlink(missing_ok=True)


def path_of(folder: Path, update: int) -> Path:
    """The checkpoint of a run after an update."""
    return folder / f"checkpoint-{update:09d}.safetensors"


def _state(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, Tensor]:
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        for moment in MOMENTS:
            if p in optimizer.state:
                tensors[f"{moment}.{name}"] = optimizer.state[p][moment]
    return tensors


def branch_path(scratch: Path, share: float) -> Path:
    """The trunk's checkpoint for the branch that ends at a share of the budget."""
    return scratch / branch_checkpoint(share)


def save_weights(path: Path, model: nn.Module) -> None:
    """Write the weights alone, the final result of a run."""
    weights = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    tensor_file.write(path, weights)


def paths(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted(folder.glob("checkpoint-*.safetensors"), reverse=True)


def newest(folder: Path, expected: Expected) -> Checkpoint | None:
    """The newest checkpoint that can be read and belongs to the run, or None.

    Standard error says which checkpoints are not used and why.
    """
    for path in paths(folder):
        try:
            return read(path, expected)
        except (SafetensorError, ValueError, OSError) as error:
            print(f"checkpoint {path.name} is not used: {error}", file=sys.stderr, flush=True)
    return None


def read(path: Path, expected: Expected) -> Checkpoint:
    """Read a checkpoint of a run.

    Raises:
        SafetensorError, ValueError, OSError: It is damaged, missing, or belongs to another run.
    """
    checkpoint = load(path)
    expected.check(checkpoint.progress)
    return checkpoint


def load(path: Path) -> Checkpoint:
    """Read a checkpoint of any run.

    Raises:
        SafetensorError, ValueError, OSError: It is damaged or missing.
    """
    tensors, metadata, digest = tensor_file.read(path)
    if "progress" not in metadata:
        raise ValueError("it does not say which run it belongs to")
    try:
        progress = Progress(**json.loads(metadata["progress"]))
    except TypeError:
        raise ValueError("another version of lmscaling wrote it") from None
    return Checkpoint(progress, tensors, digest)


def restore_weights(tensors: dict[str, Tensor], model: nn.Module) -> None:
    """Copy a checkpoint's weights into a model."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(tensors[f"model.{name}"])


def restore_moments(start: Checkpoint, model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Copy a checkpoint's moments into the optimizer of a model."""
    names = {p: name for name, p in model.named_parameters()}
    state = optimizer.state_dict()
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    for i, p in enumerate(ordered):
        moments = {moment: start.tensors[f"{moment}.{names[p]}"] for moment in MOMENTS}
        state["state"][i] = {"step": torch.tensor(float(start.progress.update)), **moments}
    optimizer.load_state_dict(state)
