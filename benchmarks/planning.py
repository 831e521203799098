"""What ``snakemake -n`` of a large study costs: jobs, CPU seconds and memory by number of cells.

Every cell has five branches and an evaluation, and the text has 1,024 shards. The times of this
machine are also given for the reference machine (``speed_of_python.py``).

    python benchmarks/planning.py 216 504 1008 3024
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import yaml
from speed_of_python import slowness

ROOT = Path(__file__).parents[1]
SEED_CELLS = 72
"""Cells of one seed: two attentions, four sizes, nine contexts."""


class Plan(NamedTuple):
    """The cost of one dry run."""

    cells: int
    jobs: int
    seconds: float
    """CPU seconds, user and system."""
    megabytes: int
    """Largest resident memory."""


def plan(cells: int) -> Plan:
    """A dry run of the shipped study with so many cells, a multiple of 72."""
    study = {
        "study": "planning",
        "axes": {
            "attention": ["softmax", "linear"],
            "size": ["124M", "355M", "774M", "1558M"],
            "context": [256 * 2**i for i in range(9)],
            "seed": list(range(cells // SEED_CELLS)),
            "lr_scale": [1.0],
        },
        "skip": [],
        "speed": None,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planning.yaml"
        path.write_text(yaml.safe_dump(study))
        words = ["-m", "snakemake", "-n", "--configfile", str(path)]
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout
        text = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, text
    jobs = re.search(r"^total +(\d+)$", text, re.MULTILINE)
    assert jobs, text
    seconds = used.ru_utime + used.ru_stime
    return Plan(cells, int(jobs[1]), seconds, used.ru_maxrss // 1000)


def main() -> None:
    print("| cells | jobs | CPU s | CPU s, reference | MB |\n| --- | --- | --- | --- | --- |")
    for cells in map(int, sys.argv[1:] or ["216", "504", "1008", "3024"]):
        found, slow = plan(cells), slowness()
        print(
            f"| {cells:,} | {found.jobs:,} | {found.seconds:.1f} | {found.seconds / slow:.1f} "
            f"| {found.megabytes} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
