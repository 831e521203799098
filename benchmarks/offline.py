"""What several versions of Triton make of every kernel, for GPUs that are not there.

    make compilers                         # unpack the versions into .triton/
    python benchmarks/offline.py           # compare with benchmarks/offline.csv, name what is worse
    python benchmarks/offline.py --sample  # each kernel for one of the devices
    python benchmarks/offline.py --write   # write it anew

PyTorch 2.11 asks for Triton 3.6.0, and 2.12 and 2.13 for 3.7; 3.9.0 is the newest. Each version has
a process of its own (``compiled.py``). Without an unpacked version the installed one is used. A
kernel is worse if it does not compile, if ptxas made a race of it (``sass.py``), if its stack
is larger, its loop more than 5 % longer, or if it asks for more shared memory than a program can
have. Stack and loop depend on the compiler: they are compared only for a Triton and a ptxas
that are in the table. float32 wider than 64 is not compiled: plain PyTorch computes it.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_name("offline.csv")
UNPACKED = ROOT / ".triton"
INSTALLED = "installed"
KIB = 1024
SHARED_BYTES = {
    "sm_80": 163 * KIB,
    "sm_86": 99 * KIB,
    "sm_89": 99 * KIB,
    "sm_90": 227 * KIB,
    "sm_100": 227 * KIB,
    "sm_120": 99 * KIB,
    "gfx942": 64 * KIB,
}
"""The most that one program can have. CUDA C++ programming guide, table "Technical Specifications
per Compute Capability"; the local data share in AMD's "CDNA 3 Instruction Set Architecture"."""
LONGER = 1.05


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel for one target, by one version of Triton. Counts of a loop are of its longest."""

    kernel: str
    target: str
    triton: str
    ptxas: str
    """Its version; empty for AMD, which has none."""
    warps: int = 0
    registers: int = 0
    """For a thread; 255 is all there are, of AMD 512."""
    stack_bytes: int = 0
    """For a thread; it holds what registers cannot."""
    shared_bytes: int = 0
    """For a program."""
    tensor_instructions: int = 0
    """Products on tensor cores in the whole kernel: HGMMA, HMMA, UTCHMMA, MFMA."""
    loop_instructions: int = 0
    loop_tokens: int = 0
    """Tokens of an iteration; 0 where a loop is not over tokens."""
    loop_mufu: int = 0
    """Instructions of the special-function unit: exponentials and reciprocals."""
    loop_multiplications: int = 0
    """Multiply-adds on tensor cores for one warp; 0 where instructions do not say their shape."""
    loop_waits: int = 0
    """Instructions that wait for the result of a load, a special function or a product."""
    fault: str = ""
    """Why it cannot run; a table has no such rows."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.triton, self.target, self.kernel


COLUMNS = [f.name for f in fields(Row) if f.name != "fault"]
TEXTS = ("kernel", "target", "triton", "ptxas")


def versions() -> list[str]:
    """The versions of Triton in ``.triton/``, or the installed one."""
    return sorted(path.name for path in UNPACKED.glob("*.*.*")) or [INSTALLED]


def others() -> list[str]:
    """The versions in ``.triton/`` that are not the installed one."""
    installed = metadata.version("triton") if find_spec("triton") else INSTALLED
    return [version for version in versions() if version not in (INSTALLED, installed)]


def environment(version: str) -> dict[str, str]:
    """Variables of a process that imports a version of Triton."""
    path = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    if version != INSTALLED:
        path.insert(0, str(UNPACKED / version))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def compiled(version: str, targets: Sequence[str], *options: str) -> list[Row]:
    """Kernels compiled by one version, with options of ``compiled.py``."""
    command = [sys.executable, Path(__file__).with_name("compiled.py"), *targets, *options]
    done = subprocess.run(command, env=environment(version), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"Triton {version}: {done.stderr.strip()[-2000:]}")
    return [Row(**json.loads(line)) for line in done.stdout.splitlines()]


def worse(now: Row, before: Row | None) -> list[str]:
    """What is worse than in the table, in words."""
    said = []
    if now.fault:
        said.append(now.fault)
    elif now.shared_bytes > SHARED_BYTES[now.target]:
        allowed = SHARED_BYTES[now.target]
        said.append(f"{now.shared_bytes} bytes of shared memory; allowed: {allowed}")
    elif before and now.ptxas == before.ptxas:
        if now.stack_bytes > before.stack_bytes:
            said.append(f"a stack of {now.stack_bytes} bytes, before {before.stack_bytes}")
        if now.loop_instructions > LONGER * before.loop_instructions:
            said.append(f"loop of {now.loop_instructions}, before {before.loop_instructions}")
        if not now.tensor_instructions and before.tensor_instructions:
            said.append(f"no tensor cores, before {before.tensor_instructions} products on them")
    return [f"{now.kernel} {now.target} Triton {now.triton}: {words}" for words in said]


def missing(rows: Sequence[Row], table: dict[tuple[str, str, str], Row]) -> list[str]:
    """Kernels that the table does not have, though it has their version of Triton."""
    known = {triton for triton, _, _ in table}
    new = [row for row in rows if row.triton in known and row.key not in table]
    return [f"{row.kernel} {row.target} Triton {row.triton}: not in the table" for row in new]


def read() -> dict[tuple[str, str, str], Row]:
    """The table, by version of Triton, target and kernel."""
    rows = []
    with TABLE.open(newline="") as file:
        for line in csv.DictReader(file):
            values: dict[str, Any] = {n: v if n in TEXTS else int(v) for n, v in line.items()}
            rows.append(Row(**values))
    return {row.key: row for row in rows}


def write(rows: Sequence[Row]) -> None:
    """Replace the rows of these versions and targets in the table."""
    anew = {(row.triton, row.target) for row in rows}
    kept = [row for row in read().values() if (row.triton, row.target) not in anew]
    order = list(SHARED_BYTES)
    every = sorted([*kept, *rows], key=lambda row: (row.triton, order.index(row.target)))
    with TABLE.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
        table.writeheader()
        table.writerows(vars(row) for row in every)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=SHARED_BYTES, action="append", help="only this device")
    parser.add_argument("--triton", choices=[INSTALLED, *versions()], help="only this version")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the table anew")
    what.add_argument("--only", default="", help="only kernels with this in their name")
    what.add_argument("--sample", action="store_true", help="each kernel for one of the devices")
    args = parser.parse_args()
    targets: Any = args.target or list(SHARED_BYTES)
    options = ["--sample"] if args.sample else ["--only", args.only]

    def make(version: str) -> list[Row]:
        first = 3 * versions().index(version) if version in versions() else 0
        turn = [targets[(first + i) % len(targets)] for i in range(len(targets))]
        return compiled(version, turn if args.sample else targets, *options)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(make, [args.triton] if args.triton else versions())
        rows = [row for each in made for row in each]
    for row in rows:
        print(", ".join(f"{n} {v}" for n, v in vars(row).items()))
    table = {} if args.write else read()
    said = [words for row in rows for words in worse(row, table.get(row.key))]
    if args.write and not said:
        write(rows)
    sys.exit("\n".join([*said, *missing(rows, table)]) or None)


if __name__ == "__main__":
    main()
