"""Train several cells one after another, each in a process of its own: the branches of a trunk.

A branch lasts a fifth of its share of the budget. One job for the branches of a trunk plans and
starts a fifth of the jobs, and a process for each branch leaves no memory to the next.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from lmscaling.errors import TRY_AGAIN, UserError
from lmscaling.records import finished
from lmscaling.runtime.rank import PARENT, REQUESTS


def train(
    cells: list[Path],
    manifest: Path,
    scratch: Path,
    record: Path,
    calibration: Path | None,
    stop_after: float | None,
    node_scratch: str = "",
    calibrated: Path | None = None,
) -> str:
    """Train cells as ``run.train`` does. A run with a record is left out.

    Args:
        cells: ``cells/<run>.json``, in order.
        manifest: ``manifest.json`` of the tokens.
        scratch: Scratch folder of the last cell; those of the others are beside it.
        record: ``run.json`` of the last cell; the folders of the others are beside its folder.
        calibration: ``calibration.json`` of all of them.
        stop_after: Seconds from the start of this process after which an attempt stops.
        node_scratch: Local disk of this node, as the option of ``train``.
        calibrated: ``cell.json`` of the cell that was calibrated, if it is another one.

    Raises:
        UserError: Some runs have failed; the others have ended.
        SystemExit: A run was asked to stop; another job goes on.
    """
    begun = psutil.Process().create_time()
    children = _Children()
    failed = []
    for path in cells:
        if children.asked:
            sys.exit(TRY_AGAIN)
        run = path.stem
        place = record.parent.with_name(run) / record.name
        if place.is_file() and finished.look(place)["status"] != finished.DAMAGED:
            print(f"run {run} had ended: {place} stays as it is", file=sys.stderr, flush=True)
            continue
        words = [path, "--manifest", manifest, "--scratch", scratch.with_name(run)]
        words += ["--record", place]
        if calibration:
            words += ["--calibration", calibration]
        if calibrated:
            words += ["--calibrated", calibrated]
        if node_scratch:
            words += ["--node-scratch", node_scratch]
        if stop_after is not None:
            words += ["--stop-after", max(0.0, stop_after - (time.time() - begun))]
        code = children.run([sys.executable, "-m", "lmscaling", "train", *map(str, words)])
        if code == TRY_AGAIN:
            sys.exit(TRY_AGAIN)
        if code:
            failed.append(run)
    if failed:
        raise UserError(
            f"{len(failed)} of {len(cells)} runs failed: {', '.join(failed)}; mend the cause said "
            "above, then run snakemake again"
        )
    return ""  # each has said how it ended


class _Children:
    """Processes of this one, to which it passes requests to stop and which end with it."""

    def __init__(self) -> None:
        self.asked = False
        self._current: subprocess.Popen[bytes] | None = None
        for number in REQUESTS:
            signal.signal(number, self._pass_on)

    def run(self, command: list[str]) -> int:
        """The exit code of a command."""
        self._current = subprocess.Popen(command, env={**os.environ, PARENT: str(os.getpid())})
        if self.asked:  # between the last child and this one
            self._current.send_signal(signal.SIGTERM)
        return self._current.wait()

    def _pass_on(self, number: int, frame: object) -> None:
        self.asked = True
        if self._current and self._current.poll() is None:
            self._current.send_signal(number)
