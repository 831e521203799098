"""Tell a fault of the machine from a fault of the program, by the error that it raises.

A fault of the machine says nothing about what was measured or trained, so it must never become a
result. If a text may mean either, it counts as the program's only where NVIDIA describes it so.

Sources: the descriptions of ``cudaError`` in the CUDA Runtime API, whose texts PyTorch and Triton
repeat; ``ncclResult_t`` in the NCCL user guide; the strings of gloo's TCP transport.
"""

import errno
import os
import re

import torch
from torch.distributed import DistError

DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE)
NETWORK_ERRNOS = (errno.ETIMEDOUT, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH)

TEXTS = {
    # The system's own, in which Rust, C++ and compilers' processes report them, too.
    "disk": "|".join(re.escape(os.strerror(number)) for number in DISK_ERRNOS),
    # Broken memory or links, a device that has gone, a driver that is not running.
    "device": r"uncorrectable (ECC|NVLink) error|or a hardware error|\bXid\b"
    r"|busy or unavailable|no CUDA-capable device is detected|\b(GPU|device) (is )?lost\b"
    r"|fallen off the bus|CUDA (error: )?unknown error|Triton Error \[CUDA\]: unknown error"
    r"|system not yet initialized|driver / cuda driver combination"
    r"|Driver/library version mismatch",
    # Also where NCCL reports them. CUDA names bad pointers as the common cause of a launch failure.
    "program": r"illegal memory access|device-side assert|misaligned address"
    r"|illegal instruction|unspecified launch failure|invalid usage|invalid argument"
    r"|ncclInvalid(Usage|Argument)",
    # Ranks that no longer reach each other.
    "network": r"connection (was )?(closed|reset|refused|aborted)|broken pipe|no route to host"
    r"|timed out waiting|(socket|connect(ion)?) time(d )?out"
    r"|NCCL (error|communicator)|nccl(System|Internal|Remote|UnhandledCuda)Error|"
    + "|".join(re.escape(os.strerror(number)) for number in NETWORK_ERRNOS),
}
"""What errors blame, by their texts; the first that fits decides."""

NO_MEMORY = re.compile(r"can't allocate memory|out of memory|not enough memory", re.IGNORECASE)
"""Messages of PyTorch on a CPU and of CUDA's libraries, whose errors have no class."""

FREE = 0.95
"""Share of a device's memory that is free if only this process uses it."""


def machine_fault(error: BaseException) -> str | None:
    """What failed in the machine (``"device"``, ``"network"`` or ``"disk"``).

    Of a chain of causes, the error nearest to the root that is clear decides: ranks also lose each
    other because one of them has a bug, and a full disk raises errors of all kinds.

    Returns:
        None if the program may be at fault, or its demand for memory.
    """
    verdict, link = None, error
    while link is not None:
        verdict = _fault(link) or verdict
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return None if verdict == "program" else verdict


def _fault(error: BaseException) -> str | None:
    """What one error blames; None if it is not clear."""
    if out_of_memory(error):
        return "program"
    number = error.errno if isinstance(error, OSError) else None
    text = f"{error} {os.strerror(number)}" if number else str(error)
    for what, pattern in TEXTS.items():
        if re.search(pattern, text, re.IGNORECASE):
            return what
    return "network" if isinstance(error, DistError | ConnectionError) else None


def is_result(error: Exception, device: torch.device) -> bool:
    """Whether a failure may be recorded: the machine is sound and the device still computes.

    After an illegal access every later call of the process fails on the device, whatever it does.
    """
    if machine_fault(error):
        return False
    try:
        torch.ones(1, device=device).item()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return True  # the tensors of the failed call are not freed yet
    except RuntimeError:
        return False
    return True


def out_of_memory(error: BaseException) -> bool:
    """Whether memory of the device or of the host did not suffice."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(NO_MEMORY.search(str(error)))


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its class if there is none."""
    return str(error).partition("\n")[0] or type(error).__name__


def diagnosis(error: Exception, was_in_use: bool) -> tuple[str, str]:
    """Fault and reason of an error in training, on a device that others may have used before."""
    reason = first_line(error)
    if not out_of_memory(error):
        return machine_fault(error) or "", f"{type(error).__name__}: {reason}"
    other = "; other processes used the device before"
    return ("device", reason + other) if was_in_use else ("memory", reason)


def is_in_use(device: torch.device) -> bool:
    """Whether other processes use memory of a GPU; an earlier run of this one may keep some."""
    if device.type == "cpu":
        return False
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) < FREE * total
