"""The Triton kernel of `embedkit.kernels.add_norm`.

    s_t = residual_t + x_t,  or residual_t + rms(x_t) · post_norm
    y_t = (s_t − μ_t) / √(σ²_t + eps) · weight + bias,  or rms(s_t) · weight        rms(x) = x / √(mean x² + eps)

Sums are float32; the norm reads them before they are rounded to the type of the residual stream. A row is read once
and stays in registers.
"""

# Functions below @triton.jit are written in another language with the syntax of Python.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["forward"]


@triton.jit(do_not_specialize=["tokens"])
def forward(
    x_ptr, residual_ptr, post_ptr, weight_ptr, bias_ptr, out_ptr, tokens, eps,
    H: tl.constexpr, RESIDUAL: tl.constexpr, POST: tl.constexpr, BIAS: tl.constexpr, RMS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Each program computes BLOCK_T tokens. x, residual and out have rows of H values; out may alias x.

    RESIDUAL: add x to it, in its memory; else it is not read. POST: whether x is normalized before the sum. RMS: the
    norm of the sum is that of the root of the mean square, which POST always is.
    """
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, BLOCK_H)
    there = column < H
    mask = (rows < tokens)[:, None] & there[None, :]
    offsets = rows.to(tl.int64)[:, None] * H + column[None, :]  # tokens · H may exceed 2³¹
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if POST:
        post_norm = tl.load(post_ptr + column, mask=there, other=0.0).to(tl.float32)
        x = x / tl.sqrt_rn(tl.sum(x * x, axis=1) / H + eps)[:, None] * post_norm[None, :]
    if RESIDUAL:
        x += tl.load(residual_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(residual_ptr + offsets, x.to(residual_ptr.dtype.element_ty), mask=mask)
    if not RMS:
        mean = tl.sum(x, axis=1) / H
        x = tl.where(there[None, :], x - mean[:, None], 0.0)
    weight = tl.load(weight_ptr + column, mask=there, other=0.0).to(tl.float32)
    x = x / tl.sqrt_rn(tl.sum(x * x, axis=1) / H + eps)[:, None] * weight[None, :]
    if BIAS:
        x += tl.load(bias_ptr + column, mask=there, other=0.0).to(tl.float32)[None, :]
    tl.store(out_ptr + offsets, x.to(out_ptr.dtype.element_ty), mask=mask)
