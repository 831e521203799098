"""Which tokens and which head a program processes, from the table of ``kernels/segments.py``."""

# Triton compiles these functions; its type stubs accept neither tiles nor constants.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import triton
import triton.language as tl

COLUMNS = tl.constexpr(4)


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
