"""What is recorded of an attempt that fails, and what is advised."""

import torch

from lmscaling.errors import UserError
from lmscaling.records import ledger
from lmscaling.records.run import HELD
from lmscaling.runtime import environment, faults
from lmscaling.train import outcome
from lmscaling.train.ledger import Ledger
from lmscaling.train.log import Log

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


def record(book: Ledger, update: int, seconds: float, fault: str, reason: str) -> None:
    """Write down why an attempt has failed."""
    place = environment.node()
    book.write("failed", update, seconds, fault=fault, reason=reason, host=place)


def close_log(log: Log, update: int, reason: str) -> None:
    """End the log of an attempt that has failed."""
    log.write(outcome.end_row(log.attempt, update, HELD, f"{reason}, on {environment.node()}"))


def advice(run: str, book: Ledger, reason: str) -> str:
    """A sentence that says what happens now."""
    entries = ledger.entries(book.path)
    saved = max((e.update for e in entries if e.kind == "checkpoint"), default=0)
    return (
        f"run {run} is held on {environment.node()}: {reason}; "
        f"snakemake continues it after update {saved}"
    )
