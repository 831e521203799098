"""Attempts of one run in forked children, each ended by a signal; run by test_resume.py.

Forking after the imports makes an attempt cost a tenth of a second instead of four.
Arguments: cell, manifest, folder of the result, signals as JSON, seed of the moments.
"""

import json
import os
import random
import sys
import time
import traceback
from pathlib import Path

from lmscaling.train import loop, run

DEADLINE_SECONDS = 60


def attempt(cell: Path, manifest: Path, out: Path) -> int:
    """Process id of a child that trains; it exits as the command line would."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        run.train(cell, manifest, out / "scratch", out / "run" / "run.json")
        code = 0
    except SystemExit as done:
        code = int(done.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    cell, manifest, out = map(Path, sys.argv[1:4])
    signals, moments = json.loads(sys.argv[4]), random.Random(int(sys.argv[5]))
    loop.CHECKPOINT_SECONDS = 0.02
    codes = []
    for sent in signals:
        before = set((out / "scratch").glob("checkpoint-*"))
        child = attempt(cell, manifest, out)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not set((out / "scratch").glob("checkpoint-*")) - before:
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            assert not ended, f"ended without a new checkpoint: {ended}"
            assert time.monotonic() < deadline, "no checkpoint"
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.1))
        os.kill(child, sent)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    last = attempt(cell, manifest, out)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(last, 0)[1]))
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
