"""The Triton kernel of `embedkit.kernels.quantized_linear`.

With a_mk = s_m q_mk + t_m (rows) or a_mk = s_mg q_mk (groups of 128 columns), W_nk = r_n w_nk:

    z_mn = Σ_k a_mk W_nk + b_n = s_m r_n Σ_k q_mk w_nk + t_m (r_n Σ_k w_nk) + b_n
    y_mn = activation(z_mn), in floating point or in groups of 8 bits again

int8 products accumulate in int32. fp8 products accumulate in float32: the tensor cores of sm_90 keep about 14 bits of
a sum, so each block of 128 columns is added to a float32 sum separately.
"""

# Functions below @triton.jit are written in another language with the syntax of Python.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from .bias_gelu_triton import gelu
from .quantize_triton import symmetric

__all__ = ["forward"]


@triton.jit(do_not_specialize=["tokens"])
def forward(
    x_ptr, x_scale_ptr, x_shift_ptr, weight_ptr, weight_scale_ptr, weight_sums_ptr, bias_ptr,
    out_ptr, out_scale_ptr, tokens,
    N: tl.constexpr, K: tl.constexpr, PRODUCTS: tl.constexpr, GROUPS: tl.constexpr, SHIFT: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, QUANTIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Each program computes BLOCK_M tokens x BLOCK_N outputs; programs of the same tokens are adjacent in the grid.

    x: (tokens, K) 8 bits; x_scale: (tokens,) or, with GROUPS, (tokens, ⌈K / BLOCK_K⌉); x_shift: (tokens,).
    weight: (N, K) 8 bits; its scale and sums (N,); bias (N,) of any floating type.
    out: (tokens, N); with QUANTIZE 8 bits, and out_scale (tokens, ⌈N / BLOCK_N⌉).
    """
    TILES_N: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    TILES_K: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    rows = (tl.program_id(0) // TILES_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile_n = tl.program_id(0) % TILES_N
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    inside = rows < tokens
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * K + k[None, :]  # tokens · K may pass 2³¹
    weight_ptrs = weight_ptr + n[None, :] * K + k[:, None]
    SUM: tl.constexpr = tl.int32 if PRODUCTS == "int8" else tl.float32
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32 if GROUPS else SUM)
    for tile in range(TILES_K):
        there = k < K - tile * BLOCK_K
        x = tl.load(x_ptrs, mask=inside[:, None] & there[None, :], other=0.0)
        weight = tl.load(weight_ptrs, mask=(n < N)[None, :] & there[:, None], other=0.0)
        if GROUPS:
            part = tl.dot(x, weight, out_dtype=SUM)
            scale = tl.load(x_scale_ptr + rows.to(tl.int64) * TILES_K + tile, mask=inside, other=0.0)
            total += part.to(tl.float32) * scale[:, None]
        elif PRODUCTS == "int8":
            total = tl.dot(x, weight, total, out_dtype=SUM)
        else:
            total = tl.dot(x, weight, total, max_num_imprecise_acc=BLOCK_K)
        x_ptrs += BLOCK_K
        weight_ptrs += BLOCK_K
    weight_scale = tl.load(weight_scale_ptr + n, mask=n < N, other=0.0)
    y = total.to(tl.float32) * weight_scale[None, :]
    if not GROUPS:
        y *= tl.load(x_scale_ptr + rows, mask=inside, other=0.0)[:, None]
    if SHIFT:
        shift = tl.load(x_shift_ptr + rows, mask=inside, other=0.0)
        sums = tl.load(weight_sums_ptr + n, mask=n < N, other=0.0)
        y += shift[:, None] * sums[None, :]
    if BIAS:
        y += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION == "relu":
        y = tl.maximum(y, 0.0)
    elif ACTIVATION != "identity":
        y = gelu(y, ACTIVATION == "gelu_new")
    offsets = rows.to(tl.int64)[:, None] * N + n[None, :]
    mask = inside[:, None] & (n < N)[None, :]
    if QUANTIZE:
        # Beyond column N y is zero: every term of it was, and so is its activation.
        q, scale = symmetric(y, PRODUCTS)
        tl.store(out_ptr + offsets, q, mask=mask)
        tl.store(out_scale_ptr + rows.to(tl.int64) * TILES_N + tile_n, scale, mask=inside)
    else:
        tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty), mask=mask)
