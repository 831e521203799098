"""Where a sweep is measured, and in which precision."""

import torch

from lmscaling.config.sweeps import Sweep


def of(sweep: Sweep) -> tuple[torch.device, torch.dtype]:
    """The device, and the dtype of products there: bfloat16 on a GPU, float32 on the CPU."""
    if sweep.gpus:
        return torch.device("cuda"), torch.bfloat16
    return torch.device("cpu"), torch.float32
