"""What it means that an attempt has failed."""

import torch

from lmscaling.errors import UserError
from lmscaling.runtime import faults

FREE = 0.95
"""Share of a device's memory that is free if only this process uses it."""


class Failed(UserError):
    """An attempt has ended with a fault that is no result; another one goes on."""


def is_in_use(device: torch.device) -> bool:
    """Whether other processes use memory of a GPU; an earlier run of this one may keep some."""
    if device.type == "cpu":
        return False
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) < FREE * total


def diagnosis(error: Exception, was_in_use: bool) -> tuple[str, str]:
    """Fault and reason of an error of this rank, whose device others may have used before."""
    if faults.out_of_memory(error):
        reason = faults.first_line(error)
        if was_in_use:
            return "device", f"{reason}; other processes used the device before"
        return "memory", reason
    reason = f"{type(error).__name__}: {faults.first_line(error)}"
    return faults.machine_fault(error) or "", reason
