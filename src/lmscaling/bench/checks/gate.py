"""The gate before training: a kernel of ours trains a model only where it has passed a check.

A check takes less than a second beside compiling, and is made once for a device, its compilers, the
sources and the launch options. A kernel that does not compile, does not fit the device, gives a
wrong result or not always the same one ends the run, and says so. A fault of the machine says
nothing about a kernel.

Legend: N rows, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lmscaling import kernels, registry
from lmscaling.bench.checks import exactness, record
from lmscaling.bench.checks.exactness import SEGMENTED, TOKENS, Attend, Comparison
from lmscaling.config.cell import Cell
from lmscaling.errors import UserError
from lmscaling.files import sha256_of
from lmscaling.kernels import peer
from lmscaling.kernels.chunked_triton import plan
from lmscaling.model.block import Block
from lmscaling.model.gpt import GPT
from lmscaling.runtime import environment, faults
from lmscaling.types import digest

CHECKED = ("chunked", "attention_parallel", "fla")
"""Implementations whose GPU kernels are ours, or of a package that is none of PyTorch's."""
TITLES = {
    "linear": "linear attention",
    "gated": "linear attention with gates",
    "gated_delta": "the gated delta rule",
}
DTYPE = torch.bfloat16
"""What attention and logits are computed in on a GPU, see ``train/module.py``."""
DTYPE_NAME = "bfloat16"
HEADS, ROWS = 3, 64
"""Heads of a short sequence, and rows of logits."""

Losses = Callable[[Tensor, Tensor, float | None], Tensor]


class Part(NamedTuple):
    """A part of a model that kernels of ours compute."""

    name: str
    key: dict[str, Any]
    """What the outcome of its check depends on, as JSON values."""
    fault: Callable[[], str | None]
    """What is wrong with it, or None."""


def record_beside(path: Path, cell: Cell) -> Path:
    """``checks/<name>.json`` of a cell, by any ``<folder>/<name>`` of the same study."""
    return path.absolute().parents[1] / "checks" / f"{cell.check}.json"


def require(path: Path, model: GPT, micro_batch: int, device: torch.device, compiled: bool) -> None:
    """Check the kernels that a model is about to use.

    What was found earlier under the same conditions is not checked again. Nothing is checked on a
    CPU, where everything is plain PyTorch.

    Args:
        path: ``checks/<name>.json``, which is read and gets what it lacks.
        model: Its weights are not used.
        micro_batch: Sequences of one forward pass.
        device: Where it computes.
        compiled: Whether its blocks will be compiled.

    Raises:
        UserError: A kernel fails.
        RuntimeError: And any other error of the machine, or for lack of memory.
    """
    if device.type != "cuda":
        return
    here = conditions()
    settle(cross_entropy_part(model, device, here), path, device)
    for attention in _by_kernels(model):
        part = attention_part(attention, model.context, micro_batch, device, compiled, here)
        settle(part, path, device)
    torch.cuda.empty_cache()


def conditions() -> dict[str, Any]:
    """What every check on this machine depends on."""
    folders = (registry.PACKAGE / "kernels", Path(__file__).parent)
    files = [file for folder in folders for file in folder.rglob("*.py")]
    sources = {str(file.relative_to(registry.PACKAGE)): sha256_of(file) for file in files}
    return {
        "device": environment.device_name(gpus=1),
        **environment.versions_if_installed(("torch", "triton")),
        **environment.ptxas(*torch.cuda.get_device_capability()),
        "sources": digest(sources),
    }


def settle(part: Part, path: Path, device: torch.device) -> None:
    """Check a part, unless it is known.

    Raises:
        UserError: It fails.
    """
    found = record.settle(path, part.key, part.name, partial(_fault, part, device))
    if found.message:
        raise UserError(
            f"the kernel of {part.name} fails its check on {part.key['device']} with Triton "
            f"{part.key.get('triton')}: {found.message}; train on another kind of GPU or with "
            "another version of Triton"
        )


def _fault(part: Part, device: torch.device) -> str | None:
    """What is wrong with it; an error of the program counts, one of the machine not."""
    try:
        return part.fault()
    except Exception as error:
        if faults.out_of_memory(error) or not faults.is_result(error, device):
            raise
        return f"{type(error).__name__}: {faults.first_line(error)}"


def _by_kernels(model: GPT) -> list[Any]:
    """Of each kind of attention that kernels of ours compute, the first in a model."""
    kinds: dict[Any, Any] = {}
    for block in model.blocks:
        attention = cast("Block", block).attention
        if hasattr(attention, "form") and attention.implementation in CHECKED:
            kinds.setdefault((attention.FAMILY, attention.form), attention)
    return list(kinds.values())


