"""What the chunked kernels should cost, by counting bytes, instructions and programs that fit.

    python benchmarks/counts.py           # print the tables for benchmarks/offline.csv
    python benchmarks/counts.py --write   # write counts.md, which docs/gpu.md shows

Nothing here is measured on a GPU. A kernel moves m = bytes / copy rate; its loop occupies the issue
slots of a scheduler for i = slots / clock. The estimate is between max(1.13 m, i / 0.85) and
max(1.4 m, i / 0.6), per token and head, and the kernels of a step are added up.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import offline
from offline import KIB, Row

DOCUMENT = Path(__file__).with_name("counts.md")
TRITON = "3.7.1"
WIDTH = 64
"""Of queries, keys and values, as in GPT-2."""
CHUNK = 64
STEP = ("chunked_forward_kept", "chunked_backward")
"""The kernels of a step whose sequences are not cut into segments."""

BYTES: dict[str, Callable[[int, int, int], int]] = {
    "chunked_forward_kept": lambda K, V, size: size * (2 * K + 2 * V) + 4 + state(K, V, size),
    "chunked_backward": lambda K, V, size: size * (4 * K + 3 * V) + 4 + state(K, V, size),
    "sums_forward": lambda K, V, size: size * (K + V),
    "sums_backward": lambda K, V, size: size * (K + 2 * V) + 4,
}
"""Bytes per token and head of a kernel by the widths of keys and values and the size of an element:
q, k, v, y, dy and their gradients once, and 1/D in float32 where it is read or written."""


def state(K: int, V: int, size: int) -> int:
    """Bytes per token of what a chunk keeps: its state, and z and c in float32."""
    return (size * K * V + 4 * (K + V)) // CHUNK


LOW, HIGH = (1.13, 0.85), (1.4, 0.6)
"""Factor of the copy time and share of the issue slots in use, at best and at worst."""
SCHEDULERS = 4
REGISTERS = 64 * KIB
PROGRAM_BYTES = 1 * KIB
"""Shared memory that the system takes of each program."""
PER_PROCESSOR = {
    "sm_80": (164 * KIB, 64),
    "sm_86": (100 * KIB, 48),
    "sm_89": (100 * KIB, 48),
    "sm_90": (228 * KIB, 64),
    "sm_100": (228 * KIB, 64),
    "sm_120": (100 * KIB, 48),
}
"""Shared memory and warps of a multiprocessor. CUDA C++ programming guide, as in ``offline.py``."""
MUFU_CYCLES = 8
"""Of a scheduler for one instruction: 16 results per cycle and multiprocessor (same guide)."""
MULTIPLICATIONS = {"sm_80": 1024, "sm_90": 2048}
"""Dense bfloat16 multiply-adds per cycle and multiprocessor: 312 and 989 TFLOP/s in the data sheets
of A100 and H100."""


@dataclass(frozen=True)
class Device:
    """A GPU whose copy rate is known."""

    name: str
    target: str
    bytes_per_second: float
    """Of a large copy, reading and writing counted: 90 % of the data sheet's 4.8 and 3.35 TB/s."""
    processors: int = 132
    hertz: float = 1.755e9


DEVICES = (Device("H200", "sm_90", 4.3e12), Device("H100", "sm_90", 3.0e12))

OTHERS = {"normalised": (33, 10_024), "`fused_chunk`": (29, 7_336)}
"""Launches and bytes per token and head of a step of flash-linear-attention 0.6.0 at width 64 in
bfloat16, counted by running it in Triton's interpreter."""
FLASH = {1024: 192e12, 4096: 257e12, 16384: 284e12}
"""FLOP/s of FlashAttention-2 by context, forward and backward, causal, width 64, H100 SXM5: the
plot in the README of Dao-AILab/flash-attention. A token and head takes 7 T d FLOPs."""

COLUMNS = ["kernel", "target", "slots", "MUFU", "tensor", "waits"]
COLUMNS += ["registers", "stack", "shared", "programs"]


