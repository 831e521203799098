"""The state of a run in one file: weights, optimizer moments, and what they belong to.

A checkpoint is a safetensors file whose metadata carry the update, the run, the productive time
and the identity of the tokens read so far; nothing in it is ever executed. It is written at the
border between two updates, appears whole or not at all, and the one before it is kept. With the
stream's order fixed and random numbers drawn anew for each update, this is all that a run is.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn, optim

from lmscaling.files import new_file

KEPT = 2
"""Checkpoints kept: if the newest turns out broken, the one before it is used."""

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run has come."""

    run: str
    update: int
    """Updates done."""
    train_seconds: float
    """Productive time so far."""
    shard: int
    """Number of the last training shard read."""
    tokens_id: str
    """Chain id of that shard."""
    update_seconds: float
    """Productive time of an update: the mean over the last of them."""


@dataclass(frozen=True)
class Expected:
    """What a checkpoint must belong to; ``reached`` gives shard and id after so many tokens."""

    run: str
    update_tokens: int
    reached: Callable[[int], tuple[int, str]]

    def check(self, progress: Progress) -> None:
        """Raise ValueError if the checkpoint is of another cell or of other tokens."""
        if progress.run != self.run:
            raise ValueError(f"it is of run {progress.run}, this is {self.run}")
        shard, tokens_id = self.reached(progress.update * self.update_tokens)
        if (shard, tokens_id) != (progress.shard, progress.tokens_id):
            raise ValueError(
                f"it has read tokens {progress.tokens_id[:12]} up to shard {progress.shard}, "
                f"here they are {tokens_id[:12]} up to shard {shard}"
            )


def save(folder: Path, progress: Progress, model: nn.Module, optimizer: optim.Optimizer) -> Path:
    """Write a checkpoint, then drop all but the newest ``KEPT``; returns its path."""
    path = folder / f"checkpoint-{progress.update:09d}.safetensors"
    write(path, progress, model, optimizer)
    for old in saved(folder)[KEPT:]:
        old.unlink()
    return path


def write(path: Path, progress: Progress, model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Write one checkpoint, whole or not at all."""
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        for moment in MOMENTS:
            if p in optimizer.state:
                tensors[f"{moment}.{name}"] = optimizer.state[p][moment]
    with new_file(path) as temporary:
        on_cpu = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
        save_file(on_cpu, temporary, {"progress": json.dumps(asdict(progress))})


def kept(scratch: Path, share: float) -> Path:
    """Where a trunk keeps its checkpoint for the branch that ends at a share of the budget."""
    return scratch / f"branch-{share:g}.safetensors"


def save_weights(path: Path, model: nn.Module) -> None:
    """The weights alone, as a finished run leaves them."""
    with new_file(path) as temporary:
        weights = {name: p.detach().contiguous().cpu() for name, p in model.named_parameters()}
        save_file(weights, temporary)


def saved(folder: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted(folder.glob("checkpoint-*.safetensors"), reverse=True)


def newest(folder: Path, expected: Expected) -> tuple[Progress, dict[str, Tensor]] | None:
    """The newest checkpoint that is whole and belongs to the run, or None.

    One that is refused is named on standard error with the reason, and the one before it is tried.
    """
    for path in saved(folder):
        try:
            return read(path, expected)
        except (SafetensorError, ValueError, OSError) as error:
            print(f"checkpoint {path.name} is not used: {error}", file=sys.stderr, flush=True)
    return None


def read(path: Path, expected: Expected) -> tuple[Progress, dict[str, Tensor]]:
    """A checkpoint that belongs to a run.

    Raises:
        SafetensorError, ValueError, OSError: It is not whole, not there, or of another run.
    """
    progress, tensors = load(path)
    expected.check(progress)
    return progress, tensors


def load(path: Path) -> tuple[Progress, dict[str, Tensor]]:
    """Whatever a checkpoint holds."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if "progress" not in metadata:
            raise ValueError("it does not say which run it is of")
        try:
            progress = Progress(**json.loads(metadata["progress"]))
        except TypeError:
            raise ValueError("another version of lmscaling wrote it") from None
        return progress, {name: file.get_tensor(name) for name in list(file.keys())}


def restore_weights(tensors: dict[str, Tensor], model: nn.Module) -> None:
    """Put a checkpoint's weights into a model."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(tensors[f"model.{name}"])


def restore_moments(
    progress: Progress, tensors: dict[str, Tensor], model: nn.Module, optimizer: optim.Optimizer
) -> None:
    """Put a checkpoint's moments into the optimizer of a model."""
    names = {p: name for name, p in model.named_parameters()}
    state = optimizer.state_dict()
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    for i, p in enumerate(ordered):
        moments = {moment: tensors[f"{moment}.{names[p]}"] for moment in MOMENTS}
        state["state"][i] = {"step": torch.tensor(float(progress.update)), **moments}
    optimizer.load_state_dict(state)
