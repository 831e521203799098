"""Function calls in a process of their own: one that hangs, crashes or uses all memory ends alone.

The process is forked, so it does not load torch again; the parent must not have used CUDA before.
It ends with its parent, however that ends.
"""

import json
import math
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from lmscaling.errors import UserError
from lmscaling.runtime import rank
from lmscaling.runtime.faults import first_line, machine_fault, out_of_memory

STOPPED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals of whoever stops the job: they say nothing about the call."""
FAULT = "the {} of this machine failed during a measurement, which was not recorded: {}"


@dataclass(frozen=True)
class Ended:
    """How an isolated call ended: its value, or a status other than ``done`` and the reason."""

    status: str
    """A key of ``timing.MEASUREMENT_STATUSES``."""
    message: str
    """The reason; empty unless something went wrong."""
    value: Any


class Refused(UserError):
    """A mistake of the user in what is measured, which says nothing about other measurements."""


def isolated(call: Callable[[], Any], limit_seconds: float) -> Ended:
    """Run ``call``, whose value must be JSON, for at most ``limit_seconds``.

    Raises:
        Refused: The call raises a ``UserError``.
        UserError: The machine failed, or somebody stopped the process.
    """
    (ended,) = each([call], limit_seconds)
    return ended


def each(
    calls: Sequence[Callable[[], Any]], limit_seconds: float, end: float = math.inf
) -> Iterator[Ended]:
    """Run calls one after another in one process, until one of them is not ``done``.

    Args:
        calls: Their values must be JSON.
        limit_seconds: Time limit of each.
        end: When the process is ended in any case, as ``time.monotonic`` counts.

    Raises:
        Refused: A call raises a ``UserError``.
        UserError: The machine failed, or somebody stopped the process.
    """
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_answer, args=(calls, sender, os.getpid()))
    process.start()
    sender.close()  # otherwise the pipe would not end with the process
    try:
        for _ in calls:
            answer = {"status": "slow", "message": f"did not end within {limit_seconds:g} s"}
            try:
                if receiver.poll(max(0.0, min(limit_seconds, end - time.monotonic()))):
                    answer = json.loads(receiver.recv_bytes())
            except EOFError:
                process.join()
                answer = _died(process.exitcode)
            if answer["status"] == "refused":
                raise Refused(answer["message"])
            if answer["status"] == "stopped":
                raise UserError(answer["message"])
            yield Ended(answer["status"], answer["message"], answer.get("value"))
            if answer["status"] != "done":
                break
    finally:
        process.kill()  # in case it has no process group yet
        assert process.pid
        with suppress(ProcessLookupError):  # with all that it has started
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        receiver.close()


def _answer(calls: Sequence[Callable[[], Any]], sender: Connection, parent: int) -> None:
    os.setsid()  # compilers that it starts die with it
    rank.die_with_parent(parent)
    for number in STOPPED:
        signal.signal(number, signal.SIG_DFL)
    for call in calls:
        try:
            answer = {"status": "done", "message": "", "value": call()}
        except UserError as error:
            answer = {"status": "refused", "message": str(error)}
        except Exception as error:
            answer = {"status": "failed", "message": first_line(error)}
            if out_of_memory(error):
                answer["status"] = "oom"
            elif broken := machine_fault(error):
                answer = {"status": "stopped", "message": FAULT.format(broken, first_line(error))}
            if answer["status"] != "oom":
                traceback.print_exc()
        sender.send_bytes(json.dumps(answer).encode())
        if answer["status"] != "done":
            break
    sender.close()


def _died(code: int | None) -> dict[str, str]:
    """How a process ended that sent no answer."""
    if code == -signal.SIGKILL:
        return {"status": "oom", "message": "killed, as Linux does when memory runs out"}
    name = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
    if code and -code in STOPPED:
        return {"status": "stopped", "message": f"the measurement was stopped by {name}"}
    if code == -signal.SIGBUS:  # a page of a file that cannot be read or has no room on disk
        return {"status": "stopped", "message": FAULT.format("disk", f"ended by {name}")}
    return {"status": "failed", "message": f"ended by {name}"}
