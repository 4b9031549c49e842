"""Functions of the kernels that write 8 bits; the formulas are in `embedkit.kernels.quantize`."""

# Functions below @triton.jit are written in another language with the syntax of Python.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["quantize_and_store_rows", "symmetric"]


@triton.jit
def symmetric(x, PRODUCTS: tl.constexpr):
    """``x`` (R, C) in 8 bits around zero, and the scale (R,) of each row."""
    LARGEST: tl.constexpr = 127.0 if PRODUCTS == "int8" else 448.0
    scale = tl.max(tl.abs(x), axis=1) / LARGEST
    scale = tl.where(scale > 0, scale, 1.0)
    scaled = x / scale[:, None]
    if PRODUCTS == "int8":
        # Rounding of the quotient may exceed 127 by half a step at most; clamping removes that.
        q = tl.minimum(tl.maximum(tl.floor(scaled + 0.5), -127.0), 127.0).to(tl.int8)
    else:
        q = tl.minimum(tl.maximum(scaled, -448.0), 448.0).to(tl.float8e4nv)
    return q, scale


@triton.jit
def quantize_and_store_rows(
    x, q_ptr, scale_ptr, shift_ptr, rows, tokens,
    H: tl.constexpr, BLOCK_H: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Write the first H columns of ``x`` (R, BLOCK_H) float32 in 8 bits to the rows ``rows``."""
    column = tl.arange(0, BLOCK_H)
    there = (column < H)[None, :]
    if PRODUCTS == "int8":
        least = tl.min(tl.where(there, x, float("inf")), axis=1)
        scale = (tl.max(tl.where(there, x, float("-inf")), axis=1) - least) / 255.0
        scale = tl.where(scale > 0, scale, 1.0)
        steps = tl.floor((x - least[:, None]) / scale[:, None] + 0.5)
        q = (tl.minimum(tl.maximum(steps, 0.0), 255.0) - 128.0).to(tl.int8)
        tl.store(shift_ptr + rows, least + 128.0 * scale, mask=rows < tokens)
    else:
        q, scale = symmetric(tl.where(there, x, 0.0), PRODUCTS)
    tl.store(scale_ptr + rows, scale, mask=rows < tokens)
    offsets = rows.to(tl.int64)[:, None] * H + column[None, :]
    tl.store(q_ptr + offsets, q, mask=(rows < tokens)[:, None] & there)
