"""The ``lightning.Trainer`` of a run."""

import logging
import warnings
from datetime import timedelta
from math import lcm
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy

from lmscaling.config.cell import Cell
from lmscaling.train.checkpoint import SafetensorsIO

TIMEOUT = timedelta(minutes=10)
"""Longest wait of a rank for the others: compilation and validation take less."""


def trainer(
    cell: Cell, ranks: int, io: SafetensorsIO, callbacks: list[Callback], **options: Any
) -> Trainer:
    """A Trainer for a cell, whose callbacks decide when it saves and stops."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", module="lightning.*")
    update = cell.update_tokens
    return Trainer(
        accelerator="gpu" if cell.gpus else "cpu",
        devices=ranks,
        strategy=_together() if ranks > 1 else "auto",
        precision="bf16-mixed" if cell.gpus else "32-true",
        plugins=[io, LightningEnvironment()],
        callbacks=callbacks,
        max_epochs=1,  # of all passes over the text; callbacks end it earlier
        val_check_interval=lcm(cell.validation.every_tokens, update) // update,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # the text gives each rank its own share
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **{"enable_progress_bar": False, **options},
    )


def _together() -> DDPStrategy:
    """Gradients that are views of the buckets in which they are summed take 4 bytes a parameter
    together with them, and not 8."""
    # Each block is a graph of its own, so its gradients are sent while earlier blocks compute.
    # PyTorch would split the graphs once more, at 25 MB of weights, and no longer fuse across.
    torch._dynamo.config.optimize_ddp = False
    buffers: dict[str, Any] = {"broadcast_buffers": False}  # they are constants of an attention
    return DDPStrategy(timeout=TIMEOUT, gradient_as_bucket_view=True, **buffers)
