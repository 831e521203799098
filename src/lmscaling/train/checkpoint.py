"""Checkpoints: the weights and optimizer moments of a run in one file, and where it has got to.

A checkpoint is a safetensors file whose metadata hold the update, the run, the productive time
and the identity of the tokens read so far; loading it executes nothing. It is written between two
updates and atomically, and the previous one is kept. The order of the data is fixed and random
numbers are seeded at each update, so nothing else is needed to resume a run.
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
    reached: Callable[[int], tuple[int, str]]
    """Number and chain id of the last shard read after a number of tokens."""

    def check(self, progress: Progress) -> None:
        """Raise ValueError if the checkpoint belongs to another run or to other tokens."""
        if progress.run != self.run:
            raise ValueError(f"it belongs to run {progress.run}, and this is {self.run}")
        shard, tokens_id = self.reached(progress.update * self.update_tokens)
        if (shard, tokens_id) != (progress.shard, progress.tokens_id):
            raise ValueError(
                f"it has read tokens {progress.tokens_id[:12]} up to shard {progress.shard}, "
                f"and the tokens here are {tokens_id[:12]} up to shard {shard}"
            )


def save(folder: Path, progress: Progress, model: nn.Module, optimizer: optim.Optimizer) -> Path:
    """Write a checkpoint, delete all but the newest ``KEPT``, and return its path."""
    path = folder / f"checkpoint-{progress.update:09d}.safetensors"
    write(path, progress, model, optimizer)
    for old in paths(folder)[KEPT:]:
        old.unlink()
    return path


def write(path: Path, progress: Progress, model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Write one checkpoint atomically."""
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        for moment in MOMENTS:
            if p in optimizer.state:
                tensors[f"{moment}.{name}"] = optimizer.state[p][moment]
    with new_file(path) as temporary:
        on_cpu = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
        save_file(on_cpu, temporary, {"progress": json.dumps(asdict(progress))})


def branch_path(scratch: Path, share: float) -> Path:
    """The trunk's checkpoint for the branch that ends at a share of the budget."""
    return scratch / f"branch-{share:g}.safetensors"


def save_weights(path: Path, model: nn.Module) -> None:
    """Write the weights alone, the final result of a run."""
    with new_file(path) as temporary:
        weights = {name: p.detach().contiguous().cpu() for name, p in model.named_parameters()}
        save_file(weights, temporary)


def paths(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted(folder.glob("checkpoint-*.safetensors"), reverse=True)


def newest(folder: Path, expected: Expected) -> tuple[Progress, dict[str, Tensor]] | None:
    """The newest checkpoint that can be read and belongs to the run, or None.

    Standard error says which checkpoints are not used and why.
    """
    for path in paths(folder):
        try:
            return read(path, expected)
        except (SafetensorError, ValueError, OSError) as error:
            print(f"checkpoint {path.name} is not used: {error}", file=sys.stderr, flush=True)
    return None


def read(path: Path, expected: Expected) -> tuple[Progress, dict[str, Tensor]]:
    """Read a checkpoint of a run.

    Raises:
        SafetensorError, ValueError, OSError: It is damaged, missing, or belongs to another run.
    """
    progress, tensors = load(path)
    expected.check(progress)
    return progress, tensors


def load(path: Path) -> tuple[Progress, dict[str, Tensor]]:
    """Read a checkpoint of any run."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if "progress" not in metadata:
            raise ValueError("it does not say which run it belongs to")
        try:
            progress = Progress(**json.loads(metadata["progress"]))
        except TypeError:
            raise ValueError("another version of lmscaling wrote it") from None
        return progress, {name: file.get_tensor(name) for name in list(file.keys())}


def restore_weights(tensors: dict[str, Tensor], model: nn.Module) -> None:
    """Copy a checkpoint's weights into a model."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(tensors[f"model.{name}"])


def restore_moments(
    progress: Progress, tensors: dict[str, Tensor], model: nn.Module, optimizer: optim.Optimizer
) -> None:
    """Copy a checkpoint's moments into the optimizer of a model."""
    names = {p: name for name, p in model.named_parameters()}
    state = optimizer.state_dict()
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    for i, p in enumerate(ordered):
        moments = {moment: tensors[f"{moment}.{names[p]}"] for moment in MOMENTS}
        state["state"][i] = {"step": torch.tensor(float(progress.update)), **moments}
    optimizer.load_state_dict(state)