def attention_part(
    attention: Any,
    context: int,
    micro_batch: int,
    device: torch.device,
    compiled: bool,
    here: dict[str, Any],
) -> Part:
    """An attention as the blocks of a model compute it."""
    family, form = attention.FAMILY, attention.form
    width, name = attention.d_model // attention.n_head, attention.implementation
    compiled = compiled and getattr(attention, "COMPILES", True)
    key: dict[str, Any] = {
        "part": f"{family}/{name}", "dtype": DTYPE_NAME, "width": width, "form": list(form),
        "compiled": compiled, **here,
    }  # fmt: skip
    if name == "chunked":
        planned = _planned(_shape(attention), micro_batch, context, device)
        key["plan"] = asdict(replace(planned, segments=1))
    if name == "fla":
        key |= environment.versions_if_installed([peer.PACKAGE])
    given = family, kernels.load(family, name), device, DTYPE, width, form, compiled
    fault = partial(attention_fault, *given)
    return Part(f"{TITLES[family]} by {name}, heads of {width}", key, fault)


def _shape(attention: Any) -> plan.Shape:
    """What the kernels of an attention compute."""
    key = value = attention.d_model // attention.n_head
    of: dict[str, Any] = {"feature_map": "identity", "normalize": False}
    if attention.FAMILY == "gated":
        key, of["gate"] = attention.key, attention.form[0]
    else:
        of["feature_map"], of["normalize"] = attention.form
    return plan.Shape(heads=attention.n_head, key=key, value=value, **of)


def _planned(shape: plan.Shape, batch: int, context: int, device: torch.device) -> plan.Plan:
    """The launch options at the shape of training; the tensor has no memory of its own."""
    width = shape.heads * (2 * shape.key + shape.value)
    qkv_BTW = torch.empty(1, 1, width, dtype=DTYPE, device=device)
    return plan.choose(qkv_BTW.expand(batch, context, -1), shape)


def attention_fault(
    kind: str,
    attend: Attend,
    device: torch.device,
    dtype: torch.dtype,
    width: int,
    form: tuple[Any, ...],
    compiled: bool,
) -> str | None:
    """What is wrong with attention of a kind, forward and backward; None if nothing is.

    Short sequences are one segment, long ones several. ``torch.compile`` is also tried as training
    calls it.
    """
    given = (device, dtype)
    shapes = ((2, TOKENS, HEADS, width), (*SEGMENTED, width))
    checks = [exactness.every(kind, attend, *given, shape, form) for shape in shapes]
    if compiled:
        # Inductor needs a C++ compiler on a CPU, where blocks are never compiled.
        backend = "inductor" if device.type == "cuda" else "aot_eager"
        call = torch.compile(attend, fullgraph=True, dynamic=False, backend=backend)
        checks.append(exactness.numbers(kind, call, *given, shapes[0], form))
    return exactness.first_fault(chain.from_iterable(checks))


def cross_entropy_part(model: GPT, device: torch.device, here: dict[str, Any]) -> Part:
    """The loss of the head of a model."""
    V = model.wte.num_embeddings
    key = {"part": "cross_entropy", "dtype": DTYPE_NAME, "vocabulary": V, **here}
    fault = partial(cross_entropy_fault, losses, device, DTYPE, V)
    return Part(f"cross-entropy of {V} logits", key, fault)


def losses(logits_NV: Tensor, y_N: Tensor, scale: float | None) -> Tensor:
    """The losses by our kernel, which needs Triton."""
    from lmscaling.kernels.cross_entropy_triton import cross_entropy

    return cross_entropy(logits_NV, y_N, scale)


def cross_entropy_fault(
    losses: Losses, device: torch.device, dtype: torch.dtype, V: int
) -> str | None:
    """What is wrong with losses and their gradients by the logits; None if nothing is."""
    return exactness.first_fault(of_losses(losses, device, dtype, V))


def of_losses(losses: Losses, device: torch.device, dtype: torch.dtype, V: int) -> list[Comparison]:
    """Losses and their gradients by the logits, compared with float64.

    Each element is compared with float64, for a gradient is a product and has no cancellation.
    """
    generator = torch.Generator().manual_seed(0)
    logits_NV = (2 * torch.randn(ROWS, V, generator=generator)).to(device, dtype)
    y_N = torch.randint(V, (ROWS,), generator=generator).to(device)
    x_NV = logits_NV.double()
    exact_N = torch.nn.functional.cross_entropy(x_NV, y_N, reduction="none")
    exact_NV = x_NV.softmax(1)
    exact_NV[torch.arange(ROWS, device=device), y_N] -= 1
    exact_NV /= ROWS
    calls = []
    for scale in (1 / ROWS, 1 / ROWS, None):
        gradient_NV = logits_NV.clone()
        calls.append((losses(gradient_NV, y_N, scale), gradient_NV))
    (first_N, first_NV), (second_N, second_NV), (alone_N, _) = calls
    allowed = max(torch.finfo(dtype).eps, 1e-4)
    return [
        Comparison("numbers", "the loss", _relative(first_N, exact_N), 1e-4),
        Comparison("numbers", "the loss without a gradient", _relative(alone_N, exact_N), 1e-4),
        Comparison("numbers", "the gradient", _relative(first_NV, exact_NV), allowed),
        Comparison("repeated", "the loss", float((first_N != second_N).sum()), 0.0),
        Comparison("repeated", "the gradient", float((first_NV != second_NV).sum()), 0.0),
    ]


def _relative(x: Tensor, exact: Tensor) -> float:
    """The largest relative error of an element."""
    return ((x.double() - exact) / exact).abs().max().item()
