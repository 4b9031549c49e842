"""The Triton kernel of `embedkit.kernels.gated`.

    y = f(a) · b        a, b: the halves of a row of x; f: silu, gelu, gelu_new or relu

silu(a) = a / (1 + e^(−a)); `bias_gelu_triton` has the GELUs. Everything is float32.
"""

# Functions below @triton.jit are written in another language with the syntax of Python.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from .bias_gelu_triton import gelu

__all__ = ["forward"]


@triton.jit(do_not_specialize=["tokens"])
def forward(
    x_ptr, out_ptr, tokens,
    SIZE: tl.constexpr, FUNCTION: tl.constexpr, SECOND: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Each program computes BLOCK_T rows of BLOCK_I columns; blocks of the same rows are adjacent in the grid.

    x: (tokens, 2 SIZE); out: (tokens, SIZE). SECOND: the second half of a row goes through the function.
    """
    STRIPS: tl.constexpr = (SIZE + BLOCK_I - 1) // BLOCK_I
    rows = (tl.program_id(0) // STRIPS) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = (tl.program_id(0) % STRIPS) * BLOCK_I + tl.arange(0, BLOCK_I)
    mask = (rows < tokens)[:, None] & (column < SIZE)[None, :]
    rows = rows.to(tl.int64)[:, None]  # tokens · 2 SIZE may exceed 2³¹
    first = tl.load(x_ptr + rows * (2 * SIZE) + column[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + rows * (2 * SIZE) + SIZE + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if SECOND:
        first, second = second, first
    if FUNCTION == "silu":
        first = first / (1 + tl.exp(-first))
    elif FUNCTION == "relu":
        first = tl.where(first < 0, 0.0, first)  # keeps NaN
    else:
        first = gelu(first, FUNCTION == "gelu_new")
    tl.store(
        out_ptr + rows * SIZE + column[None, :], (first * second).to(out_ptr.dtype.element_ty), mask=mask
    )
