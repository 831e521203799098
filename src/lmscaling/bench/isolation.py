"""A function call in its own process: if it hangs, crashes or uses all memory, only that one ends.

The process is forked, so it does not load torch again; the parent must not have used CUDA before.
"""

import json
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from lmscaling.errors import UserError

NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")
"""Parts of the messages of PyTorch on a CPU and of CUDA's libraries, whose errors have no class."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How an isolated call ended: its value, or a status other than ``done`` and the reason."""

    status: str
    """A key of ``timing.MEASUREMENT_STATUSES``."""
    message: str
    """The reason; empty unless something went wrong."""
    value: Any


def isolated(call: Callable[[], Any], limit_seconds: float) -> Ended:
    """Run ``call``, whose value must be JSON, for at most ``limit_seconds``.

    Raises:
        UserError: The call does.
    """
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_answer, args=(call, sender))
    process.start()
    sender.close()  # otherwise the pipe would not end with the process
    answer = {"status": "slow", "message": f"did not end within {limit_seconds:g} s"}
    try:
        if receiver.poll(limit_seconds):
            answer = json.loads(receiver.recv_bytes())
    except EOFError:
        process.join()
        answer = _died(process.exitcode)
    finally:
        _kill(process)
        process.join()
        receiver.close()
    if answer["status"] == "refused":
        raise UserError(answer["message"])
    return Ended(status=answer["status"], message=answer["message"], value=answer.get("value"))


def _answer(call: Callable[[], Any], sender: Connection) -> None:
    os.setsid()  # compilers that it starts die with it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        answer = {"status": "done", "message": "", "value": call()}
    except UserError as error:
        answer = {"status": "refused", "message": str(error)}
    except Exception as error:
        status = "oom" if _is_out_of_memory(error) else "failed"
        if status == "failed":
            traceback.print_exc()
        answer = {"status": status, "message": _first_line(error)}
    sender.send_bytes(json.dumps(answer).encode())
    sender.close()


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(s in str(error).lower() for s in NO_MEMORY)


def _first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return str(error).partition("\n")[0] or type(error).__name__


def _died(code: int | None) -> dict[str, str]:
    """How a process ended that sent no answer."""
    if code == -signal.SIGKILL:
        return {"status": "oom", "message": "killed, as Linux does when memory runs out"}
    name = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
    return {"status": "failed", "message": f"ended by {name}"}


def _kill(process: BaseProcess) -> None:
    """End a process and all that it has started, as far as they still run."""
    process.kill()  # in case it has no process group yet
    assert process.pid
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
