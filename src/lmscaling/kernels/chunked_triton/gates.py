"""Gates: how much of the state a token keeps, as logarithms to base two that are not positive.

``GATE`` is ``"none"``, ``"head"`` (one number for a head) or ``"token"`` (one for a token and
head). ``G_i`` is the sum of a chunk's logarithms up to and including token i, so each chunk starts
anew. Only differences ``G_i - G_j`` with i >= j are raised to powers; none of them overflows.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl


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
