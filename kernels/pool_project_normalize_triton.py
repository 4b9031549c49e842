"""The Triton kernels of `embedkit.kernels.pool_project_normalize`.

    p_b = mean | max | first of the tokens of text b          (H)
    z_b = activation(p_b W + bias)                            (D)
    y_b = z_b / max(‖z_b‖₂, 1e-12)                            (D)

and, in the backward pass with g = ∂L/∂y and a the argument of the activation:

    ∂L/∂z = (g − y (y·g)) / ‖z‖₂        ∂L/∂a = ∂L/∂z · (1 − z²) for tanh
    ∂L/∂W = pᵀ ∂L/∂a    ∂L/∂bias = Σ_b ∂L/∂a    ∂L/∂p = ∂L/∂a Wᵀ, spread over the tokens

Each program pools one text, so that all multiprocessors read ``hidden``, whatever the batch. The last program to
finish among 16 neighbors multiplies their 16 rows with W on the tensor cores: W is read once for 16 texts. No program
waits for another, and no sum depends on which was last: a text's embedding is the same in every batch.
"""

# Functions below @triton.jit are written in another language with the syntax of Python.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["backward_head", "backward_tokens", "forward"]


@triton.jit
def _first_maximum(best, where, MISSING: tl.constexpr):
    """The maxima (H,) of ``best`` (T, H), and the first ``where`` of each; NaN counts as the maximum."""
    broken = best != best  # NaN
    any_broken = tl.max(broken.to(tl.int32), axis=0) > 0
    value = tl.max(tl.where(broken, float("-inf"), best), axis=0)
    hit = tl.where(any_broken[None, :], broken, best == value[None, :])
    return tl.where(any_broken, float("nan"), value), tl.min(tl.where(hit, where, MISSING), axis=0)


