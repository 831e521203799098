"""Implementations of causal attention; this package does not import configurations.

Each file in a folder of attention is an implementation, found by its file name, and so is each
function of ``forms.py``. All of a folder compute the same function with the same signature; they
differ in speed and memory.

Linear: ``attend(q_BTHK, k_BTHK, v_BTHV, feature_map, normalize) -> y_BTHV``, see
``linear/forms.py``. Softmax: ``attend(q_BTHK, k_BTHK, v_BTHV) -> y_BTHV``, see
``softmax/forms.py``. ``gated/`` and ``gated_delta/`` have more arguments and return the state as
well; see their ``plain.py``. Arguments may be views of one packed projection ``[B, T, 3, H, K]``;
only the last axis must be contiguous.

Legend: B batch, T tokens, H heads, K key width, V value width, C chunk, N chunks.
"""

import math
import warnings
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from lmscaling import registry
from lmscaling.errors import UserError, choose

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
OLDEST = (8, 0)
"""The first compute capability with bfloat16 tensor cores, which Triton's products need."""


def load(kind: str, name: str) -> Any:
    """The function ``attend`` of ``kernels/<kind>/<name>.py``, or ``<name>`` of ``forms.py``.

    Raises:
        UserError: There is neither.
    """
    if name not in (known := registry.implementations_of(kind)):
        raise UserError(f"implementation {name!r} has no file; {choose(name, known)}")
    if name in registry.sources(f"kernels/{kind}"):
        return import_module(f"{__name__}.{kind}.{name}").attend
    return getattr(import_module(f"{__name__}.{kind}.{registry.FORMS}"), name)


def takes_chunk(attend: Callable[..., Tensor]) -> bool:
    """Whether an implementation has the parameter ``chunk``."""
    return "chunk" in signature(attend).parameters


def check(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor) -> None:
    """Raise ValueError if shapes, dtypes or devices do not match. All implementations call this."""
    for name, x in {"q": q_BTHK, "k": k_BTHK, "v": v_BTHV}.items():
        if x.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; allowed: 4 axes, [B, T, H, K]")
        if x.dtype not in DTYPES:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ValueError(f"{name} is {str(x.dtype).removeprefix('torch.')}; allowed: {allowed}")
        if x.dtype != v_BTHV.dtype or x.device != v_BTHV.device:
            raise ValueError(
                f"{name} is {x.dtype} on {x.device} and v is {v_BTHV.dtype} on {v_BTHV.device}; "
                "allowed: the same dtype and device"
            )
    q, k, v = (tuple(x.shape) for x in (q_BTHK, k_BTHK, v_BTHV))
    if k != q:
        raise ValueError(f"q has shape {q} and k {k}; allowed: equal shapes")
    if v[:3] != k[:3]:
        raise ValueError(f"v has shape {v}; allowed: {k[:3]} and any width")
    if not all(v + k):
        raise ValueError(f"v has shape {v}; allowed: at least one sequence, token, head, width")


def check_chunk(chunk: int) -> None:
    """Raise ValueError if the chunk is not a power of two."""
    if chunk < 1 or chunk & (chunk - 1):
        nearest = 2 ** round(math.log2(max(chunk, 1)))
        raise ValueError(f"chunk is {chunk}; allowed: powers of two; nearest is {nearest}")


def at_least_float32(x: Tensor) -> Tensor:
    """Convert lower precisions to float32, because long sums need it; float64 is unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def constant(asked: Callable[[int], bool]) -> Callable[[int], bool]:
    """Let a compiler ask a function once and take its answer for a constant.

    ``torch.compiler.assume_constant_result`` does no more, but loads the compiler, which would read
    its settings before ``runtime.gpus`` has made them.
    """
    asked._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return asked


def on_triton_device(x: Tensor) -> bool:
    """Whether Triton's kernels can run where a tensor is; warns once about a GPU without."""
    return x.is_cuda and _runs_triton(x.device.index)


@constant
def _runs_triton(device: int) -> bool:
    """Of a GPU, by its number. AMD's compute capabilities are other numbers than NVIDIA's."""
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip or capability >= OLDEST:
        return True
    found, oldest = (".".join(map(str, numbers)) for numbers in (capability, OLDEST))
    warnings.warn(
        f"{torch.cuda.get_device_name(device)} has compute capability {found} and the Triton "
        f"kernels need {oldest}: plain PyTorch is used, which is slower",
        stacklevel=2,
    )
    return False