def slots(row: Row) -> float:
    """Instructions per token that one scheduler issues."""
    return row.loop_instructions * row.warps / SCHEDULERS / row.loop_tokens


def programs(row: Row) -> int:
    """Programs that fit on a multiprocessor; a warp's registers are given in units of 256."""
    shared, warps = PER_PROCESSOR[row.target]
    a_warp = -(-32 * row.registers // 256) * 256
    fit = (REGISTERS // (a_warp * row.warps), shared // (row.shared_bytes + PROGRAM_BYTES))
    return min(*fit, warps // row.warps)


def picoseconds(row: Row, device: Device) -> tuple[float, float]:
    """The estimate for a token and head, low and high."""
    name, kind, width = split(row)
    copied = moved(name, int(width), kind) / device.bytes_per_second
    issued = slots(row) / (device.processors * device.hertz)
    low, high = (1e12 * max(factor * copied, issued / share) for factor, share in (LOW, HIGH))
    return low, high


def moved(name: str, width: int, kind: str) -> int:
    """Bytes per token and head of a kernel."""
    return BYTES[name](width, width, {"bf16": 2, "fp32": 4}[kind])


def split(row: Row) -> list[str]:
    """Kernel, dtype and width of a row."""
    return row.kernel.rsplit("_", 2)


def counted(target: str) -> list[Row]:
    """The rows of the kernels whose bytes are known, for one target."""
    rows = [r for r in offline.read().values() if (r.triton, r.target) == (TRITON, target)]
    return [r for r in rows if r.kernel.count("_") > 2 and split(r)[0] in BYTES]


def tables() -> Iterator[str]:
    """Two tables as lines of Markdown."""
    step = [f"{name}_bf16_{WIDTH}" for name in STEP]
    rows = {row.kernel: row for row in counted("sm_90")}
    yield f"| kernel | bytes | {' | '.join(f'ps {d.name}' for d in DEVICES)} |"
    yield "|---" * (2 + len(DEVICES)) + "|"
    times = {d: [picoseconds(rows[kernel], d) for kernel in step] for d in DEVICES}
    sizes = [moved(split(rows[kernel])[0], WIDTH, "bf16") for kernel in step]
    for i, kernel in enumerate(step):
        yield _line(kernel, sizes[i], times, slice(i, i + 1))
    yield _line(f"both passes, {len(step)} launches", sum(sizes), times, slice(None))
    for name, (launches, size) in OTHERS.items():
        least = (f"at least {1e12 * size / d.bytes_per_second:.0f}" for d in DEVICES)
        what = f"flash-linear-attention, {name}, {launches} launches"
        yield f"| {what} | {size:,} | {' | '.join(least)} |"
    for context, rate in FLASH.items():
        took = 1e12 * 7 * context * WIDTH / rate
        yield f"| FlashAttention-2, {context:,} tokens (published) | - | - | {took:,.0f} |"
    yield ""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for target in PER_PROCESSOR:
        for row in counted(target):
            if row.kernel in step:
                yield _count(row)


def _line(what: str, size: int, times: dict[Device, list[tuple[float, float]]], part: slice) -> str:
    spans = []
    for each in times.values():
        low, high = (sum(ends) for ends in zip(*each[part], strict=True))
        spans.append(f"{low:.0f} to {high:.0f}")
    return f"| {what} | {size:,} | {' | '.join(spans)} |"


def _count(row: Row) -> str:
    share = row.warps / row.loop_tokens
    mufu = MUFU_CYCLES * row.loop_mufu * share / SCHEDULERS
    rate = MULTIPLICATIONS.get(row.target)
    tensor = f"{row.loop_multiplications * share / rate:.1f}" if rate else "-"
    values = [row.kernel, row.target, f"{slots(row):.1f}", f"{mufu:.1f}", tensor]
    values += [f"{row.loop_waits / row.loop_tokens:.1f}", row.registers, row.stack_bytes]
    return "| " + " | ".join(map(str, [*values, f"{row.shared_bytes:,}", programs(row)])) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    text = "\n".join(tables())
    if parser.parse_args().write:
        DOCUMENT.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
