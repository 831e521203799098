"""Whether a device computes attention correctly: every implementation and every attention module.

An implementation is compared with the exact result at several shapes (``exactness``). An attention
module, its steps one token at a time, and its version by ``torch.compile`` are compared with the
module in float64. Each is checked in its own process: a kernel that hangs or writes out of bounds
is a row like any other.

Legend: B sequences, T tokens, D model width.
"""

import copy
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmscaling import attention, kernels, registry
from lmscaling.bench import layer, peers
from lmscaling.bench.checks.exactness import (
    SEGMENTED,
    TOLERANCE,
    Attend,
    Comparison,
    distance,
    integers,
    numbers,
)
from lmscaling.bench.isolation import isolated
from lmscaling.errors import UserError, choose
from lmscaling.files import replacing
from lmscaling.records import run as records
from lmscaling.records.checks import Check
from lmscaling.runtime import environment

LIMIT_SECONDS = 150.0
"""For the checks of one name; most of it is compiling."""
INTEGERS = ((1, 1, 1, 64), (2, 63, 3, 64), (1, 200, 25, 64))
NUMBERS = ((2, 200, 3, 64), (1, 63, 25, 64), (1, 1000, 2, 64))
"""Shapes [B, T, H, K] that are not multiples of a tile; GPT-2 XL has 25 heads."""
MODULE = (2, 100, 128)
"""Shape [B, T, D] of the input of an attention module, with two heads."""
STEPS = 5
"""Tokens at the end that are computed one by one."""


def names(gpus: int) -> list[str]:
    """What can be checked: attentions, their implementations, then those of other libraries."""
    # Those of a family are checked once, by the name of the family's folder.
    kinds = dict.fromkeys(registry.family(name) for name in registry.attentions())
    ours = [f"{kind}/{i}" for kind in kinds for i in kernels.names(kind)]
    others = [f"peer/{name}" for name in peers.installed()] if gpus else []
    return registry.attentions() + ours + others


def check(out: Path, chosen: list[str], gpus: int) -> str:
    """Check the chosen names, or all, and write ``Check`` records to ``out`` as JSON lines.

    Raises:
        UserError: A name is not known.
    """
    for name in chosen:
        if name not in names(gpus):
            raise UserError(f"{name!r} is not known; {choose(name, names(gpus))}")
    here = isolated(partial(environment.complete, gpus), LIMIT_SECONDS).value
    rows = [row for name in chosen or names(gpus) for row in _rows(name, gpus, here)]
    with replacing(out) as file:
        file.writelines(map(records.line, rows))
    return "\n".join(_summary(name, rows) for name in dict.fromkeys(row.name for row in rows))


def _summary(name: str, rows: list[Check]) -> str:
    own = [row for row in rows if row.name == name]
    wrong = [row for row in own if row.status != "right"]
    faults = "; ".join(f"{row.status}, {row.case}: {row.message}" for row in wrong)
    return f"check: {name}: {faults or f'right in {len(own)} comparisons'}"


def _rows(name: str, gpus: int, here: dict[str, Any]) -> Iterator[Check]:
    blank = Check(
        name=name,
        case="",
        dtype="",
        quantity="",
        error=None,
        allowed=0.0,
        status="failed",
        message="",
        started=environment.now(),
        device=here["device"],
        environment=here,
    )
    for dtype in ("bfloat16", "float32") if gpus else ("float32",):
        ended = isolated(partial(_compare, name, gpus, dtype), LIMIT_SECONDS)
        if ended.status != "done":
            yield replace(blank, dtype=dtype, status=ended.status, message=ended.message)
        for values in ended.value or []:
            found = Comparison(**values)
            yield replace(
                blank,
                dtype=dtype,
                case=found.case,
                quantity=found.quantity,
                error=records.finite(found.error),
                allowed=found.allowed,
                status="right" if found.right else "wrong",
                message="" if found.right else found.message,
            )


def _compare(name: str, gpus: int, dtype: str) -> list[dict[str, Any]]:
    device = torch.device("cuda" if gpus else "cpu")
    kind, slash, implementation = name.partition("/")
    torch_dtype = getattr(torch, dtype)
    if not slash:
        return [asdict(found) for found in check_module(kind, device, torch_dtype)]
    attend = layer.load(kind, implementation)
    kind = registry.family(kind)
    return [asdict(found) for found in check_implementation(kind, attend, device, torch_dtype)]


def check_implementation(
    kind: str, attend: Attend, device: torch.device, dtype: torch.dtype
) -> Iterator[Comparison]:
    """Compare an implementation with the exact result at all shapes.

    What cuts a sequence is also compared at one that is cut into segments; others may need minutes
    for so many tokens.
    """
    cuts = kind == "linear" and kernels.takes_chunk(attend)
    long = ((*SEGMENTED, 64),) if cuts else ()
    if kind == "linear":
        for shape in INTEGERS + long:
            yield from integers(attend, device, dtype, shape)
    for shape in NUMBERS + long:
        yield from numbers(kind, attend, device, dtype, shape)


def check_module(name: str, device: torch.device, dtype: torch.dtype) -> Iterator[Comparison]:
    """Compare an attention module with itself in float64: as it is, token by token, and compiled.

    It rounds in two more projections than an implementation, so twice the error is allowed.
    """
    torch.manual_seed(1)  # no preactivation of a ReLU is so near to 0 that rounding turns its sign
    B, T, D = MODULE
    block = attention.build(name, D, 2, context=T).to(device, dtype)
    x_BTD, dy_BTD = (torch.randn(B, T, D).to(device, dtype) for _ in range(2))
    compare = partial(Comparison, f"module, {B} x {T} x {D}", allowed=2 * TOLERANCE[dtype])
    exact = _passes(copy.deepcopy(block).double(), x_BTD.double(), dy_BTD.double())
    passes = _passes(block, x_BTD, dy_BTD)
    for quantity, x, y in zip(("y", "dx"), passes, exact, strict=True):
        yield compare(quantity, distance(x, y))
    yield compare("step", distance(_last_steps(block, x_BTD), exact[0][:, -STEPS:]))
    # Inductor needs a C++ compiler on a CPU, where blocks are never compiled.
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    for x, y in zip(_passes(compiled, x_BTD, dy_BTD), exact, strict=True):
        yield compare("compiled", distance(x, y))


def _passes(attend: nn.Module | Any, x_BTD: Tensor, dy_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the gradient of the input."""
    leaf = x_BTD.detach().requires_grad_()
    y_BTD = attend(leaf)
    return y_BTD.detach(), torch.autograd.grad(y_BTD, leaf, dy_BTD)[0]


@torch.no_grad()
def _last_steps(attend: Any, x_BTD: Tensor) -> Tensor:
    """The outputs of the last tokens, one at a time, from the state of those before."""
    B, T, _ = x_BTD.shape
    _, state = attend.prefill(x_BTD[:, :-STEPS], attend.init_state(B, T))
    outputs = []
    for x_BD in x_BTD[:, -STEPS:].unbind(1):
        y_BD, state = attend.decode_step(x_BD, state)
        outputs.append(y_BD)
    return torch.stack(outputs, 1)
