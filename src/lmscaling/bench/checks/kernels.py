"""Whether a device computes attention right: every implementation, and every attention around it.

An implementation is compared with the exact result at several shapes (``exactness``). An attention,
as the module that a model holds, is compared with itself in float64, its steps with its forward
pass, and what ``torch.compile`` makes of it with what it is. Each is checked in a process of its
own: a kernel that hangs or writes where it must not is a row like any other.

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
from lmscaling.bench import peers
from lmscaling.bench.checks.exactness import TOLERANCE, Attend, Found, distance, integers, numbers
from lmscaling.bench.isolation import isolated
from lmscaling.errors import UserError, choose
from lmscaling.files import replacing
from lmscaling.kernels.rotary import unrotated
from lmscaling.records import run as records
from lmscaling.records.checks import Check
from lmscaling.runtime import environment

LIMIT_SECONDS = 150.0
"""Of the checks of one name; most of it is compiling."""
INTEGERS = ((1, 1, 1, 64), (2, 63, 3, 64), (1, 200, 25, 64))
NUMBERS = ((2, 200, 3, 64), (1, 63, 25, 64), (1, 1000, 2, 64))
"""Shapes [B, T, H, K] that are no multiple of a tile; 25 heads are those of GPT-2 XL."""
MODULE = (2, 100, 128)
"""Shape [B, T, D] of what an attention is given, with two heads."""
STEPS = 5
"""Tokens at the end that are computed one by one."""


def names(gpus: int) -> list[str]:
    """All that can be checked: attentions, then their implementations, then those of others."""
    ours = [f"{a}/{i}" for a in registry.attentions() for i in registry.implementations(a)]
    others = [f"peer/{name}" for name in peers.installed()] if gpus else []
    return registry.attentions() + ours + others


def check(out: Path, chosen: list[str], gpus: int) -> str:
    """Check what is named, all if nothing is, into ``out``: JSON lines of ``Check``.

    Raises:
        UserError: There is nothing of such a name.
    """
    for name in chosen:
        if name not in names(gpus):
            raise UserError(f"{name!r} is not known; {choose(name, names(gpus))}")
    here = isolated(partial(environment.complete, gpus), LIMIT_SECONDS).value
    rows = [row for name in chosen or names(gpus) for row in _rows(name, gpus, here)]
    with replacing(out) as file:
        file.writelines(map(records.line, rows))
    return "\n".join(_said(name, rows) for name in dict.fromkeys(row.name for row in rows))


def _said(name: str, rows: list[Check]) -> str:
    mine = [row for row in rows if row.name == name]
    wrong = [row for row in mine if row.status != "right"]
    said = "; ".join(f"{row.status}, {row.case}: {row.message}" for row in wrong)
    return f"check: {name}: {said or f'right in {len(mine)} comparisons'}"


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
            found = Found(**values)
            yield replace(
                blank,
                dtype=dtype,
                case=found.case,
                quantity=found.quantity,
                error=records.finite(found.error),
                allowed=found.allowed,
                status="right" if found.right else "wrong",
                message="" if found.right else found.words,
            )


def _compare(name: str, gpus: int, dtype: str) -> list[dict[str, Any]]:
    device = torch.device("cuda" if gpus else "cpu")
    kind, slash, implementation = name.partition("/")
    of = getattr(torch, dtype)
    if not slash:
        return [asdict(found) for found in module(kind, device, of)]
    attend = peers.installed()[implementation] if kind == "peer" else _ours(kind, implementation)
    return [asdict(found) for found in attending(kind, attend, device, of)]


def _ours(kind: str, implementation: str) -> Attend:
    return kernels.load(kind, implementation)


def attending(
    kind: str, attend: Attend, device: torch.device, dtype: torch.dtype
) -> Iterator[Found]:
    """An implementation of a kind, at all shapes."""
    if kind == "linear":
        for shape in INTEGERS:
            yield from integers(attend, device, dtype, shape)
    for shape in NUMBERS:
        yield from numbers(kind, attend, device, dtype, shape)


def module(name: str, device: torch.device, dtype: torch.dtype) -> Iterator[Found]:
    """An attention beside itself in float64, token by token, and compiled into one graph.

    Two projections more are rounded than by an implementation, so twice as much is allowed.
    """
    torch.manual_seed(0)
    B, T, D = MODULE
    made = attention.load(name)(D, 2, unrotated).to(device, dtype)
    x_BTD, dy_BTD = (torch.randn(B, T, D).to(device, dtype) for _ in range(2))
    found = partial(Found, f"module, {B} x {T} x {D}", allowed=2 * TOLERANCE[dtype])
    exact = _passes(copy.deepcopy(made).double(), x_BTD.double(), dy_BTD.double())
    passes = _passes(made, x_BTD, dy_BTD)
    for quantity, x, y in zip(("y", "dx"), passes, exact, strict=True):
        yield found(quantity, distance(x, y))
    yield found("step", distance(_last_steps(made, x_BTD), exact[0][:, -STEPS:]))
    # Inductor takes a C++ compiler on a CPU, where nobody compiles blocks.
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    compiled = torch.compile(made, fullgraph=True, backend=backend)
    for x, y in zip(_passes(compiled, x_BTD, dy_BTD), exact, strict=True):
        yield found("compiled", distance(x, y))


def _passes(attend: nn.Module | Any, x_BTD: Tensor, dy_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """The result and the gradient by the input."""
    leaf = x_BTD.detach().requires_grad_()
    y_BTD = attend(leaf)
    return y_BTD.detach(), torch.autograd.grad(y_BTD, leaf, dy_BTD)[0]


@torch.no_grad()
def _last_steps(attend: Any, x_BTD: Tensor) -> Tensor:
    """The result of the last tokens one at a time, behind the state of those before."""
    B, T, _ = x_BTD.shape
    _, state = attend.prefill(x_BTD[:, :-STEPS], attend.init_state(B, T))
    made = []
    for x_BD in x_BTD[:, -STEPS:].unbind(1):
        y_BD, state = attend.decode_step(x_BD, state)
        made.append(y_BD)
    return torch.stack(made, 1)
