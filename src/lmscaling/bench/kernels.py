"""Time of every implementation of attention, forward and with gradients, over shapes.

An implementation is timed only if it is right (``exactness``). A series goes through growing
contexts at one number of heads, one number of tokens and one pass, and ends where memory or
patience does: the end is a row too. Linear implementations run with softplus and normalised;
inputs are views of one packed projection, and their gradients go back into one, as in a model.

The floor is the time of moving q, k, v, y and one float32 a row once, and for gradients q, k, v,
dy, dq, dk, dv and that float32, at the measured bandwidth of a copy.
"""

import shlex
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from lmscaling import kernels
from lmscaling.bench import layer, peers
from lmscaling.bench.checks.exactness import Attend, fault
from lmscaling.bench.clock import timed
from lmscaling.bench.layer import PASSES
from lmscaling.bench.memory import Memory
from lmscaling.errors import UserError, choose
from lmscaling.formatting import aligned
from lmscaling.records import run as records
from lmscaling.records.timing import Bench, KernelTime
from lmscaling.runtime import environment

PEERS = ("flash-linear-attention", "fla-core")


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What is measured."""

    dtype: str
    contexts: tuple[int, ...]
    """Tokens of a sequence, growing."""
    tokens: tuple[int, ...]
    """Tokens at once; 1 stands for one sequence."""
    n_heads: tuple[int, ...]
    d_head: int
    most_repeats: int
    budget_seconds: float
    """About how long each shape is measured."""
    limit_seconds: float
    """A series ends before the context at which doubling the median would go beyond this."""
    copy_bytes: int
    matmul_width: int


GPU = Preset(
    dtype="bfloat16",
    contexts=tuple(2**i for i in range(9, 20)),
    tokens=(1, 2**17, 2**19),
    n_heads=(12, 25),  # GPT-2 small and XL
    d_head=64,
    most_repeats=50,
    budget_seconds=0.1,
    limit_seconds=0.5,
    copy_bytes=2**30,
    matmul_width=8192,
)
CPU = Preset(
    dtype="float32",
    contexts=(128, 256, 512, 1024),
    tokens=(1, 2048),
    n_heads=(2,),
    d_head=64,
    most_repeats=5,
    budget_seconds=0.05,
    limit_seconds=0.5,
    copy_bytes=2**26,
    matmul_width=512,
)


def bench(out: Path, names: list[str]) -> str:
    """Measure into ``out``, line by line; a table of what was measured.

    Args:
        out: JSON lines: a ``Bench``, then a ``KernelTime`` for each shape; what stands there if
            it is interrupted is whole.
        names: Implementations to measure; all if empty.

    Raises:
        UserError: There is no implementation of such a name.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    preset = GPU if device.type == "cuda" else CPU
    chosen = _choose(names, device)
    header = _header(preset, device)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with out.open("wb") as file:
        file.write(records.line(header))
        for kind, name, attend in chosen:
            for row in measure(kind, name, attend, preset, device, header):
                rows.append(row)
                file.write(records.line(row))
                file.flush()
    return table(header, rows)


def implementations(device: torch.device) -> Iterator[tuple[str, str, Attend]]:
    """Kind, name and function of all there are."""
    for kind in ("linear", "softmax"):
        for name in kernels.names(kind):
            yield kind, name, kernels.load(kind, name)
    if device.type == "cuda":
        for name, attend in peers.installed().items():
            yield "peer", name, attend


def measure(
    kind: str, name: str, attend: Attend, preset: Preset, device: torch.device, header: Bench
) -> Iterator[KernelTime]:
    """All series of one implementation, or one row that says why there are none."""
    blank = KernelTime(
        device=header.environment["device"],
        versions=header.environment["versions"],
        kind=kind,
        implementation=name,
        passes="",
        dtype=preset.dtype,
        batch=0,
        n_head=0,
        context=0,
        d_head=preset.d_head,
        repeats=0,
        captured=False,
        median_seconds=None,
        least_seconds=None,
        most_seconds=None,
        ns_per_token_head=None,
        floor_fraction=None,
        peak_memory_bytes=None,
        status="done",
        message="",
    )
    try:
        wrong = fault(kind, attend, device, getattr(torch, preset.dtype), preset.d_head)
    except Exception as error:  # whatever it raises, Triton's errors are of no common kind
        yield replace(blank, status="failed", message=_sentence(error))
        return
    if wrong:
        yield replace(blank, status="wrong", message=wrong)
        return
    for passes in PASSES:
        for n_head in preset.n_heads:
            for tokens in preset.tokens:
                start = replace(blank, passes=passes, n_head=n_head)
                yield from _series(start, tokens, attend, preset, device, header)


