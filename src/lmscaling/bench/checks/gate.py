"""The gate before training: a kernel of ours trains a model only where it has passed a check.

A check takes less than a second beside compiling, and is made once for a device, its compilers, the
sources and the launch options. If a kernel does not compile, does not fit the device, gives a wrong
result or not always the same one, a slower way of computing stands in for it, and the run says so.
A fault of the machine says nothing about a kernel, and is raised.

Legend: N rows, V vocabulary.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from lmscaling import kernels, registry
from lmscaling.bench.checks import exactness
from lmscaling.bench.checks.exactness import SEGMENTED, TOKENS, Attend, Comparison
from lmscaling.config.cell import Cell
from lmscaling.config.types import digest
from lmscaling.files import sha256_of, write_record
from lmscaling.kernels import cross_entropy
from lmscaling.kernels.chunked_triton import plan
from lmscaling.model.gpt import GPT, Block
from lmscaling.records.checks import Finding, findings
from lmscaling.runtime import environment, faults

OURS = ("chunked", "attention_parallel")
"""Implementations whose GPU kernels are ours."""
PLAIN = {"linear": "chunked_materialized", "gated": "plain", "gated_delta": "plain"}
"""The implementation in plain PyTorch that stands in for them, by folder of ``kernels/``."""
TITLES = {
    "linear": "linear attention",
    "gated": "linear attention with gates",
    "gated_delta": "the gated delta rule",
}
DTYPE = torch.bfloat16
"""What attention and logits are computed in on a GPU, see ``train/module.py``."""
HEADS, ROWS = 3, 64
"""Heads of a short sequence, and rows of logits."""

Losses = Callable[[Tensor, Tensor, float | None], Tensor]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a model that kernels of ours compute."""

    name: str
    key: dict[str, Any]
    """What the outcome of its check depends on, as JSON values."""
    fault: Callable[[], str | None]
    """What is wrong with the way that is in use, or None."""
    ways: dict[str, Callable[[], None]]
    """Ways to compute it by name, the fastest first, each with what puts it into use. The last one
    has no kernel of ours and is not checked."""


def record_beside(path: Path, cell: Cell) -> Path:
    """``checks/<name>.json`` of a cell, by any ``<folder>/<name>`` of the same study."""
    return path.absolute().parents[1] / "checks" / f"{cell.check}.json"


def pass_or_fall_back(
    path: Path, model: GPT, micro_batch: int, device: torch.device, compiled: bool
) -> str:
    """Check the kernels that a model is about to use, and replace those that fail.

    What was found earlier under the same conditions is not checked again. Nothing is checked on a
    CPU, where everything is plain PyTorch.

    Args:
        path: ``checks/<name>.json``, which is read and gets what it lacks.
        model: Its attention is changed if plain PyTorch stands in; its weights are not used.
        micro_batch: Sequences of one forward pass.
        device: Where it computes.
        compiled: Whether its blocks will be compiled.

    Returns:
        A sentence for each kernel that was replaced; empty if none was.

    Raises:
        RuntimeError: And any other error of the machine, or for lack of memory.
    """
    if device.type != "cuda":
        return ""
    here = conditions()
    parts = [cross_entropy_part(model, device, here)]
    for attentions in _by_kernels(model):
        parts.append(attention_part(model, micro_batch, device, compiled, here, attentions))
    messages = [settle(part, path, device) for part in parts]
    torch.cuda.empty_cache()
    return "; ".join(filter(None, messages))


def conditions() -> dict[str, Any]:
    """What every check on this machine depends on."""
    folders = (registry.PACKAGE / "kernels", Path(__file__).parent)
    files = [
        file for folder in folders for kind in ("py", "json") for file in folder.rglob(f"*.{kind}")
    ]
    sources = {str(file.relative_to(registry.PACKAGE)): sha256_of(file) for file in files}
    return {
        "device": environment.device_name(gpus=1),
        **environment.versions_if_installed(("torch", "triton")),
        "ptxas": _assembler(),
        "sources": digest(sources),
    }


def _assembler() -> str:
    """Version of the assembler that Triton calls; empty on a device of another maker."""
    with suppress(ImportError, AttributeError, RuntimeError):
        from triton.backends.nvidia.compiler import get_ptxas

        major, minor = torch.cuda.get_device_capability()
        return get_ptxas(10 * major + minor).version
    return ""


