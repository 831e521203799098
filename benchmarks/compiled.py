"""What the Triton of this process makes of every kernel; one JSON line a kernel.

    python benchmarks/compiled.py sm_90 gfx942 --only chunked
    python benchmarks/compiled.py sm_90 gfx942 --sample

Triton compiles without a device and brings ptxas and nvdisasm along. ``launched.py`` says what to
compile. ``offline.py`` runs this under several versions of Triton.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Interpreted kernels cannot be compiled; Triton reads the variable when a kernel is defined.
os.environ.pop("TRITON_INTERPRET", None)

import launched
import sass
import triton
from launched import Launch
from offline import Row
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SAMPLED = re.compile("_bf16(_64(_mamba2)?)?$")
"""Cases of which a sample takes one for each kernel."""
AMD = 0
"""The architecture of all AMD devices, as in ``plan.numbered``."""


def cases(target: str) -> Iterator[Launch]:
    """Everything to compile for ``sm_90`` or ``gfx942``."""
    return launched.cases(int(target[3:]) if target.startswith("sm_") else AMD)


def every(targets: Sequence[str], only: str = "") -> Iterator[tuple[Launch, str]]:
    """Each case whose name contains ``only``, with its target."""
    for target in targets:
        yield from ((case, target) for case in cases(target) if only in case.name)


def sample(targets: Sequence[str]) -> Iterator[tuple[Launch, str]]:
    """One case of each kernel, for the next target in turn that it is compiled for."""
    found = {
        t: {case.name: case for case in cases(t) if SAMPLED.search(case.name)} for t in targets
    }
    names = dict.fromkeys(name for each in found.values() for name in each)
    for i, name in enumerate(names):
        turn = (targets[(i + j) % len(targets)] for j in range(len(targets)))
        target = next(t for t in turn if name in found[t])
        yield found[target][name], target


def compiled(case: Launch, target: str) -> Row:
    """Compile one kernel; a failure is in ``fault``."""
    on_nvidia = target.startswith("sm_")
    same: dict[str, Any] = {
        "kernel": case.name,
        "target": target,
        "triton": triton.__version__,
        "ptxas": get_ptxas(int(target[3:])).version if on_nvidia else "",
    }
    try:
        binary = made(case, target)
    except Exception as error:  # each stage of the compiler has errors of its own
        lines = str(error).splitlines() or [""]
        return Row(**same, fault=f"{type(error).__name__}: {lines[0]}")
    same |= {"warps": binary.metadata.num_warps, "shared_bytes": binary.metadata.shared}
    same["loop_tokens"] = case.constants.get("BLOCK_C", 0)
    return Row(**same, **(_nvidia if on_nvidia else _amd)(binary.asm))


def made(case: Launch, target: str) -> Any:
    """What Triton makes of a kernel."""
    gpu = GPUTarget("hip", target, 64)
    if target.startswith("sm_"):
        gpu = GPUTarget("cuda", int(target[3:]), 32)
    names = case.kernel.arg_names
    source = ASTSource(
        fn=case.kernel,
        signature={n: case.signature.get(n, "constexpr") for n in names},
        constexprs={(names.index(n),): value for n, value in case.constants.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in case.aligned},
    )
    return triton.compile(source, target=gpu, options=case.options | {"enable_fp_fusion": True})


def _nvidia(assembly: dict[str, Any]) -> dict[str, Any]:
    """Counts of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(assembly["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        instructions, loops = sass.parsed(_tool("nvdisasm", "-hex", "-c", file.name))
    start, end = max(loops, key=lambda loop: loop[1] - loop[0], default=(0, 0))
    body = instructions[start:end]
    races = sass.hazards(instructions, loops)
    return {
        "registers": int(re.findall(r"REG:(\d+)", usage)[0]),
        "stack_bytes": int(re.findall(r"STACK:(\d+)", usage)[0]),
        "tensor_instructions": sum(i.opcode in ("HGMMA", "HMMA", "UTCHMMA") for i in instructions),
        "loop_instructions": len(body),
        "loop_mufu": sum(i.opcode == "MUFU" for i in body),
        "loop_multiplications": sum(map(sass.multiplications, body)),
        "loop_waits": sum(i.waits or i.name.startswith("WARPGROUP.DEPBAR") for i in body),
        "fault": f"ptxas made a race: {races[0]}" if races else "",
    }


def _amd(assembly: dict[str, Any]) -> dict[str, Any]:
    """Counts of AMD's assembly, which needs no disassembler."""
    text = assembly["amdgcn"]

    def resource(name: str) -> int:
        return int((re.search(rf"\.{name}:\s+(\d+)", text) or "00")[1])

    code = [line.strip() for line in text.splitlines() if re.match(r"\s+[a-z]+_|\.LBB", line)]
    labels = {line.partition(":")[0]: i for i, line in enumerate(code) if line.startswith(".LBB")}
    back = ((labels.get(line.split()[-1]), i) for i, line in enumerate(code) if "branch" in line)
    return {
        "registers": resource("vgpr_count"),
        "stack_bytes": resource("private_segment_fixed_size"),
        "tensor_instructions": sum(line.startswith("v_mfma") for line in code),
        "loop_instructions": max((i - a for a, i in back if a is not None), default=0),
    }


def _tool(name: str, *arguments: str) -> str:
    """What a tool of Triton's prints."""
    done = subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="+", help="such as sm_90 or gfx942")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", default="", help="a part of the kernels' names")
    what.add_argument("--sample", action="store_true", help="each kernel for one of the targets")
    args = parser.parse_args()
    chosen = sample(args.targets) if args.sample else every(args.targets, args.only)
    for case, target in chosen:
        print(json.dumps(asdict(compiled(case, target))), flush=True)


if __name__ == "__main__":
    sys.exit(main())
