"""The loss of a model that several ranks train, whose gradients exist once.

``DistributedDataParallel`` sums gradients in buckets. Gradients that are views of these buckets
take 4 bytes a parameter together with them; gradients that are set to None after an update are
allocated again beside the buckets, which takes 8.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from lmscaling.model.gpt import GPT


class Loss(nn.Module):
    """``GPT.loss`` as ``forward``, which is what ``DistributedDataParallel`` calls."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        return self.model.loss(x_BT, y_BT)


def shared_loss(model: GPT) -> DistributedDataParallel:
    """The loss, whose gradients are averaged over the ranks of the process group."""
    # Each block is a graph of its own, so its gradients are sent while earlier blocks compute.
    # PyTorch would split the graphs once more, at 25 MB of weights, and no longer fuse across.
    torch._dynamo.config.optimize_ddp = False
    return DistributedDataParallel(
        Loss(model), gradient_as_bucket_view=True, broadcast_buffers=False
    )  # buffers are constants of an attention


def accumulating(loss: nn.Module) -> AbstractContextManager:
    """Around every micro-batch of an update but the last: gradients are not averaged yet."""
    return loss.no_sync() if isinstance(loss, DistributedDataParallel) else nullcontext()


def clear_gradients(model: nn.Module, shared: bool) -> None:
    """Forget the gradients of an update; those that several ranks share stay in their buckets."""
    model.zero_grad(set_to_none=not shared)


@contextmanager
def world_of_one(device: torch.device) -> Iterator[None]:
    """A process group with this process alone, which opens no port of its own."""
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=distributed.HashStore(),  # pyright: ignore[reportPrivateImportUsage]
        rank=0,
        world_size=1,
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()
