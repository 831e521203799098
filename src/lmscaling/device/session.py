"""One call of ``make gpu``: run steps until time is up; the next call continues.

Each step is a process of its own with a log of its own. A step that fails is left out, by this call
and later ones, until its log is deleted. When time is up the running step is asked to stop:
training saves, a sweep keeps its points, and any other step starts again in the next call.
"""

import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmscaling.bench.checks.passed_checks import faults
from lmscaling.device.plan import Step, checks_file
from lmscaling.errors import TRY_AGAIN
from lmscaling.formatting import aligned

GRACE_SECONDS = 25.0
"""Time to write a checkpoint: from the request to stop until the process is killed."""

START_SECONDS = {True: 60.0, False: 150.0}
"""Time that must be left to start a step that resumes and one that does not; estimates."""


@dataclass(frozen=True)
class Session:
    """What one call can do.

    Args:
        out: Folder of the device.
        steps: All steps, in order.
        here: ``environment.complete`` of the device.
        seconds: Time limit of the call.
    """

    out: Path
    steps: list[Step]
    here: dict[str, Any]
    seconds: float

    def run(self) -> bool:
        """Run the steps for which there is time; whether nothing is left to do."""
        end, first = time.monotonic() + self.seconds - GRACE_SECONDS, True
        for step in self.steps:
            if not step.done and not self.obstacles().get(step.result):
                left = end - time.monotonic()
                ready = all(path.is_file() for path in step.needs)
                if not ready or left <= 0 or not (first or left >= START_SECONDS[step.resumes]):
                    continue
                self._try(step, left, first)
                first = False
            if step.part == "checks" and step.done and (fault := self._fault(step.name)):
                print(f"gpu: WRONG: {fault}; it is not timed", flush=True)
        return not self.left()

    def obstacles(self) -> dict[Path, str]:
        """Why steps cannot run in any call, by their result."""
        reasons: dict[Path, str] = {}
        for step in self.steps:
            if step.done:
                continue
            log, attention = self._log(step, "failed"), step.attention
            lost = next((path for path in step.needs if path in reasons), None)
            checked = attention and checks_file(self.out, attention).is_file()
            if log.is_file():
                reasons[step.result] = f"failed; to try again, delete its log {log}"
            elif lost:
                reasons[step.result] = f"needs {lost}, whose step is left out"
            elif checked and (fault := self._fault(attention)):
                reasons[step.result] = fault
        return reasons

    def left(self) -> list[Step]:
        """Steps that this call or a later one can run."""
        reasons = self.obstacles()
        return [step for step in self.steps if not step.done and step.result not in reasons]

    def table(self) -> str:
        """How many steps of each part are done, left and left out, with the reasons."""
        reasons, counts = self.obstacles(), Counter()
        for step in self.steps:
            outcome = "done" if step.done else "left out" if step.result in reasons else "left"
            counts[step.part, outcome] += 1
        head = ["part", "done", "left", "left out"]
        parts = dict.fromkeys(step.part for step in self.steps)
        rows = [[part, *(str(counts[part, outcome]) for outcome in head[1:])] for part in parts]
        omitted = [
            f"left out: {step.part} {step.name}: {reasons[step.result]}"
            for step in self.steps
            if step.result in reasons
        ]
        left = len(self.left())
        end = f"{left} steps are left" if left else "complete"
        lines = aligned([head, *rows], left={0})
        return "\n".join([*lines, *omitted, f"gpu: {end}; records: {self.out}"])

    def _fault(self, name: str) -> str:
        return faults(self.out / "checks", name, self.here)

    def _log(self, step: Step, outcome: str = "") -> Path:
        return self.out / "logs" / outcome / f"{step.part}.{step.name.replace('/', '.')}.log"

    def _try(self, step: Step, seconds: float, first: bool) -> None:
        begun, log = time.monotonic(), self._log(step)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as file:
            code = _run(step, file, seconds)
        status = "done" if step.done else "stopped" if code in (None, TRY_AGAIN) else "failed"
        if status == "stopped" and first and not step.resumes:
            status = "failed"  # it had the time of a complete call
            log.write_text(f"{log.read_text()}\nerror: not done after {seconds:.0f} s\n")
        elapsed = time.monotonic() - begun
        print(f"gpu: {step.part} {step.name}: {status}, {elapsed:.0f} s", flush=True)
        if status == "failed":
            failed = self._log(step, "failed")
            failed.parent.mkdir(exist_ok=True)
            log.replace(failed)
            lines = [line for line in failed.read_text(errors="replace").splitlines() if line]
            print(f"     {lines[-1] if lines else 'it printed nothing'}", flush=True)


def _run(step: Step, log: Any, seconds: float) -> int | None:
    """Exit code of the command; None if it was stopped because time was up."""
    process = subprocess.Popen(
        step.command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        process.communicate(step.stdin, timeout=seconds)
        return process.returncode
    except subprocess.TimeoutExpired:
        return None
    finally:
        _stop(process)


def _stop(process: subprocess.Popen) -> None:
    """Ask a process to stop, then kill it and everything that it has started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
