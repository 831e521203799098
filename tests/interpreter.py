"""Triton's interpreter made right for bf16; importing this changes the interpreter of the process.

That of 3.6 to 3.9 computes with the bit patterns of bf16 as if they were numbers and rounds float32
towards zero. Here each operation goes through float32 and rounds to nearest even, as on a GPU.
Constants in bf16, which 3.6 and 3.7 lack, and loops of 3.6 with NumPy 2.4 are added.
"""

import os

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, ReduceOps, TensorHandle

# Triton reads the variable when a kernel is defined.
assert os.environ.get("TRITON_INTERPRET") == "1"

cast = InterpreterBuilder.cast_impl
convert = InterpreterBuilder.create_fp_to_fp
unary = InterpreterBuilder.unary_op
binary = InterpreterBuilder.binary_op
patch_tensor = interpreter._patch_lang_tensor
add_up = ReduceOps.sum


def widen(pattern):
    return (pattern.astype(np.uint32) << 16).view(np.float32)


def narrow(value):
    """float32 to the bit patterns of the nearest bf16, of two the even one."""
    pattern = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32)
    rounded = (pattern + 0x7FFF + ((pattern >> 16) & 1)) >> 16
    return np.where(np.isnan(value), 0x7FC0, rounded).astype(np.uint16)


def is_bf16(handle):
    return handle.dtype.scalar == tl.bfloat16


def widened(handle):
    return TensorHandle(widen(handle.data), tl.float32) if is_bf16(handle) else handle


def narrowed(values):
    if values.dtype == np.bool_:
        return TensorHandle(values, tl.int1)
    return TensorHandle(narrow(values), tl.bfloat16)


def cast_impl(self, source, target):
    if is_bf16(source) == (target.scalar == tl.bfloat16):
        return cast(self, source, target)
    if is_bf16(source):
        source = widened(source)
        return source if target.scalar == tl.float32 else cast(self, source, target)
    return narrowed(np.asarray(source.data).astype(np.float32))


def create_fp_to_fp(self, source, target, rounding):
    if is_bf16(source) or target.scalar == tl.bfloat16:
        return cast_impl(self, source, target)
    return convert(self, source, target, rounding)


def create_dot(self, a, b, d, *options):
    """Summed in float64 and rounded once: the sums of a BLAS in float32 depend on the processor."""
    product = np.matmul(widened(a).data, widened(b).data, dtype=np.float64).astype(d.data.dtype)
    return TensorHandle(product + d.data, d.dtype.scalar)


def unary_op(self, x, do):
    return narrowed(do(widen(x.data))) if is_bf16(x) else unary(self, x, do)


def binary_op(self, x, y, do):
    if is_bf16(x) and is_bf16(y):
        return narrowed(do(widen(x.data), widen(y.data)))
    return binary(self, x, y, do)


def get_bf16(self, value):
    return TensorHandle(narrow(np.array([value], np.float32)), tl.bfloat16)


def patch_lang_tensor(tensor, scope):
    patch_tensor(tensor, scope)
    # The bounds of a loop are arrays of one element, which NumPy 2.4 no longer takes for a number.
    tensor.__index__ = lambda self: int(self.handle.data.item())


def total(self, input):
    """A sum of bf16 is float32, as of a compiled kernel."""
    return add_up(self, input.to(tl.float32) if input.dtype == tl.bfloat16 else input)


interpreter._patch_lang_tensor = patch_lang_tensor
ReduceOps.sum = total
for changed in (get_bf16, cast_impl, create_fp_to_fp, create_dot, unary_op, binary_op):
    setattr(InterpreterBuilder, changed.__name__, changed)