@triton.jit
def _store(
    values, out_ptr, ranges_ptr, rows, texts,
    D: tl.constexpr, BLOCK_D: tl.constexpr, OUTPUT: tl.constexpr,
):  # fmt: skip
    """Write ``values`` (R, BLOCK_D) to the rows ``rows`` (R,) of ``out`` as `embedkit.output.convert`."""
    column = tl.arange(0, BLOCK_D)
    inside = (rows < texts)[:, None]
    if OUTPUT == "binary" or OUTPUT == "ubinary":
        # The first of 8 dimensions is the highest bit.
        bits = tl.where((values > 0) & (column < D)[None, :], 128 >> (column % 8)[None, :], 0)
        packed = tl.sum(tl.reshape(bits, (values.shape[0], BLOCK_D // 8, 8)), axis=2)
        if OUTPUT == "binary":
            packed -= 128
        BYTES: tl.constexpr = (D + 7) // 8
        byte = tl.arange(0, BLOCK_D // 8)
        offsets = rows.to(tl.int64)[:, None] * BYTES + byte[None, :]
        tl.store(
            out_ptr + offsets, packed.to(out_ptr.dtype.element_ty), mask=inside & (byte < BYTES)[None, :]
        )
    else:
        if OUTPUT == "int8" or OUTPUT == "uint8":
            start = tl.load(ranges_ptr + column, mask=column < D, other=0.0)
            end = tl.load(ranges_ptr + D + column, mask=column < D, other=0.0)
            step = tl.div_rn(end - start, 255.0)
            step = tl.where(step == 0, 1.0, step)
            # Rounded as numpy does: an approximate quotient may fall on the other side of a step. What NaN
            # converts to differs between machines, so it becomes the lowest level first.
            scaled = tl.div_rn(values - start[None, :], tl.broadcast_to(step[None, :], values.shape))
            scaled = tl.where(scaled > 0, scaled, 0.0)
            values = tl.floor(tl.where(scaled < 255, scaled, 255.0))
            if OUTPUT == "int8":
                values -= 128
        offsets = rows.to(tl.int64)[:, None] * D + column[None, :]
        out = values.to(tl.int32) if OUTPUT != "float32" else values
        tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=inside & (column < D)[None, :])


@triton.jit
def _normalize_and_store(
    values, out_ptr, ranges_ptr, norm_ptr, rows, texts,
    D: tl.constexpr, BLOCK_D: tl.constexpr, NORMALIZE: tl.constexpr, SAVE: tl.constexpr, OUTPUT: tl.constexpr,
):  # fmt: skip
    """Scale ``values`` (R, BLOCK_D), zero beyond column D, to length 1 and write them."""
    if NORMALIZE:
        norm = tl.sqrt(tl.sum(values * values, axis=1))
        # Written as a comparison: a maximum would turn a NaN into 1e-12 on a GPU.
        values = values / tl.where(norm < 1e-12, 1e-12, norm)[:, None]
        if SAVE:
            tl.store(norm_ptr + rows, norm, mask=rows < texts)
    _store(values, out_ptr, ranges_ptr, rows, texts, D, BLOCK_D, OUTPUT)


@triton.jit(do_not_specialize=["texts", "padded"])
def forward(
    hidden_ptr, bounds_ptr, mask_ptr, weight_ptr, bias_ptr, ranges_ptr,
    out_ptr, pooled_ptr, count_ptr, index_ptr, norm_ptr, ticket_ptr,
    texts, padded,
    H: tl.constexpr, D: tl.constexpr, STRIDE_TOKEN: tl.constexpr,
    STRIDE_WH: tl.constexpr, STRIDE_WD: tl.constexpr,
    LAYOUT: tl.constexpr, POOLING: tl.constexpr, ACTIVATION: tl.constexpr, NORMALIZE: tl.constexpr,
    OUTPUT: tl.constexpr, PROJECT: tl.constexpr, BIAS: tl.constexpr, SAVE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
    TILE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One text a program.

    hidden: rows of H values STRIDE_TOKEN apart. ``LAYOUT`` says which of them are text b:
        "packed": bounds (texts + 1,), rows bounds[b] up to bounds[b + 1];
        "lengths": rows b · padded up to b · padded + bounds[b];
        "mask": of the rows b · padded up to (b + 1) · padded those where mask (texts, padded) is not 0.
    Saved for the backward pass: pooled (texts, H) float32; count (texts,) tokens of each text; index, of the
    token within the text that was taken, (texts, H) for max and (texts,) for cls; norm (texts,).
    ticket (tiles,): zeros; how many texts of a tile are pooled.
    WIDEN: multiply 16-bit values as float32, which is as exact: for the interpreter, which would multiply the
        bit patterns of bfloat16.
    """
    MISSING: tl.constexpr = 2147483647
    text = tl.program_id(0)
    if LAYOUT == "packed":
        start = tl.load(bounds_ptr + text).to(tl.int64)
        length = (tl.load(bounds_ptr + text + 1).to(tl.int64) - start).to(tl.int32)
    else:
        start = text.to(tl.int64) * padded
        length = padded
        if LAYOUT == "lengths":
            length = tl.minimum(tl.load(bounds_ptr + text).to(tl.int32), padded)
    column = tl.arange(0, BLOCK_H)
    row = tl.arange(0, BLOCK_T)
    hidden_ptr += start * STRIDE_TOKEN  # 64 bits: tokens · H may pass 2³¹
    if LAYOUT == "mask":
        mask_ptr += start

    if POOLING == "cls":
        first = 0
        count = (length > 0).to(tl.int32)
        if LAYOUT == "mask":
            firsts = tl.full((BLOCK_H,), MISSING, tl.int32)
            for t in range(0, length, BLOCK_H):
                here = t + column
                seen = tl.load(mask_ptr + here, mask=here < length, other=0) != 0
                firsts = tl.minimum(firsts, tl.where(seen, here, MISSING))
            first = tl.min(firsts, axis=0)
            count = (first != MISSING).to(tl.int32)
            first = tl.where(count > 0, first, 0)
        taken = (column < H) & (count > 0)
        pooled = tl.load(hidden_ptr + first.to(tl.int64) * STRIDE_TOKEN + column, mask=taken, other=0.0)
        pooled = pooled.to(tl.float32)
        if SAVE:
            tl.store(index_ptr + text, first)
    else:
        # Rows are kept apart until the end, so that nothing crosses threads within the loop.
        values = tl.zeros((BLOCK_T, BLOCK_H), tl.float32)
        counts = tl.zeros((BLOCK_T,), tl.int32)
        if POOLING == "max":
            values += float("-inf")
            where = tl.full((BLOCK_T, BLOCK_H), MISSING, tl.int32)
        for t in range(0, length, BLOCK_T):
            here = t + row
            seen = here < length
            if LAYOUT == "mask":
                seen = seen & (tl.load(mask_ptr + here, mask=seen, other=0) != 0)
            counts += seen.to(tl.int32)
            offsets = here.to(tl.int64)[:, None] * STRIDE_TOKEN + column[None, :]
            x = tl.load(hidden_ptr + offsets, mask=seen[:, None] & (column < H)[None, :], other=0.0).to(
                tl.float32
            )
            if POOLING == "mean":
                values += x
            else:
                # The first token in any case, so that a text of -inf has an index; then greater ones and the
                # first NaN.
                first_nan = (x != x) & (values == values)
                better = ((where == MISSING) | (x > values) | first_nan) & seen[:, None]
                values = tl.where(better, x, values)
                where = tl.where(better, tl.broadcast_to(here[:, None], where.shape), where)
        count = tl.sum(counts, axis=0)
        if POOLING == "mean":
            pooled = tl.sum(values, axis=0) / tl.maximum(count, 1).to(tl.float32)
        else:
            pooled, index = _first_maximum(values, where, MISSING)
            pooled = tl.where((column < H) & (count > 0), pooled, 0.0)
            if SAVE:
                tl.store(index_ptr + text.to(tl.int64) * H + column, index, mask=column < H)
    if SAVE:
        tl.store(count_ptr + text, count)

    if not PROJECT:
        _normalize_and_store(
            pooled[None, :], out_ptr, ranges_ptr, norm_ptr, text + tl.arange(0, 1), texts,
            H, BLOCK_H, NORMALIZE, SAVE, OUTPUT,
        )  # fmt: skip
    else:
        tl.store(pooled_ptr + text.to(tl.int64) * H + column, pooled, mask=column < H)
        # All threads have written before one of them takes the ticket (release); whoever draws the last one
        # sees the rows of all (acquire).
        tl.debug_barrier()
        tile = text // TILE
        ticket = tl.atomic_add(ticket_ptr + tile, 1, sem="acq_rel", scope="gpu")
        if ticket == tl.minimum(TILE, texts - tile * TILE) - 1:
            rows = tile * TILE + tl.arange(0, TILE)
            d = tl.arange(0, BLOCK_D)
            k = tl.arange(0, BLOCK_K)
            result = tl.zeros((TILE, BLOCK_D), tl.float32)
            for k0 in range(0, H, BLOCK_K):
                # .cg: past the L1 cache, which other multiprocessors do not write to.
                p = tl.load(
                    pooled_ptr + rows.to(tl.int64)[:, None] * H + (k0 + k)[None, :],
                    mask=(rows < texts)[:, None] & (k0 + k < H)[None, :], other=0.0, cache_modifier=".cg",
                )  # fmt: skip
                w = tl.load(
                    weight_ptr + (k0 + k)[:, None] * STRIDE_WH + d[None, :] * STRIDE_WD,
                    mask=(k0 + k < H)[:, None] & (d < D)[None, :], other=0.0,
                )  # fmt: skip
                if w.dtype == tl.bfloat16 or w.dtype == tl.float16:
                    # Two 16-bit halves of a mean keep what a single one would round away.
                    high = p.to(w.dtype)
                    low = (p - high.to(tl.float32)).to(w.dtype)
                    if WIDEN:
                        high, low, w = high.to(tl.float32), low.to(tl.float32), w.to(tl.float32)
                    result = tl.dot(high, w, result)
                    result = tl.dot(low, w, result)
                else:
                    # The default for float32 would be TF32: 10 bits of mantissa.
                    result = tl.dot(p, w, result, input_precision="ieee")
            if BIAS:
                result += tl.load(bias_ptr + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
            if ACTIVATION == "tanh":
                # 1 - 2/(e²ˣ + 1) cancels near 0; there the odd series is exact to float32.
                square = result * result
                series = result * (1 + square * (-0.33333334 + square * (0.13333334 - square * 0.05396825)))
                tanh = 1 - 2 / (tl.exp(2 * result) + 1)
                result = tl.where(square < 0.01, series, tanh)
            result = tl.where((d < D)[None, :], result, 0.0)
            _normalize_and_store(
                result, out_ptr, ranges_ptr, norm_ptr, rows, texts, D, BLOCK_D, NORMALIZE, SAVE, OUTPUT
            )


@triton.jit(do_not_specialize=["texts"])
def backward_head(
    grad_ptr, out_ptr, norm_ptr, result_ptr, texts,
    D: tl.constexpr, TANH: tl.constexpr, NORMALIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """∂L/∂a (texts, D) from ∂L/∂y, y and ‖z‖₂; ROWS texts a program."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    inside = (rows < texts)[:, None] & (d < D)[None, :]
    offsets = rows.to(tl.int64)[:, None] * D + d[None, :]
    grad = tl.load(grad_ptr + offsets, mask=inside, other=0.0)
    z = tl.load(out_ptr + offsets, mask=inside, other=0.0)
    if NORMALIZE:
        norm = tl.load(norm_ptr + rows, mask=rows < texts, other=1.0)
        # Zeros have no direction, and so no gradient; torch's own is 1e12 times the one before.
        tiny = norm < 1e-12
        norm = tl.where(tiny, 1e-12, norm)
        along = tl.sum(grad * z, axis=1)
        grad = tl.where(tiny[:, None], 0.0, (grad - z * along[:, None]) / norm[:, None])
        z = z * norm[:, None]
    if TANH:
        grad *= 1 - z * z
    tl.store(result_ptr + offsets, grad, mask=inside)


@triton.jit(do_not_specialize=["texts", "padded", "tokens"])
def backward_tokens(
    grad_ptr, bounds_ptr, mask_ptr, count_ptr, index_ptr, result_ptr, texts, padded, tokens,
    H: tl.constexpr, LAYOUT: tl.constexpr, POOLING: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """∂L/∂hidden (tokens, H) from ∂L/∂p (texts, H); a text a program, one for the rest."""
    text = tl.program_id(0)
    length = padded
    start = text.to(tl.int64) * padded
    if LAYOUT == "packed":
        start = tl.load(bounds_ptr + text).to(tl.int64)
        end = tokens.to(tl.int64)
        if text < texts:
            end = tl.load(bounds_ptr + text + 1).to(tl.int64)
        length = (end - start).to(tl.int32)
    is_text = text < texts
    column = tl.arange(0, BLOCK_H)
    row = tl.arange(0, BLOCK_T)
    taken = (column < H) & is_text
    grad = tl.load(grad_ptr + text.to(tl.int64) * H + column, mask=taken, other=0.0)
    count = tl.load(count_ptr + text, mask=is_text, other=0)
    filled = count > 0
    if POOLING == "mean":
        grad = grad / tl.maximum(count, 1).to(tl.float32)
        valid = count if LAYOUT == "lengths" else length
    elif POOLING == "cls":
        index = tl.load(index_ptr + text, mask=is_text, other=0) + tl.zeros((BLOCK_H,), tl.int32)
    else:
        index = tl.load(index_ptr + text.to(tl.int64) * H + column, mask=taken, other=0)
    result_ptr += start * H
    if LAYOUT == "mask":
        mask_ptr += start
    for t in range(0, length, BLOCK_T):
        here = t + row
        seen = here < length
        if POOLING == "mean":
            takes = (here < valid) & filled
            if LAYOUT == "mask":
                takes = takes & (tl.load(mask_ptr + here, mask=seen, other=0) != 0)
            values = tl.where(takes[:, None], grad[None, :], 0.0)
        else:
            values = tl.where((here[:, None] == index[None, :]) & filled, grad[None, :], 0.0)
        offsets = here.to(tl.int64)[:, None] * H + column[None, :]
        stored = seen[:, None] & (column < H)[None, :]
        tl.store(result_ptr + offsets, values.to(result_ptr.dtype.element_ty), mask=stored)
