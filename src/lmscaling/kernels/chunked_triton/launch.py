"""Launch the kernels of one call, or list what to compile without a device."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmscaling.kernels import feature_maps
from lmscaling.kernels.chunked_triton.backward_kv import _chunked_backward_kv_kernel
from lmscaling.kernels.chunked_triton.backward_q import _chunked_backward_q_kernel
from lmscaling.kernels.chunked_triton.config import Config
from lmscaling.kernels.chunked_triton.forward import _chunked_forward_kernel
from lmscaling.kernels.chunked_triton.plan import Plan, Shape, block, configured
from lmscaling.kernels.chunked_triton.sums import _sums_backward_kernel, _sums_forward_kernel

POINTERS = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}


@dataclass(frozen=True, kw_only=True)
class Build:
    """Everything needed to compile a kernel for a device that is absent."""

    kernel: Any
    signature: dict[str, str]
    """Type of each argument that is not a constant. Pointers and strides are multiples of 16."""
    constants: dict[str, Any]
    warps: int
    stages: int


def builds(shape: Shape, dtype: torch.dtype, plan: Plan) -> list[Build]:
    """Every kernel that a forward and a backward pass launch."""
    kernels = [
        (_chunked_forward_kernel, plan.forward),
        (_chunked_backward_q_kernel, plan.backward_q),
        (_chunked_backward_kv_kernel, plan.backward_kv),
    ]
    if plan.segments > 1:
        kernels += [(_sums_forward_kernel, plan.sums), (_sums_backward_kernel, plan.sums)]
    result = []
    for kernel, config in kernels:
        constants = _constants(kernel, shape, config, plan.segments, dtype == torch.bfloat16)
        arguments = [name for name in kernel.arg_names if name not in constants]
        signature = {name: _type(name, dtype) for name in arguments}
        result.append(
            Build(
                kernel=kernel,
                signature=signature,
                constants=constants,
                warps=config.warps,
                stages=config.stages,
            )
        )
    return result


def forward(qkv_BTW: Tensor, shape: Shape, plan: Plan) -> tuple[Tensor, Tensor]:
    """y_BTHV, and 1/D in float32, ``[B, H, T]``, without elements if not normalized."""
    B, T, W = qkv_BTW.shape
    assert shape.heads * (2 * shape.key + shape.value) == W
    assert qkv_BTW.stride(2) == 1
    y_BTHV = qkv_BTW.new_empty(B, T, shape.heads, shape.value)
    tokens = T if shape.normalize else 0
    reciprocal_BHT = qkv_BTW.new_empty(B, shape.heads, tokens, dtype=torch.float32)
    before = _before(qkv_BTW, shape, plan)
    arguments = (y_BTHV, reciprocal_BHT, *before)
    _launch(_chunked_forward_kernel, plan.forward, shape, plan, qkv_BTW, *arguments)
    return y_BTHV, reciprocal_BHT


def backward(
    qkv_BTW: Tensor, dy_BTHV: Tensor, reciprocal_BHT: Tensor, shape: Shape, plan: Plan
) -> Tensor:
    """The gradient with respect to ``qkv_BTW``, packed."""
    dqkv_BTW = torch.empty_like(qkv_BTW, memory_format=torch.contiguous_format)
    e_BHT = torch.empty_like(reciprocal_BHT)
    given = (dy_BTHV.contiguous(), reciprocal_BHT, e_BHT)
    before = _before(qkv_BTW, shape, plan)
    arguments = (*given, *before, dqkv_BTW)
    _launch(_chunked_backward_q_kernel, plan.backward_q, shape, plan, qkv_BTW, *arguments)
    after = _after(qkv_BTW, given, shape, plan)
    arguments = (*given, *after, dqkv_BTW)
    _launch(_chunked_backward_kv_kernel, plan.backward_kv, shape, plan, qkv_BTW, *arguments)
    return dqkv_BTW


def state(qkv_BTW: Tensor, shape: Shape, plan: Plan) -> tuple[Tensor, Tensor]:
    """Sums over all tokens of phi(k) v^T, ``[B, H, K, V]``, and of phi(k), ``[B, H, K]``."""
    sums_BHPKV, sums_BHPK = _empty_sums(qkv_BTW, shape, plan)
    _launch(_sums_forward_kernel, plan.sums, shape, plan, qkv_BTW, sums_BHPKV, sums_BHPK)
    kv_BHKV = sums_BHPKV.sum(2)[..., : shape.key, : shape.value]
    return kv_BHKV.contiguous(), sums_BHPK.sum(2)[..., : shape.key].contiguous()


def _before(qkv_BTW: Tensor, shape: Shape, plan: Plan) -> tuple[Tensor, Tensor]:
    """The state before each segment; a single segment does not read it."""
    if plan.segments == 1:
        return _unread(qkv_BTW)
    kv_BHPKV, k_BHPK = _empty_sums(qkv_BTW, shape, plan)
    _launch(_sums_forward_kernel, plan.sums, shape, plan, qkv_BTW, kv_BHPKV, k_BHPK)
    return _exclusive(kv_BHPKV), _exclusive(k_BHPK)


def _after(
    qkv_BTW: Tensor, given: tuple[Tensor, ...], shape: Shape, plan: Plan
) -> tuple[Tensor, Tensor]:
    """The state after each segment, summed in reverse."""
    if plan.segments == 1:
        return _unread(qkv_BTW)
    kv_BHPKV, k_BHPK = _empty_sums(qkv_BTW, shape, plan)
    _launch(_sums_backward_kernel, plan.sums, shape, plan, qkv_BTW, *given, kv_BHPKV, k_BHPK)
    return _exclusive(kv_BHPKV.flip(2)).flip(2), _exclusive(k_BHPK.flip(2)).flip(2)


def _unread(x: Tensor) -> tuple[Tensor, Tensor]:
    none = x.new_empty(0, dtype=torch.float32)
    return none, none


def _exclusive(sums_BHP: Tensor) -> Tensor:
    """For each segment, the sum over earlier segments; exactly zero for the first."""
    before_BHP = torch.zeros_like(sums_BHP)
    torch.cumsum(sums_BHP[:, :, :-1], 2, out=before_BHP[:, :, 1:])
    return before_BHP


def _empty_sums(qkv_BTW: Tensor, shape: Shape, plan: Plan) -> tuple[Tensor, Tensor]:
    """Memory for the states of all segments, with widths padded as in registers."""
    leading = (qkv_BTW.shape[0], shape.heads, plan.segments)
    key, value = block(shape.key), block(shape.value)
    kv_BHPKV = qkv_BTW.new_empty(*leading, key, value, dtype=torch.float32)
    return kv_BHPKV, qkv_BTW.new_empty(*leading, key, dtype=torch.float32)


def _launch(
    kernel: Any, config: Config, shape: Shape, plan: Plan, qkv_BTW: Tensor, *rest: Tensor
) -> None:
    """Launch one program per segment, head and sequence; heads vary fastest."""
    B, T, _ = qkv_BTW.shape
    pin = qkv_BTW.is_cuda and qkv_BTW.dtype == torch.bfloat16
    with torch.cuda.device_of(qkv_BTW):
        kernel[(B * plan.segments * shape.heads,)](
            qkv_BTW, *rest, *qkv_BTW.stride()[:2], T, plan.segment_tokens(T), plan.segments,
            **_constants(kernel, shape, config, plan.segments, pin),
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip


def _constants(
    kernel: Any, shape: Shape, config: Config, segments: int, pin: bool
) -> dict[str, Any]:
    """The constants that a kernel takes."""
    every = {
        "H": shape.heads,
        "K": shape.key,
        "V": shape.value,
        "BLOCK_C": config.chunk,
        "BLOCK_K": block(shape.key),
        "BLOCK_V": block(shape.value),
        "PHI": shape.feature_map,
        "EPSILON": feature_maps.find(shape.feature_map).epsilon,
        "NORMALIZE": shape.normalize,
        "SEGMENTED": segments > 1,
        "PIN": pin,
    }
    return {name: value for name, value in every.items() if name in kernel.arg_names}


def _type(argument: str, dtype: torch.dtype) -> str:
    """The type of an argument, by its name."""
    if argument in ("qkv_ptr", "y_ptr", "dy_ptr", "dqkv_ptr"):
        return POINTERS[dtype]
    return "*fp32" if argument.endswith("_ptr") else "i32"


def offline_cases(
    architecture: int,
) -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], int, int, list[str]]]:
    """What benchmarks/offline.py compiles for an architecture, numbered as in ``sm_90``.

    Yields name, kernel, types of the arguments, constants, warps, stages, and the arguments that
    are multiples of 16 in addition to the pointers.
    """
    for dtype, width in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float32, 64)):
        shape = Shape(heads=12, key=width, value=width, feature_map="softplus", normalize=True)
        plan = configured(architecture, dtype, shape, segments=2)
        for build in builds(shape, dtype, plan):
            strides = [n for n in build.signature if n.startswith("stride_")]
            name = build.kernel.__name__.strip("_").removesuffix("_kernel")
            short = POINTERS[dtype].removeprefix("*")
            case = (build.kernel, build.signature, build.constants, build.warps, build.stages)
            yield f"{name}_{short}_{width}", *case, strides
