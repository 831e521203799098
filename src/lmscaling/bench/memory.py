"""How much memory a measurement needs: the peak, minus what was in use before it.

On a GPU that is what PyTorch's allocator has handed out. On a CPU it is the resident memory of the
process: Linux records its peak and resets it on request (man 5 proc, ``clear_refs``); elsewhere it
is not known. Pages of libraries count when they are first touched, some tens of MB in all.
"""

import ctypes
from pathlib import Path

import torch

PROCESS = Path("/proc/self")


class Memory:
    """Watches the memory of a device, from now on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.reset()
        self._before = self._most()

    def reset(self) -> None:
        """Begin a new peak at what is in use now."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        elif PROCESS.is_dir():
            _release_freed()
            (PROCESS / "clear_refs").write_text("5")

    def peak_bytes(self) -> int | None:
        """Peak since ``reset``, minus what was in use at the start; None where it is not known."""
        most = self._most()
        return None if most is None or self._before is None else max(0, most - self._before)

    def _most(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated()
        return _resident_bytes() if PROCESS.is_dir() else None


def _release_freed() -> None:
    """Let the C library return freed memory, which would count as in use and be used again."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc only
        trim(0)


def _resident_bytes() -> int:
    """Peak of resident memory; Linux counts in kB of 1024 bytes."""
    lines = (PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
