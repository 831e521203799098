"""What rank 0 records of an attempt that fails, and what it advises."""

from lmscaling.errors import UserError
from lmscaling.records import ledger
from lmscaling.records.run import HELD
from lmscaling.runtime import environment, faults
from lmscaling.train import outcome
from lmscaling.train.loop import Loop
from lmscaling.train.ranks import Others, Rank


class Failed(UserError):
    """An attempt has ended with a fault that is no result; another one goes on."""


def record_failure(loop: Loop, others: Others, fault: str, reason: str) -> None:
    """End the other ranks, then write down why the attempt failed."""
    assert loop.writer
    others.kill()
    loop.writer.ledger.write(
        "failed",
        loop.module.updates,
        loop.clock.seconds,
        fault=fault,
        reason=reason,
        host=environment.node(),
    )


def close_log(loop: Loop, reason: str) -> None:
    """End the log of an attempt that failed."""
    assert loop.writer
    place = f"{reason}, on {environment.node()}"
    loop.writer.log.write(outcome.end_row(loop.writer.attempt, loop.module.updates, HELD, place))


def advice(loop: Loop, reason: str) -> str:
    assert loop.writer
    entries = ledger.entries(loop.writer.ledger.path)
    saved = max((e.update for e in entries if e.kind == "checkpoint"), default=0)
    return (
        f"run {loop.cell.run} is held on {environment.node()}: {reason}; "
        f"snakemake continues it after update {saved}"
    )


def diagnosis(error: Exception, rank: Rank | None) -> tuple[str, str]:
    """Fault and reason of an error of this rank; None if it was not a rank yet."""
    if faults.out_of_memory(error):
        reason = faults.first_line(error)
        if rank and rank.shares_device:
            return "device", f"{reason}; other processes used the device before"
        return "memory", reason
    reason = f"{type(error).__name__}: {faults.first_line(error)}"
    return faults.machine_fault(error) or "", reason
