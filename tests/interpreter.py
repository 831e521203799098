"""Make Triton's CPU interpreter right for bfloat16; importing this module patches it.

The interpreter keeps a bfloat16 as its 16 bits in an integer. Products and arithmetic then work on
the integers, silently, and a float32 is cut, not rounded. Here both compute in float32 and round to
nearest even. The environment must hold ``TRITON_INTERPRET=1`` before triton is imported.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

assert os.environ.get("TRITON_INTERPRET") == "1", "the kernels would be compiled"

BFLOAT16_NAN = np.uint16(0x7FC0)


def widened(bits: np.ndarray) -> np.ndarray:
    """Bits of bfloat16 as float32."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """Bits of the bfloat16 nearest to a float32, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), BFLOAT16_NAN, up.astype(np.uint16))


def is_bfloat16(handle: Any) -> bool:
    return handle.dtype.scalar == tl.bfloat16


def as_float32(handle: Any) -> Any:
    """The same values as a handle that numpy computes with."""
    return TensorHandle(widened(handle.data), tl.float32) if is_bfloat16(handle) else handle


def _patch(name: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    setattr(InterpreterBuilder, name, made(getattr(InterpreterBuilder, name)))


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast(builder: Any, source: Any, target: Any, *rounding: Any) -> Any:
        if tl.bfloat16 not in (source.dtype.scalar, target.scalar):
            return original(builder, source, target, *rounding)
        if target.scalar == tl.bfloat16:
            return (
                source if is_bfloat16(source) else TensorHandle(rounded(source.data), tl.bfloat16)
            )
        if target.scalar == tl.float32:
            return as_float32(source)
        return original(builder, as_float32(source), target, *rounding)

    return cast


def _dot(original: Callable[..., Any]) -> Callable[..., Any]:
    def dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return original(builder, as_float32(a), as_float32(b), *rest)

    return dot


def _arithmetic(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of one, two or three arguments, of which the last has the dtype of the result."""

    def compute(builder: Any, *arguments: Any) -> Any:
        *handles, operation = arguments
        if not all(map(is_bfloat16, handles)):
            return original(builder, *arguments)
        result = operation(*(widened(handle.data) for handle in handles))
        if result.dtype == np.bool_:
            return TensorHandle(result, tl.int1)
        return TensorHandle(rounded(result), tl.bfloat16)

    return compute


def _constant(builder: Any, value: float) -> Any:
    return TensorHandle(rounded(np.array([value], dtype=np.float32)), tl.bfloat16)


for _name in ("cast_impl", "create_fp_to_fp"):
    _patch(_name, _cast)
_patch("create_dot", _dot)
for _name in ("unary_op", "binary_op"):
    _patch(_name, _arithmetic)
if not hasattr(InterpreterBuilder, "get_bf16"):  # before triton 3.7
    InterpreterBuilder.get_bf16 = _constant  # pyright: ignore[reportAttributeAccessIssue]