def _series(
    start: KernelTime,
    tokens: int,
    attend: Attend,
    preset: Preset,
    device: torch.device,
    header: Bench,
) -> Iterator[KernelTime]:
    """Growing contexts until one is too much. Many tokens at once must be several sequences."""
    before = 0.0
    for context in preset.contexts:
        batch = max(1, tokens // context)
        if tokens > 1 and batch == 1:
            return
        row = replace(start, batch=batch, context=context)
        if 2 * before > preset.limit_seconds:
            message = f"{before:.2g} s at half the context; limit {preset.limit_seconds:g} s"
            yield replace(row, status="slow", message=message)
            return
        row = _point(row, attend, preset, device, header.copy_bytes_per_second)
        yield row
        if row.median_seconds is None:
            return
        before = row.median_seconds


def _point(
    row: KernelTime, attend: Attend, preset: Preset, device: torch.device, bandwidth: float
) -> KernelTime:
    """One shape, measured."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        memory = Memory(device)
        shape = (row.batch, row.context, row.n_head, row.d_head)
        call = layer.call(attend, row.kind, row.passes, shape, getattr(torch, row.dtype), device)
        timing = timed(call, memory, preset.budget_seconds, preset.most_repeats)
    except torch.OutOfMemoryError as error:
        row = replace(row, status="oom", message=_sentence(error))
    except Exception as error:
        row = replace(row, status="failed", message=_sentence(error))
    else:
        median = statistics.median(timing.seconds)
        rows = row.batch * row.context * row.n_head
        row = replace(
            row,
            repeats=len(timing.seconds),
            captured=timing.captured,
            median_seconds=median,
            least_seconds=timing.seconds[0],
            most_seconds=timing.seconds[-1],
            ns_per_token_head=median / rows * 1e9,
            floor_fraction=rows * floor_bytes(row) / bandwidth / median,
            peak_memory_bytes=timing.peak_memory_bytes,
        )
    return row


def floor_bytes(row: KernelTime) -> int:
    """What a token of a head must move: four tensors forward, seven more backward, see above."""
    tensor = row.d_head * getattr(torch, row.dtype).itemsize
    return 4 * tensor + 4 + (7 * tensor + 4 if row.passes == PASSES[1] else 0)


def _choose(names: list[str], device: torch.device) -> list[tuple[str, str, Attend]]:
    found = list(implementations(device))
    known = [name for _, name, _ in found]
    for name in names:
        if name not in known:
            raise UserError(f"implementation {name!r} is not known; {choose(name, known)}")
    return [one for one in found if not names or one[1] in names]


def _header(preset: Preset, device: torch.device) -> Bench:
    described = environment.complete(int(device.type == "cuda"))
    described["versions"] |= environment.versions_if_installed(PEERS)
    return Bench(
        command=shlex.join(sys.argv),
        started=environment.now(),
        environment=described,
        driver=described.pop("driver"),
        preset=asdict(preset),
        copy_bytes_per_second=_copy(preset, device),
        matmul_flops=_matmul(preset, device),
    )


def _copy(preset: Preset, device: torch.device) -> float:
    """Bytes per second of a copy, read and written."""
    source = torch.ones(preset.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = partial(target.copy_, source)
    timing = timed(copy, Memory(device), preset.budget_seconds, preset.most_repeats)
    return 2 * preset.copy_bytes / statistics.median(timing.seconds)


def _matmul(preset: Preset, device: torch.device) -> float:
    """FLOP/s of a square product."""
    width, dtype = preset.matmul_width, getattr(torch, preset.dtype)
    a, b, c = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(3))
    product = partial(torch.mm, a, b, out=c)
    timing = timed(product, Memory(device), preset.budget_seconds, preset.most_repeats)
    return 2 * width**3 / statistics.median(timing.seconds)


def _sentence(error: Exception) -> str:
    """The first line of what an error says."""
    return str(error).partition("\n")[0] or type(error).__name__


def table(header: Bench, rows: list[KernelTime]) -> str:
    """Nanoseconds per token and head with the share of the floor; one column a context."""
    contexts = sorted({row.context for row in rows} - {0})
    lines = [["implementation", "pass", "heads", "batch", *(f"{t:,}" for t in contexts)]]
    series: dict[tuple[str, ...], dict[int, str]] = {}
    for row in rows:
        load = "one" if row.batch == 1 else f"{row.batch * row.context:,} tokens"
        key = (row.implementation, row.passes or row.status, str(row.n_head or ""), load)
        series.setdefault(key, {})[row.context] = _cell(row)
    for key, cells in series.items():
        lines.append([*key, *(cells.get(t, "") for t in contexts)])
    said = [f"{r.implementation}: {r.status}, {r.message}" for r in rows if not r.context]
    ceilings = (
        f"{header.environment['device']}: copy {header.copy_bytes_per_second / 1e9:.3g} GB/s, "
        f"product {header.matmul_flops / 1e12:.3g} TFLOP/s; "
        "ns per token and head (share of the floor of memory)"
    )
    return "\n".join([ceilings, *aligned(lines, left={0, 1, 3}), *said])


def _cell(row: KernelTime) -> str:
    if row.ns_per_token_head is None or row.floor_fraction is None:
        return row.status
    return f"{row.ns_per_token_head:.3g} ({row.floor_fraction:.0%})"
