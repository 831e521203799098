"""What the compiler makes of every Triton kernel, for GPUs that are not there.

    python benchmarks/offline.py           # compare with benchmarks/offline.csv, name what is worse
    python benchmarks/offline.py --write   # write it anew

A package of kernels takes part by ``offline_cases(sm)`` in its ``launch`` module. Triton compiles
without a device and brings ptxas and nvdisasm along. A kernel is worse if it spills more bytes, if
its loop is more than 5 % longer, or if it asks for more shared memory than a program can have.
Spills and loops depend on the compiler: they are compared only under the versions of the table.
"""

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

# Interpreted kernels cannot be compiled; Triton reads the variable when a kernel is defined.
os.environ.pop("TRITON_INTERPRET", None)

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

TABLE = Path(__file__).with_name("offline.csv")
PACKAGES = ("chunked_triton", "tiled_triton", "delta_triton", "cross_entropy_triton")
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
"""The most that one program can have; CUDA C++ programming guide, table of compute capabilities."""
LONGER = 1.05
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One kernel for one architecture."""

    kernel: str
    sm: int
    triton: str
    ptxas: str
    registers: int
    """For a thread; 255 is all there are."""
    spill_bytes: int
    """Stack of a thread, which holds what registers cannot."""
    shared_bytes: int
    """For a program."""
    tensor_instructions: int
    """Products on tensor cores in the whole kernel: HGMMA, HMMA."""
    loop_instructions: int
    """Instructions of the longest loop."""


def cases(
    sm: int,
) -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], int, int, list[str]]]:
    for package in PACKAGES:
        yield from import_module(f"lmscaling.kernels.{package}.launch").offline_cases(sm)


def compiled(
    name: str,
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    num_warps: int,
    num_stages: int,
    aligned: list[str],
    sm: int,
) -> Compiled:
    """Compile one kernel; the first seven as ``offline_cases`` gives them."""
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else types[n] for n in names}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, n in enumerate(names)
            if n in aligned or signature[n].startswith("*")
        },
    )
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = tool("cuobjdump", "-res-usage", file.name)
        instructions, loops = disassembled(tool("nvdisasm", "-c", file.name))
    return Compiled(
        kernel=name,
        sm=sm,
        triton=triton.__version__,
        ptxas=get_ptxas(sm).version,
        registers=int(re.findall(r"REG:(\d+)", usage)[0]),
        spill_bytes=int(re.findall(r"STACK:(\d+)", usage)[0]),
        shared_bytes=made.metadata.shared,
        tensor_instructions=sum(i.startswith(("HGMMA", "HMMA")) for i in instructions),
        loop_instructions=max(loops, default=0),
    )


def tool(name: str, *arguments: str) -> str:
    """What a tool of Triton's prints."""
    done = subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def disassembled(text: str) -> tuple[list[str], list[int]]:
    """Instructions in order, and the length of every loop: from a label to a branch back to it."""
    instructions, labels, loops = [], {}, []
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][\w.]*)(.*)", line):
            target = re.search(r"\.L_x_\d+", found[2]) if found[1].startswith("BRA") else None
            instructions.append(found[1])
            if target and target[0] in labels:
                loops.append(len(instructions) - labels[target[0]])
    return instructions, loops


def worse(now: Compiled, before: Compiled | None) -> list[str]:
    """What is worse than in the table, in words."""
    said = []
    if now.shared_bytes > SHARED_BYTES[now.sm]:
        said.append(f"{now.shared_bytes} bytes of shared memory; allowed: {SHARED_BYTES[now.sm]}")
    if before is None:
        said.append("is not in the table; write it anew")
    elif (now.triton, now.ptxas) == (before.triton, before.ptxas):
        if now.spill_bytes > before.spill_bytes:
            said.append(f"spills {now.spill_bytes} bytes, before {before.spill_bytes}")
        if now.loop_instructions > LONGER * before.loop_instructions:
            said.append(f"loop of {now.loop_instructions}, before {before.loop_instructions}")
        if not now.tensor_instructions and before.tensor_instructions:
            said.append(f"no tensor cores, before {before.tensor_instructions} products on them")
    return [f"{now.kernel} sm_{now.sm}: {words}" for words in said]


def read() -> dict[tuple[str, int], Compiled]:
    """The table, by kernel and architecture."""
    texts = ("kernel", "triton", "ptxas")
    rows = []
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            values: dict[str, Any] = {n: v if n in texts else int(v) for n, v in row.items()}
            rows.append(Compiled(**values))
    return {(row.kernel, row.sm): row for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the table anew")
    what.add_argument("--sm", type=int, choices=SHARED_BYTES, help="only this architecture")
    args = parser.parse_args()
    architectures = [args.sm] if args.sm else list(SHARED_BYTES)
    made = []
    for sm in architectures:
        for case in cases(sm):
            made.append(compiled(*case, sm))
            print(made[-1], flush=True)
    if args.write:
        with TABLE.open("w", newline="") as file:
            table = csv.DictWriter(file, [f.name for f in fields(Compiled)], lineterminator="\n")
            table.writeheader()
            table.writerows(asdict(row) for row in made)
        return
    table = read()
    said = [words for row in made for words in worse(row, table.get((row.kernel, row.sm)))]
    sys.exit("\n".join(said) or None)


if __name__ == "__main__":
    main()
