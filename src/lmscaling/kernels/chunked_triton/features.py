"""Feature maps inside a kernel, and helpers for the operands of its products.

A feature is computed in float32 and rounded once. The slope is a function of the feature, as in
``kernels/feature_maps.py``, so that the argument does not have to be kept.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _log1p_of_exp(x, EXACT: tl.constexpr):
    """``log(1 + exp(x))`` for x <= 0."""
    e = tl.exp2(x * LOG2_E)
    if EXACT:
        # The factor corrects the rounding of 1 + e: the relative error is that of two roundings.
        u = 1.0 + e
        r = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    else:
        # Minimax for log1p(e) / e on [0, 1]: 8e-5, a fiftieth of bfloat16's ulp. The logarithm of
        # the device library takes three times the instructions.
        p = 0.04311 * e - 0.16136
        p = p * e + 0.30922
        p = p * e - 0.49777
        p = p * e + 1.0
        r = e * p
    return r


@triton.jit
def feature(x, PHI: tl.constexpr, EXACT: tl.constexpr):
    """phi(x), float32; EXACT to float32's precision, otherwise to bfloat16's."""
    if PHI == "softplus":
        f = tl.maximum(x, 0.0) + _log1p_of_exp(-tl.abs(x), EXACT)
    elif PHI == "elu+1":
        f = tl.where(x > 0, x + 1.0, tl.exp2(tl.minimum(x, 0.0) * LOG2_E))
    elif PHI == "relu":
        f = tl.maximum(x, 0.0)
    else:
        f = x
    return f


@triton.jit
def slope(f, PHI: tl.constexpr):
    """phi'(x) from f = phi(x), float32."""
    if PHI == "softplus":
        d = 1.0 - tl.exp2(-f * LOG2_E)
    elif PHI == "elu+1":
        d = tl.minimum(f, 1.0)
    elif PHI == "relu":
        d = tl.where(f > 0, 1.0, 0.0)
    else:
        d = tl.full(f.shape, 1.0, tl.float32)
    return d


@triton.jit
def pinned(x, PIN: tl.constexpr):
    """The same value, 16 bits wide, opaque to the compiler.

    Without it, a feature is recomputed for each register layout that a product needs. The
    interpreter cannot run assembly, so PIN is off there, and for float32.
    """
    if PIN:
        x = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2
        )
    return x


@triton.jit
def high_and_low(x, y, AXIS: tl.constexpr):
    """x in y's dtype in 16 rows or columns: eight hold x rounded, eight hold the remainder.

    The sum of a product over all 16 is then eight times the product with x, to at least 16 bits.
    """
    high = x.to(y.dtype)
    low = (x - high.to(tl.float32)).to(y.dtype)
    i_copy = tl.arange(0, 16)
    if AXIS == 0:
        r = tl.where(i_copy[:, None] < 8, high, low)
    else:
        r = tl.where(i_copy[None, :] < 8, high, low)
    return r