def settle(part: Part, path: Path, device: torch.device) -> str:
    """Put the best way that passes into use; what failed before it, or nothing."""
    known = findings(path)
    found = next((other for other in known if other.key == part.key), None)
    if found is None:
        found = _search(part, device)
        write_record(path, {"findings": [asdict(each) for each in [*findings(path), found]]})
    part.ways[found.way]()
    return found.message


def _search(part: Part, device: torch.device) -> Finding:
    started, before = environment.now(), time.perf_counter()
    *ours, way = part.ways
    failed = []
    for name in ours:
        part.ways[name]()
        wrong = _fault(part, device)
        if not wrong:
            way = name
            break
        failed.append(f"{name} failed the check ({wrong})")
    return Finding(
        key=part.key,
        way=way,
        message=f"{part.name}: {', '.join(failed)}; {way} is used" if failed else "",
        seconds=time.perf_counter() - before,
        started=started,
    )


def _fault(part: Part, device: torch.device) -> str | None:
    """What is wrong with the way in use; an error of the program counts, one of the machine not."""
    try:
        return part.fault()
    except Exception as error:
        if faults.out_of_memory(error) or not faults.is_result(error, device):
            raise
        return f"{type(error).__name__}: {faults.first_line(error)}"


def _by_kernels(model: GPT) -> list[list[Any]]:
    """The attentions of a model that kernels of ours compute, those of a kind together."""
    kinds: dict[Any, list[Any]] = {}
    for block in model.blocks:
        attention = cast("Block", block).attention
        if hasattr(attention, "form") and attention.implementation in OURS:
            kinds.setdefault((attention.FAMILY, attention.form), []).append(attention)
    return list(kinds.values())


def attention_part(
    model: GPT,
    micro_batch: int,
    device: torch.device,
    compiled: bool,
    here: dict[str, Any],
    attentions: list[Any],
) -> Part:
    """Attentions of one kind as the blocks of a model compute them."""
    attention = attentions[0]
    family, form = attention.FAMILY, attention.form
    width, name = attention.d_model // attention.n_head, attention.implementation
    options: dict[str, Any] = {}
    ways: dict[str, Callable[[], None]] = {"its kernel": lambda: None}

    def use_plain() -> None:
        for each in attentions:
            each.implementation = PLAIN[family]

    if name == "chunked" and family != "gated_delta":
        shape = _shape(attention)
        planned = _planned(shape, micro_batch, model.context, device)
        options = {"plan": asdict(replace(planned, segments=1))}
        ways = {
            "its kernel": partial(plan.use, planned, shape),
            "its safe configuration": partial(plan.use, plan.safe(), shape),
        }
    return Part(
        name=f"{TITLES[family]} by {name}, heads of {width}",
        key={
            "part": f"{family}/{name}",
            "dtype": str(DTYPE).removeprefix("torch."),
            "width": width,
            "form": list(form),
            "compiled": compiled,
            **options,
            **here,
        },
        fault=partial(
            attention_fault,
            family, kernels.load(family, name), device, DTYPE, width, form, compiled,
        ),
        ways={**ways, "plain PyTorch": use_plain},
    )  # fmt: skip


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
    plan.use(None, shape)
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
    key = {"part": "cross_entropy", "dtype": str(DTYPE).removeprefix("torch."), "vocabulary": V}
    return Part(
        name=f"cross-entropy of {V} logits",
        key={**key, **here},
        fault=partial(cross_entropy_fault, losses, device, DTYPE, V),
        ways={"its kernel": lambda: None, "plain PyTorch": cross_entropy.use_plain},
    )


def losses(logits_NV: Tensor, y_N: Tensor, scale: float | None) -> Tensor:
    """The losses by our kernel, which needs Triton."""
    from lmscaling.kernels.cross_entropy_triton import launch

    return launch.cross_entropy(logits_NV, y_N, scale)


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
    case = f"numbers, {ROWS} x {V}"
    return [
        Comparison(case, "the loss", _relative(first_N, exact_N), 1e-4),
        Comparison(case, "the loss without a gradient", _relative(alone_N, exact_N), 1e-4),
        Comparison(case, "the gradient", _relative(first_NV, exact_NV), allowed),
        Comparison("repeated", "the loss", float((first_N != second_N).sum()), 0.0),
        Comparison("repeated", "the gradient", float((first_NV != second_NV).sum()), 0.0),
    ]


def _relative(x: Tensor, exact: Tensor) -> float:
    """The largest relative error of an element."""
    return ((x.double() - exact) / exact).abs().max().item()
