"""The Triton kernel of `embedkit.kernels.bias_gelu`.

    a = x + b
    gelu(a)     = a Φ(a) = a / 2 · (1 + erf(a / √2))
    gelu_new(a) = a / 2 · (1 + tanh u) = a / (1 + e^(−2u))        u = √(2/π) (a + 0.044715 a³)

The second form of gelu_new avoids cancellation where tanh u is near −1. Everything is float32.
"""

# Functions below @triton.jit are written in another language with the syntax of Python.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["forward", "gelu"]


@triton.jit
def gelu(x, NEW: tl.constexpr):
    """GELU of float32 values; NEW: gelu_new."""
    if NEW:
        y = x / (1 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    else:
        y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    return y


@triton.jit(do_not_specialize=["tokens"])
def forward(
    x_ptr, bias_ptr, out_ptr, tokens,
    SIZE: tl.constexpr, NEW: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Each program computes BLOCK_T rows of BLOCK_I columns; blocks of the same rows are adjacent in the grid.

    x, out: (tokens, SIZE), possibly the same memory. NEW: gelu_new.
    """
    STRIPS: tl.constexpr = (SIZE + BLOCK_I - 1) // BLOCK_I
    rows = (tl.program_id(0) // STRIPS) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = (tl.program_id(0) % STRIPS) * BLOCK_I + tl.arange(0, BLOCK_I)
    mask = (rows < tokens)[:, None] & (column < SIZE)[None, :]
    offsets = rows.to(tl.int64)[:, None] * SIZE + column[None, :]  # tokens · SIZE may exceed 2³¹
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + column, mask=column < SIZE, other=0.0).to(tl.float32)[None, :]
    tl.store(out_ptr + offsets, gelu(x, NEW).to(out_ptr.dtype.element_ty), mask=mask)
