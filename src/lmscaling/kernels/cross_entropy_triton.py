"""The kernel of the cross-entropy of rows of logits: losses, and the gradient in their place.

One program per row reads it for its loss, and again to write the gradient over it. A row of 50,304
logits in bfloat16 has 100 kB, so the second reading comes from the L2 cache of a recent device. The
maximum and the sum of exponentials are found together, lane by lane.

Source: the online sum of Milakov and Gimelshein 2018 (arXiv:1805.02867), algorithm 3.

Legend: N tokens, V vocabulary.
"""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits of a row that a program holds at one time."""
WARPS = 8


@triton.jit(do_not_specialize=["scale"])
def _cross_entropy_kernel(
    logits_ptr, y_ptr, loss_ptr, scale, V, GRADIENT: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    """The loss of a row; with GRADIENT, ``scale`` times its gradient in place of the logits."""
    i_n = tl.program_id(0).to(tl.int64)
    o_v = tl.arange(0, BLOCK_V)
    logits_ptr += i_n * V
    target = tl.load(y_ptr + i_n).to(tl.int32)
    # Every thread reads this before the reductions below, so before another writes there.
    at_target = tl.load(logits_ptr + target).to(tl.float32)

    # Finite, because the difference of two infinities would be NaN.
    peaks = tl.full([BLOCK_V], -1e38, tl.float32)
    sums = tl.zeros([BLOCK_V], tl.float32)
    for i_v in range(0, V, BLOCK_V):
        m_v = o_v < V - i_v
        b_x = tl.load(logits_ptr + i_v + o_v, mask=m_v, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peaks, b_x)
        sums = sums * tl.exp(peaks - higher) + tl.exp(b_x - higher)
        peaks = higher
    peak = tl.max(peaks, 0)
    total = tl.sum(sums * tl.exp(peaks - peak), 0)
    tl.store(loss_ptr + i_n, tl.log(total) + (peak - at_target))
    if GRADIENT:
        for i_v in range(0, V, BLOCK_V):
            m_v = o_v < V - i_v
            b_x = tl.load(logits_ptr + i_v + o_v, mask=m_v, other=float("-inf")).to(tl.float32)
            b_p = tl.exp(b_x - peak) / total
            b_d = scale * tl.where(i_v + o_v == target, b_p - 1.0, b_p)
            tl.store(logits_ptr + i_v + o_v, b_d.to(logits_ptr.dtype.element_ty), mask=m_v)


def cross_entropy(logits_NV: Tensor, y_N: Tensor, scale: float | None) -> Tensor:
    """Losses ``[N]`` in float32; see ``kernels.cross_entropy``.

    The logits are contiguous float32 or bfloat16, and the targets contiguous int64. With ``scale``
    the logits are overwritten by their gradient times it.

    Cost:
        In bfloat16 a logit is read twice and written once, 6 bytes; without a gradient 2.
    """
    N, V = logits_NV.shape
    assert all(x.is_contiguous() for x in (logits_NV, y_N))
    loss_N = logits_NV.new_empty(N, dtype=torch.float32)
    with torch.cuda.device_of(logits_NV):
        _cross_entropy_kernel[(N,)](
            logits_NV, y_N, loss_N, scale or 0.0, V,
            GRADIENT=scale is not None, BLOCK_V=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return loss_N
