"""The moment between two updates, and what all ranks must agree on."""

# Hooks whose further arguments do not matter.
# pyright: reportIncompatibleMethodOverride=false

import math

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import distributed


class Between(Callback):
    """Calls ``between`` when an update is complete: its row and, if one is due, its validation.

    What a checkpoint of this moment holds is therefore in the log, too.
    """

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """The update is complete, unless Lightning validates now."""
        if not validates(trainer):
            self.between(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The update is complete."""
        if not trainer.sanity_checking:
            self.between(trainer, pl_module)

    def between(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last update is complete, and the next one has not begun."""
        raise NotImplementedError


def validates(trainer: Trainer) -> bool:
    """Whether Lightning validates after the update that has just been done."""
    every = trainer.val_check_batch or math.inf
    return trainer.enable_validation and (trainer.should_stop or trainer.global_step % every == 0)


def of_rank_0(trainer: Trainer, *numbers: float) -> list[float]:
    """The numbers of rank 0, on every rank, as float64; a decision is 0 or 1.

    Clocks differ between processes, and ranks that stopped at different updates would wait for
    each other.
    """
    if trainer.world_size == 1:
        return list(numbers)
    message = torch.tensor(numbers, dtype=torch.float64, device=trainer.strategy.root_device)
    distributed.broadcast(message, src=0)
    return message.tolist()


class Agreement(Callback):
    """Ends the run if a rank is about to train something else than rank 0.

    Args:
        texts: What must be the same, such as the digest of the checkpoint.
    """

    def __init__(self, *texts: str) -> None:
        self.texts = ", ".join(texts)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare with rank 0; RuntimeError on a rank that differs."""
        expected = trainer.strategy.broadcast(self.texts)
        if self.texts != expected:
            place = f"rank {trainer.global_rank} has {self.texts}"
            raise RuntimeError(f"ranks disagree: {place}, rank 0 has {expected}")
