"""Implementations of causal attention; this package does not import configurations.

Each file in a folder of attention is an implementation, found by its file name. All files of a
folder compute the same function with the same signature; they differ in speed and memory.

Linear: ``attend(q_BTHK, k_BTHK, v_BTHV, feature_map, normalize) -> y_BTHV`` with
``y_t = sum_{s<=t} a_ts v_s``, ``a_ts = phi(q_t) . phi(k_s)``, divided by ``sum_{s<=t} a_ts`` if
``normalize``. Softmax: ``attend(q_BTHK, k_BTHK, v_BTHV) -> y_BTHV`` with
``a_ts = exp(q_t . k_s / sqrt(K))``, divided by its sum. ``gated/`` and ``gated_delta/`` have more
arguments and return the state as well; see their ``chunked.py``.

The result has the dtype of ``v``; sums are computed in at least float32. Arguments may be views of
one packed projection ``[B, T, 3, H, K]``; only the last axis must be contiguous.

Public functions, for models of one's own: ``linear_attention``, which is the linear one with
gates, states and sequences of several lengths, and ``gated_delta_attention``, the gated delta rule.
On CUDA devices they run in Triton kernels, elsewhere in plain PyTorch.

Legend: B batch, T tokens, H heads, K key width, V value width, C chunk, N chunks.
"""

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


def names(kind: str) -> list[str]:
    """Names of the implementations of a kind."""
    return list(registry.sources(f"kernels/{kind}"))


def load(kind: str, name: str) -> Any:
    """The ``attend`` function of ``kernels/<kind>/<name>.py``.

    Raises:
        UserError: There is no such file.
    """
    if name not in names(kind):
        raise UserError(f"implementation {name!r} has no file; {choose(name, names(kind))}")
    return import_module(f"{__name__}.{kind}.{name}").attend


def takes_chunk(attend: Callable[..., Tensor]) -> bool:
    """Whether an implementation has the parameter ``chunk``."""
    return "chunk" in signature(attend).parameters


def check(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, grouped: bool = False) -> None:
    """Raise ValueError if shapes, dtypes or devices do not match. All implementations call this.

    With ``grouped``, keys and values may have fewer heads, each for as many heads of queries.
    """
    arguments = {"q": q_BTHK, "k": k_BTHK, "v": v_BTHV}
    for name, x in arguments.items():
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
    (*batch, heads, width), shared = q_BTHK.shape, k_BTHK.shape[2]
    if grouped and shared and heads % shared:
        raise ValueError(f"k has {shared} heads; allowed: a divisor of the {heads} of q")
    expected = (*batch, shared if grouped else heads, width)
    if k_BTHK.shape != expected:
        raise ValueError(
            f"q has shape {tuple(q_BTHK.shape)} and k {tuple(k_BTHK.shape)}; allowed: equal shapes"
        )
    if v_BTHV.shape[:3] != k_BTHK.shape[:3]:
        raise ValueError(
            f"v has shape {tuple(v_BTHV.shape)}; allowed: {tuple(k_BTHK.shape[:3])} and any width"
        )
    if not all(v_BTHV.shape) or not all(k_BTHK.shape):
        raise ValueError(
            f"v has shape {tuple(v_BTHV.shape)}; allowed: at least one sequence, token, head, width"
        )


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


# Last, because it uses what is above.
from lmscaling.kernels.functional import State, linear_attention  # noqa: E402
from lmscaling.kernels.gated_delta.chunked import attend as gated_delta_attention  # noqa: E402

__all__ = ["State", "gated_delta_attention", "linear_attention"]
