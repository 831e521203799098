"""What the kernels call: the tokens of a program, gates, feature maps, operands of products.

Gates are logarithms to base two that are not positive. ``GATE`` is ``"none"``, ``"head"`` (one
number for a head) or ``"token"`` (one for a token and head). ``G_i`` is the sum of a chunk's
logarithms up to and including token i, so each chunk starts anew. Only differences ``G_i - G_j``
with i >= j are raised to powers; none of them overflows.

A feature is computed in float32 and rounded once. The slope is a function of the feature, so that
the argument does not have to be kept. A new feature map gets a branch in ``feature``, one in
``times_slope`` and an entry in ``kernels/feature_maps.py``.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
COPIES = tl.constexpr(16)
"""Rows of the smallest product."""
HALF = tl.constexpr(8)
"""Of them hold the rounded number, as many the remainder."""
COLUMNS = tl.constexpr(4)
"""Of the table of segments."""


@triton.jit
def segment(table_ptr, H: tl.constexpr):
    """Head, index of the state, row, first token and number of tokens of a program."""
    row_ptr = table_ptr + COLUMNS * (tl.program_id(0) // H)
    i_h, i_state = tl.program_id(0) % H, tl.program_id(0).to(tl.int64)
    return i_h, i_state, tl.load(row_ptr).to(tl.int64), tl.load(row_ptr + 1), tl.load(row_ptr + 2)


@triton.jit
def first_chunk(table_ptr, H: tl.constexpr):
    """Index of a program's first chunk, among those of all segments."""
    return tl.load(table_ptr + COLUMNS * (tl.program_id(0) // H) + 3).to(tl.int64)


@triton.jit
def cumulated(gate_ptr, o_c, n_left, GATE: tl.constexpr):
    """``G`` of a chunk, and its last one; tokens beyond n_left keep everything."""
    if GATE == "token":
        g = tl.load(gate_ptr + o_c, mask=o_c < n_left, other=0.0)
        G = tl.cumsum(g, 0)
        total = tl.sum(g, 0)
    else:
        g = tl.load(gate_ptr)
        G = g * tl.minimum(o_c + 1, n_left).to(tl.float32)
        total = g * tl.minimum(o_c.shape[0], n_left).to(tl.float32)
    return G, total


@triton.jit
def between(G_rows, G_columns, mask):
    """How much of each column's token each row's token still sees; zero where masked."""
    return tl.exp2(tl.where(mask, G_rows - G_columns, float("-inf")))


@triton.jit
def scaled(x, factor):
    """Rows of an operand times a factor, rounded again."""
    return (x.to(tl.float32) * factor[:, None]).to(x.dtype)


@triton.jit
def _log1p(e, EXACT: tl.constexpr):
    """``log(1 + e)`` for 0 <= e <= 1."""
    if EXACT:
        # The factor corrects the rounding of 1 + e: the relative error is that of two roundings.
        u = 1.0 + e
        r = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    else:
        # Minimax for log1p(e) / e on [0, 1]: 4.8e-4, a quarter of half an ulp of bfloat16. The
        # logarithm of the device library takes three times the instructions.
        r = e * (((-0.078184 * e + 0.260694) * e - 0.489696) * e + 1.0)
    return r


@triton.jit
def feature(x, PHI: tl.constexpr, EXACT: tl.constexpr):
    """phi(x), float32; EXACT to float32's precision, otherwise to bfloat16's."""
    if PHI == "softplus":
        f = tl.maximum(x, 0.0) + _log1p(tl.exp2(tl.abs(x) * -LOG2_E), EXACT)
    elif PHI == "elu+1":
        f = tl.where(x > 0, x + 1.0, tl.exp2(tl.minimum(x, 0.0) * LOG2_E))
    elif PHI == "relu":
        f = tl.where(x < 0.0, 0.0, x)  # keeps NaN
    else:
        f = x
    return f


@triton.jit
def times_slope(d, f, scale, PHI: tl.constexpr, EXACT: tl.constexpr):
    """``d phi'(x)``, float32, where ``phi(x) = f scale``; scale is a number or a column."""
    if PHI == "softplus":
        if EXACT:
            f *= scale
            # 1 - exp(-f) cancels for a small f; a series of four terms is exact to 1e-7 there.
            series = f * (1.0 - f / 2 * (1.0 - f / 3 * (1.0 - f / 4)))
            d *= tl.where(f < 0.0625, series, 1.0 - tl.exp2(f * -LOG2_E))
        else:
            d -= d * tl.exp2(f * (scale * -LOG2_E))
    elif PHI == "elu+1":
        d *= tl.minimum(f * scale, 1.0)
    elif PHI == "relu":
        d = tl.where(f > 0, d, 0.0)
    return d


@triton.jit
def unpacked(x, PIN: tl.constexpr):
    """The same numbers in float32; from bfloat16 in one instruction an element, not 1.5."""
    if PIN:
        x = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
            "=r,=r,r", [x], dtype=tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        x = x.to(tl.float32)
    return x


@triton.jit
def pinned(x, PIN: tl.constexpr):
    """The same value, 16 bits wide, opaque to the compiler.

    Without it, a feature is recomputed for each register layout that a product needs. The
    interpreter cannot run assembly, so PIN is off there, for float32 and for GPUs of AMD.
    """
    if PIN:
        x = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2
        )
    return x


@triton.jit
def in_rows(x, eye):
    """The same numbers in float32, in the register layout of a product with the unit matrix.

    Tensor cores move them. A conversion would let the compiler compute the feature a second time in
    that layout, even where it is pinned.
    """
    return tl.dot(x, eye) if x.dtype == tl.bfloat16 else x.to(tl.float32)


@triton.jit
def high_and_low(x, y):
    """x in y's dtype in 16 rows: eight hold x rounded, eight hold the remainder.

    The sum of a product over all 16 is then eight times the product with x, to at least 16 bits.
    """
    high = x.to(y.dtype)
    low = (x - high.to(tl.float32)).to(y.dtype)
    return tl.where(tl.arange(0, COPIES)[:, None] < HALF, high, low)
