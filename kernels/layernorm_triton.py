"""The Triton kernels of `embedkit.kernels.layernorm`.

    x_t = word[id_t] + position[p_t] + type[τ_t]     (embed)
    x_t = x_t + x_bias + residual_t                  (residual)
    y_t = (x_t − μ_t) / √(σ²_t + eps) · weight + bias        μ_t, σ²_t: mean and variance of row t

Sums are float32, and the variance is computed from the differences to the mean: Σ x² − μ² would cancel. A row is read
once and stays in registers; the result of a token depends on its row only.
"""

# Functions below @triton.jit are written in another language with the syntax of Python.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from .quantize_triton import quantize_and_store_rows

__all__ = ["embed", "residual"]


@triton.jit
def _normalize_and_store(
    x, out_ptr, q_ptr, scale_ptr, shift_ptr, weight_ptr, bias_ptr, rows, tokens, eps,
    H: tl.constexpr, BLOCK_H: tl.constexpr, QUANTIZE: tl.constexpr,
):  # fmt: skip
    """Write the layer norm of ``x`` (R, BLOCK_H) float32, zero beyond column H, to the rows of ``out``.

    QUANTIZE: "", or "fp8" or "int8" to write the rows of ``q``, ``scale`` and ``shift`` as well.
    """
    column = tl.arange(0, BLOCK_H)
    mean = tl.sum(x, axis=1) / H
    x = tl.where((column < H)[None, :], x - mean[:, None], 0.0)
    deviation = tl.sqrt_rn(tl.sum(x * x, axis=1) / H + eps)
    weight = tl.load(weight_ptr + column, mask=column < H, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=column < H, other=0.0).to(tl.float32)
    x = x / deviation[:, None] * weight[None, :] + bias[None, :]
    offsets = rows.to(tl.int64)[:, None] * H + column[None, :]
    mask = (rows < tokens)[:, None] & (column < H)[None, :]
    tl.store(out_ptr + offsets, x.to(out_ptr.dtype.element_ty), mask=mask)
    if QUANTIZE != "":
        quantize_and_store_rows(x, q_ptr, scale_ptr, shift_ptr, rows, tokens, H, BLOCK_H, QUANTIZE)


@triton.jit(do_not_specialize=["tokens"])
def embed(
    ids_ptr, positions_ptr, types_ptr, word_ptr, position_ptr, type_ptr, weight_ptr, bias_ptr, out_ptr,
    q_ptr, scale_ptr, shift_ptr, tokens, eps,
    H: tl.constexpr, POSITION: tl.constexpr, TYPE: tl.constexpr, TYPE_IDS: tl.constexpr,
    QUANTIZE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Each program computes BLOCK_T tokens. Tables have contiguous rows of H values.

    POSITION, TYPE: whether there is such a table; TYPE_IDS: whether tokens have types; if not, all have type 0.
    """
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, BLOCK_H)
    inside = rows < tokens
    mask = inside[:, None] & (column < H)[None, :]
    ids = tl.load(ids_ptr + rows, mask=inside, other=0).to(tl.int64)  # vocabulary · H may exceed 2³¹
    x = tl.load(word_ptr + ids[:, None] * H + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if POSITION:
        ids = tl.load(positions_ptr + rows, mask=inside, other=0).to(tl.int64)
        x += tl.load(position_ptr + ids[:, None] * H + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if TYPE:
        if TYPE_IDS:
            ids = tl.load(types_ptr + rows, mask=inside, other=0).to(tl.int64)
            x += tl.load(type_ptr + ids[:, None] * H + column[None, :], mask=mask, other=0.0).to(tl.float32)
        else:
            x += tl.load(type_ptr + column, mask=column < H, other=0.0).to(tl.float32)[None, :]
    _normalize_and_store(
        x, out_ptr, q_ptr, scale_ptr, shift_ptr, weight_ptr, bias_ptr, rows, tokens, eps, H, BLOCK_H, QUANTIZE
    )


@triton.jit(do_not_specialize=["tokens"])
def residual(
    x_ptr, residual_ptr, x_bias_ptr, weight_ptr, bias_ptr, out_ptr,
    q_ptr, scale_ptr, shift_ptr, tokens, eps,
    H: tl.constexpr, X_BIAS: tl.constexpr, QUANTIZE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Each program computes BLOCK_T tokens. x, residual and out have rows of H values; out may alias x or residual."""
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, BLOCK_H)
    mask = (rows < tokens)[:, None] & (column < H)[None, :]
    offsets = rows.to(tl.int64)[:, None] * H + column[None, :]  # tokens · H may exceed 2³¹
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(residual_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if X_BIAS:
        x += tl.load(x_bias_ptr + column, mask=column < H, other=0.0).to(tl.float32)[None, :]
    _normalize_and_store(
        x, out_ptr, q_ptr, scale_ptr, shift_ptr, weight_ptr, bias_ptr, rows, tokens, eps, H, BLOCK_H, QUANTIZE
    )
