"""Every kernel as training launches it: recorded on the CPU, not run.

The attentions of the registry compute a few tokens, forward and backward, as on a device that is
absent, with sequences in two segments. What is recorded is enough to compile (``compiled.py``).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from torch import Tensor

from lmscaling import kernels
from lmscaling.attention import linear, mamba2, retention
from lmscaling.kernels.chunked_triton import op
from lmscaling.kernels.chunked_triton.plan import Plan, Shape, compiles_gates, configured
from lmscaling.kernels.cross_entropy_triton import cross_entropy
from lmscaling.kernels.gated import chunked as gated
from lmscaling.kernels.rotary import Rotary, unrotated

TOKENS, SEGMENTS = 128, 2
VOCABULARY = 50_304
OPTIONS = ("num_warps", "num_stages")
TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64"}
WIDTHS = ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float32, 64))
"""What the kernels support. GPT-2 has 12 to 25 heads of 64."""


class Launch(NamedTuple):
    """A kernel and what Triton compiles it for."""

    name: str
    kernel: Any
    signature: dict[str, str]
    """Type of each argument that is not a constant."""
    constants: dict[str, Any]
    aligned: list[str]
    """Pointers, and numbers that are multiples of 16."""
    options: dict[str, int]
    """Warps and stages, where the launch gives them."""


def cases(architecture: int) -> Iterator[Launch]:
    """All kernels for an architecture, numbered as in ``sm_90``; 0 is AMD.

    Names end with dtype, width of a value and variant.
    """
    for dtype, width in WIDTHS:
        yield from attention(architecture, linear, dtype, width)
    yield from attention(architecture, linear, implementation="attention_parallel")
    for name, variant, heads in (("mamba2", mamba2, 12), ("retention", retention, 25)):
        for launch in attention(architecture, variant, heads=heads):
            yield launch._replace(name=f"{launch.name}_{name}")
    for launch in attention(architecture, linear, heads=25, rotate=Rotary(64)):
        yield launch._replace(name=f"{launch.name}_rotated")
    for dtype, scale in ((torch.bfloat16, 1.0), (torch.bfloat16, None), (torch.float32, 1.0)):
        given = torch.zeros(1, VOCABULARY, dtype=dtype), torch.zeros(1, dtype=torch.int64), scale
        yield from recorded(TYPES[dtype], partial(cross_entropy, *given))


def attention(
    architecture: int,
    variant: Any,
    dtype: torch.dtype = torch.bfloat16,
    width: int = 64,
    heads: int = 12,
    rotate: Any = unrotated,
    implementation: str = "chunked",
) -> list[Launch]:
    """What a step of an attention launches."""
    module = variant.Attention(heads * width, heads, rotate)
    module.implementation = implementation
    x_BTD = torch.zeros(1, TOKENS, heads * width)

    def choose(qkv_BTW: Tensor, shape: Shape) -> Plan:
        return configured(architecture, qkv_BTW.dtype, shape, SEGMENTS)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            y_BTD = module(x_BTD)
        y_BTD.sum().backward()

    with ExitStack() as pretended:
        for where, name, value in (
            (kernels, "on_triton_device", lambda _: True),
            (gated, "_runs_gates", lambda _: compiles_gates(architecture)),
            (op, "choose", choose),
            (torch.version, "hip", None if architecture else "AMD"),
        ):
            pretended.enter_context(patch.object(where, name, value))
        return recorded(f"{TYPES[dtype]}_{width}", step)


def recorded(suffix: str, step: Callable[[], object]) -> list[Launch]:
    """What a function launches, each kernel once."""
    made: dict[str, Launch] = {}

    def instead(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            options = {n: constants.pop(n) for n in OPTIONS if n in constants}
            given = dict(zip(kernel.arg_names, arguments, strict=False))
            name = kernel.__name__.strip("_").removesuffix("_kernel")
            name += "_kept" if constants.get("KEEP") else ""
            name += f"_gradient_{suffix}" if constants.get("GRADIENT") else f"_{suffix}"
            if "PIN" in constants:  # False for these tensors, which are not on a GPU
                constants["PIN"] = "bf16" in suffix and not torch.version.hip
            aligned = [n for n, x in given.items() if _is_aligned(x)]
            types = {n: _type(x) for n, x in given.items()}
            made.setdefault(name, Launch(name, kernel, types, constants, aligned, options))

        return launch

    with patch.object(triton.KernelInterface, "__getitem__", instead):
        step()
    return list(made.values())


def _type(value: Tensor | float) -> str:
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


def _is_aligned(value: Tensor | float) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)
