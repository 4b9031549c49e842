"""Pool the tokens of each text, project, normalise and quantise: one Triton launch.

    p_b = mean | max | first of the tokens of text b        (H)
    z_b = activation(p_b W + bias)                          (D)
    y_b = z_b / max(‖z_b‖₂, 1e-12)                          (D)

and, in the backward pass with g = ∂L/∂y:

    ∂L/∂z = (g − y (y·g)) / ‖z‖₂        ∂L/∂a = ∂L/∂z · (1 − z²) for tanh
    ∂L/∂W = pᵀ ∂L/∂a        ∂L/∂bias = Σ_b ∂L/∂a        ∂L/∂p = ∂L/∂a Wᵀ, spread over the tokens

One program pools one text, so that all multiprocessors read ``hidden``, whatever the batch. The program that
finishes last among 16 neighbours multiplies their 16 rows with W on the tensor cores: W is read once for 16
texts. No program waits for another, and no sum depends on who was last: a text's vector is the same in every batch.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["MAX_DIMENSION", "MAX_HIDDEN_SIZE", "Output", "Pooling", "pool_project_normalize"]

Pooling = Literal["mean", "max", "cls"]
Activation = Literal["identity", "tanh"]
Output = Literal["float32", "int8", "uint8", "binary", "ubinary"]

MAX_HIDDEN_SIZE = 8192
"""A token of a text is held in the registers of one program."""
MAX_DIMENSION = 1024
"""So are 16 projected texts."""

_TILE = 16  # texts of one matrix product: the least that tensor cores take
_OUTPUTS = {
    "float32": torch.float32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "binary": torch.int8,
    "ubinary": torch.uint8,
}


@triton.jit
def _first_maximum(best, where, MISSING: tl.constexpr):  # type: ignore[no-untyped-def]
    """The column maxima (H,) of ``best`` (T, H) and the least ``where`` that holds each; NaN is the greatest."""
    broken = best != best
    any_broken = tl.max(broken.to(tl.int32), axis=0) > 0
    value = tl.max(tl.where(broken, float("-inf"), best), axis=0)
    hit = tl.where(any_broken[None, :], broken, best == value[None, :])
    return tl.where(any_broken, float("nan"), value), tl.min(tl.where(hit, where, MISSING), axis=0)


@triton.jit
def _store(values, out_ptr, ranges_ptr, rows, texts, D: tl.constexpr, BLOCK_D: tl.constexpr, OUTPUT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write ``values`` (R, BLOCK_D) to the rows ``rows`` (R,) of ``out`` as OUTPUT, like `embedkit.output.convert`."""
    column = tl.arange(0, BLOCK_D)
    inside = (rows < texts)[:, None]
    if OUTPUT == "binary" or OUTPUT == "ubinary":  # noqa: PLR1714  Triton compiles no `in`
        # The first of 8 dimensions is the highest bit.
        bits = tl.where((values > 0) & (column < D)[None, :], 128 >> (column % 8)[None, :], 0)
        packed = tl.sum(tl.reshape(bits, (values.shape[0], BLOCK_D // 8, 8)), axis=2)
        if OUTPUT == "binary":
            packed -= 128
        BYTES: tl.constexpr = (D + 7) // 8
        byte = tl.arange(0, BLOCK_D // 8)
        offsets = rows.to(tl.int64)[:, None] * BYTES + byte[None, :]
        tl.store(out_ptr + offsets, packed.to(out_ptr.dtype.element_ty), mask=inside & (byte < BYTES)[None, :])
    else:
        if OUTPUT == "int8" or OUTPUT == "uint8":  # noqa: PLR1714
            start = tl.load(ranges_ptr + column, mask=column < D, other=0.0)
            end = tl.load(ranges_ptr + D + column, mask=column < D, other=0.0)
            step = tl.div_rn(end - start, 255.0)
            step = tl.where(step == 0, 1.0, step)
            # Rounded as numpy does: an approximate quotient may fall on the other side of a step. Comparisons and
            # conversions of NaN differ between machines, so it becomes the lowest level first.
            scaled = tl.div_rn(values - start[None, :], tl.broadcast_to(step[None, :], values.shape))
            scaled = tl.where(scaled > 0, scaled, 0.0)
            values = tl.floor(tl.where(scaled < 255, scaled, 255.0))
            if OUTPUT == "int8":
                values -= 128
        offsets = rows.to(tl.int64)[:, None] * D + column[None, :]
        out = values.to(tl.int32) if OUTPUT != "float32" else values
        tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), mask=inside & (column < D)[None, :])


@triton.jit
def _normalize_and_store(  # type: ignore[no-untyped-def]
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
def _forward(  # type: ignore[no-untyped-def]
    hidden_ptr, bounds_ptr, mask_ptr, weight_ptr, bias_ptr, ranges_ptr,
    out_ptr, pooled_ptr, count_ptr, index_ptr, norm_ptr, ticket_ptr,
    texts, padded,
    H: tl.constexpr, D: tl.constexpr, STRIDE_TOKEN: tl.constexpr,
    STRIDE_WH: tl.constexpr, STRIDE_WD: tl.constexpr,
    LAYOUT: tl.constexpr, POOLING: tl.constexpr, ACTIVATION: tl.constexpr, NORMALIZE: tl.constexpr,
    OUTPUT: tl.constexpr, PROJECT: tl.constexpr, BIAS: tl.constexpr, SAVE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """One text a program.

    hidden: rows of H values STRIDE_TOKEN apart. ``LAYOUT`` says which of them are text b:
        "packed": bounds (texts + 1,), rows bounds[b] up to bounds[b + 1];
        "lengths": rows b · padded up to b · padded + bounds[b];
        "mask": of the rows b · padded up to (b + 1) · padded those where mask (texts, padded) is not 0.
    Saved for the backward pass: pooled (texts, H) float32; count (texts,) tokens of each text; index, of the
    token within the text that was taken, (texts, H) for max and (texts,) for cls; norm (texts,).
    ticket (tiles,): zeros; how many texts of a tile are pooled.
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
            x = tl.load(hidden_ptr + offsets, mask=seen[:, None] & (column < H)[None, :], other=0.0).to(tl.float32)
            if POOLING == "mean":
                values += x
            else:
                # The first token in any case, so that a text of -inf has an index; then greater ones and the first NaN.
                better = (where == MISSING) | (x > values) | ((x != x) & (values == values))
                better = better & seen[:, None]
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
    if SAVE or PROJECT:
        tl.store(count_ptr + text, count)

    if not PROJECT:
        _normalize_and_store(
            pooled[None, :], out_ptr, ranges_ptr, norm_ptr, text + tl.arange(0, 1), texts,
            H, BLOCK_H, NORMALIZE, SAVE, OUTPUT,
        )  # fmt: skip
    else:
        tl.store(pooled_ptr + text.to(tl.int64) * H + column, pooled, mask=column < H)
        # All threads have written before one of them takes the ticket (release); whoever draws the last one sees
        # the rows of all (acquire).
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
                if w.dtype == tl.bfloat16 or w.dtype == tl.float16:  # noqa: PLR1714
                    # Two 16-bit halves of a mean keep what a single one would round away.
                    high = p.to(w.dtype)
                    result = tl.dot(high, w, result)
                    result = tl.dot((p - high.to(tl.float32)).to(w.dtype), w, result)
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
            # A text of no tokens has no vector: not even the bias.
            filled = tl.load(count_ptr + rows, mask=rows < texts, other=0, cache_modifier=".cg") > 0
            result = tl.where(filled[:, None] & (d < D)[None, :], result, 0.0)
            _normalize_and_store(
                result, out_ptr, ranges_ptr, norm_ptr, rows, texts, D, BLOCK_D, NORMALIZE, SAVE, OUTPUT
            )


@triton.jit(do_not_specialize=["texts"])
def _backward_head(  # type: ignore[no-untyped-def]
    grad_ptr, out_ptr, norm_ptr, count_ptr, result_ptr, texts,
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
        # Below 1e-12 the divisor is a constant, as in torch.
        along = tl.where(norm < 1e-12, 0.0, tl.sum(grad * z, axis=1))
        norm = tl.where(norm < 1e-12, 1e-12, norm)
        grad = (grad - z * along[:, None]) / norm[:, None]
        z = z * norm[:, None]
    if TANH:
        grad *= 1 - z * z
    filled = tl.load(count_ptr + rows, mask=rows < texts, other=0) > 0
    tl.store(result_ptr + offsets, tl.where(filled[:, None], grad, 0.0), mask=inside)


@triton.jit(do_not_specialize=["texts", "padded", "tokens"])
def _backward_tokens(  # type: ignore[no-untyped-def]
    grad_ptr, bounds_ptr, mask_ptr, count_ptr, index_ptr, result_ptr, texts, padded, tokens,
    H: tl.constexpr, LAYOUT: tl.constexpr, POOLING: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """∂L/∂hidden (tokens, H) from ∂L/∂p (texts, H); one text a program, and one for the rows after the last text."""
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
        if LAYOUT == "lengths":
            valid = count
        else:
            valid = length
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


def _blocks(width: int, pooling: str = "mean") -> dict[str, int]:
    """BLOCK_T and BLOCK_H for rows of ``width``: 8192 values in flight a program, half of it with their indices."""
    block = max(16, triton.next_power_of_2(width))
    return {"BLOCK_T": max(1, min(16, (8192 if pooling == "mean" else 4096) // block)), "BLOCK_H": block}


def _warps(width: int) -> int:
    """Warps of a program that holds rows of ``width`` values in registers."""
    return 4 if width <= 2048 else 8


def pool_project_normalize(
    hidden: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    pooling: Pooling = "mean",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    activation: Activation = "identity",
    normalize: bool = False,
    output: Output = "float32",
    ranges: Tensor | None = None,
) -> Tensor:
    """Pool the tokens of each text, project, scale to length 1 and quantise; float32 inside and out.

    Args:
        hidden: (tokens, H) with ``cu_seqlens``, or (texts, T, H) with ``mask`` or ``lengths``; float32, float16
            or bfloat16 on a GPU. Texts that are not one after another in memory are copied first.
        cu_seqlens: (texts + 1,), int32 or int64: text b is the rows ``cu_seqlens[b]`` up to
            ``cu_seqlens[b + 1]``. Begins with 0, does not fall and ends within ``hidden``: reading it here would
            stall the GPU, so the caller answers for it. Rows from ``cu_seqlens[-1]`` on are ignored.
        mask: (texts, T), of any type: the tokens where it is not 0 count.
        lengths: (texts,), int32 or int64: the first tokens of each text count.
        pooling: "mean", "max" or "cls" (the first token that counts). Of equal maxima the first takes the gradient.
        weight: (H, D), with any strides: of a ``torch.nn.Linear`` give ``linear.weight.T``. Where it has 16 bits,
            so have the factors of the product; sums are always float32.
        bias: (D,), only with ``weight``.
        activation: "identity" or "tanh", after the projection; only with ``weight``.
        normalize: scale each vector to length 1. A text of no tokens gives zeros in any case.
        output: "float32" (differentiable), or as `Encoder.encode`: "int8" and "uint8" (the ``ranges`` in 255 steps),
            "binary" and "ubinary" (signs, 8 dimensions a byte).
        ranges: (2, D) float32, the least and the greatest value of each dimension; for int8 and uint8.

    Returns:
        (texts, D), without ``weight`` (texts, H), packed (texts, ⌈D / 8⌉).

    Raises:
        ValueError: for shapes, types and devices that do not fit.
    """
    layout = _check(hidden, cu_seqlens, mask, lengths, pooling, weight, bias, activation, output, ranges)
    padded = 0
    if layout != "packed":
        padded = hidden.shape[1]
        hidden = hidden.reshape(-1, hidden.shape[2])
    if hidden.stride(1) != 1 and hidden.numel() > 0:
        hidden = hidden.contiguous()
    if mask is not None:
        mask = mask.contiguous()
        mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
    bounds = lengths if cu_seqlens is None else cu_seqlens
    bounds = None if bounds is None else bounds.contiguous()
    settings = (layout, padded, pooling, activation, normalize)
    wanted = [t is not None and t.requires_grad for t in (hidden, weight, bias)]
    if torch.is_grad_enabled() and any(wanted):
        if output != "float32":
            raise ValueError(f"output {output!r} has no gradient. Use torch.no_grad() or output='float32'.")
        result: Tensor = _Fused.apply(hidden, weight, bias, bounds, mask, settings)  # type: ignore[no-untyped-call]
        return result
    return _launch(hidden, weight, bias, bounds, mask, settings, output, ranges, save=False)[0]


_Settings = tuple[str, int, str, str, bool]


def _launch(
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    bounds: Tensor | None,
    mask: Tensor | None,
    settings: _Settings,
    output: str,
    ranges: Tensor | None,
    *,
    save: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The forward launch: the result and pooled, count, index and norm of `_forward`, as far as they are needed."""
    layout, padded, pooling, activation, normalize = settings
    size = hidden.shape[1]
    texts = _texts(bounds, mask, layout)
    dimension = size if weight is None else weight.shape[1]
    columns = (dimension + 7) // 8 if "binary" in output else dimension

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=hidden.device)

    result = new(texts, columns, dtype=_OUTPUTS[output])
    project = weight is not None
    pooled = new(texts, size) if project else None
    count = new(texts, dtype=torch.int32) if project or save else None
    norm = new(texts) if save and normalize else None
    index = None
    if save and pooling != "mean":
        index = new(*(texts, size)[: 2 if pooling == "max" else 1], dtype=torch.int32)
    if texts == 0:
        return result, pooled, count, index, norm
    # Zeroed for every call and not kept: launches on several streams must not share tickets.
    tickets = None
    if project:
        tickets = torch.zeros(triton.cdiv(texts, _TILE), dtype=torch.int32, device=hidden.device)
    with torch.cuda.device_of(hidden):
        _forward[(texts,)](
            hidden, bounds, mask, weight, bias, None if ranges is None else ranges.contiguous(),
            result, pooled, count, index, norm, tickets, texts, padded,
            STRIDE_TOKEN=hidden.stride(0),
            **_options(size, dimension, weight, layout, pooling, activation, normalize, output),
            BIAS=bias is not None, SAVE=save,
        )  # fmt: skip
    return result, pooled, count, index, norm


def _options(
    size: int,
    dimension: int,
    weight: Tensor | None,
    layout: str,
    pooling: str,
    activation: str,
    normalize: bool,
    output: str,
) -> dict[str, Any]:
    """The compile-time arguments of `_forward` but STRIDE_TOKEN, BIAS and SAVE."""
    block = max(16, triton.next_power_of_2(dimension))
    # A slice of W of 32 KiB, twice for the pipeline, fits the shared memory of every GPU since sm_80.
    width = 4 if weight is None else weight.element_size()
    return {
        "H": size,
        "D": dimension,
        "STRIDE_WH": 0 if weight is None else weight.stride(0),
        "STRIDE_WD": 0 if weight is None else weight.stride(1),
        "LAYOUT": layout,
        "POOLING": pooling,
        "ACTIVATION": activation,
        "NORMALIZE": normalize,
        "OUTPUT": output,
        "PROJECT": weight is not None,
        "BLOCK_D": block,
        "BLOCK_K": max(16, min(64, 32768 // (block * width))),
        "TILE": _TILE,
        "num_warps": _warps(max(size, 4 * block if weight is not None else 0)),
        "num_stages": 2,
        **_blocks(size, pooling),
    }


def _texts(bounds: Tensor | None, mask: Tensor | None, layout: str) -> int:
    """How many texts the batch has."""
    if bounds is None:
        return 0 if mask is None else len(mask)
    return len(bounds) - (layout == "packed")


class _Fused(torch.autograd.Function):
    """The launch with its gradients; not differentiable twice."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        bounds: Tensor | None,
        mask: Tensor | None,
        settings: _Settings,
    ) -> Tensor:
        result, pooled, count, index, norm = _launch(
            hidden, weight, bias, bounds, mask, settings, "float32", None, save=True
        )
        ctx.save_for_backward(weight, bounds, mask, result, pooled, count, index, norm)
        ctx.settings = settings
        ctx.hidden = hidden.shape, hidden.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, bounds, mask, result, pooled, count, index, norm = ctx.saved_tensors
        layout, padded, pooling, activation, normalize = ctx.settings
        texts, dimension = result.shape
        grad_hidden = grad_weight = grad_bias = None
        # Within autocast the products would be taken in 16 bits.
        with torch.cuda.device_of(result), torch.autocast(result.device.type, enabled=False):
            grad = grad.contiguous()
            if normalize or weight is not None:
                grad = _head_gradient(grad, result, norm, count, activation == "tanh", normalize)
            if weight is not None:
                if ctx.needs_input_grad[1]:
                    grad_weight = (pooled.T @ grad).to(weight.dtype)
                if ctx.needs_input_grad[2]:
                    grad_bias = grad.sum(dim=0).to(ctx.bias_dtype)
                if ctx.needs_input_grad[0]:
                    grad = grad @ weight.float().T
            if ctx.needs_input_grad[0]:
                shape, dtype = ctx.hidden
                grad_hidden = torch.empty(shape, dtype=dtype, device=grad.device)
                # One more program for the rows that no text has.
                programs = texts + (layout == "packed")
                if grad_hidden.numel() > 0:
                    _backward_tokens[(programs,)](
                        grad, bounds, mask, count, index, grad_hidden, texts, padded, shape[0],
                        H=shape[1], LAYOUT=layout, POOLING=pooling, **_blocks(shape[1]),
                        num_warps=_warps(shape[1]),
                    )  # fmt: skip
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _head_gradient(
    grad: Tensor, result: Tensor, norm: Tensor | None, count: Tensor, tanh: bool, normalize: bool
) -> Tensor:
    """∂L/∂a (texts, D) of ∂L/∂y (texts, D)."""
    texts, dimension = result.shape
    before = torch.empty_like(result)
    block = triton.next_power_of_2(dimension)
    rows = max(1, 1024 // block)
    if texts > 0:
        _backward_head[(triton.cdiv(texts, rows),)](
            grad, result, norm, count, before, texts,
            D=dimension, TANH=tanh, NORMALIZE=normalize, ROWS=rows, BLOCK_D=block, num_warps=_warps(block),
        )  # fmt: skip
    return before


def _check(
    hidden: Tensor,
    cu_seqlens: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor | None,
    pooling: str,
    weight: Tensor | None,
    bias: Tensor | None,
    activation: str,
    output: str,
    ranges: Tensor | None,
) -> str:
    """The layout of ``hidden``, or a ValueError for what can be seen without reading the GPU's memory."""
    if [cu_seqlens, mask, lengths].count(None) != 2:
        raise ValueError("give one of cu_seqlens, mask and lengths")
    layout = "packed" if cu_seqlens is not None else "mask" if mask is not None else "lengths"
    if hidden.ndim != (2 if layout == "packed" else 3):
        shape = "(tokens, H)" if layout == "packed" else "(texts, T, H)"
        raise ValueError(f"hidden must be {shape}, not {tuple(hidden.shape)}, with {layout!r} texts")
    for name, choice, known in (
        ("pooling", pooling, ("mean", "max", "cls")),
        ("activation", activation, ("identity", "tanh")),
        ("output", output, tuple(_OUTPUTS)),
    ):
        if choice not in known:
            raise ValueError(f"{name} {choice!r} is not known; known are {', '.join(known)}")
    _check_bounds(hidden, cu_seqlens, mask, lengths)
    size = hidden.shape[-1]
    _check_head(size, weight, bias, activation)
    dimension = size if weight is None else weight.shape[1]
    if not 1 <= size <= MAX_HIDDEN_SIZE:
        raise ValueError(f"hidden has rows of {size}; the kernel takes 1 to {MAX_HIDDEN_SIZE}")
    quantised = output in ("int8", "uint8")
    if quantised != (ranges is not None):
        raise ValueError(f"output {output!r} {'needs' if quantised else 'takes no'} ranges")
    if ranges is not None and (ranges.shape != (2, dimension) or ranges.dtype != torch.float32):
        raise ValueError(f"ranges must be float32 (2, {dimension}), not {ranges.dtype} {tuple(ranges.shape)}")
    for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"{name} must be float32, float16 or bfloat16, not {tensor.dtype}")
    if not hidden.is_cuda and not triton.knobs.runtime.interpret:
        raise ValueError(
            f"hidden is on {hidden.device}; the kernel runs on a GPU. On a CPU use embedkit.training.pooling."
        )
    for name, other in (
        ("cu_seqlens", cu_seqlens), ("mask", mask), ("lengths", lengths),
        ("weight", weight), ("bias", bias), ("ranges", ranges),
    ):  # fmt: skip
        if other is not None and other.device != hidden.device:
            raise ValueError(f"{name} is on {other.device}, hidden on {hidden.device}. Move it there.")
    return layout


def _check_bounds(
    hidden: Tensor, cu_seqlens: Tensor | None, mask: Tensor | None, lengths: Tensor | None
) -> None:
    """Raise a ValueError for cu_seqlens, mask or lengths that do not fit ``hidden``."""
    integers = (torch.int32, torch.int64)
    if cu_seqlens is not None and (
        cu_seqlens.ndim != 1 or len(cu_seqlens) == 0 or cu_seqlens.dtype not in integers
    ):
        raise ValueError(
            "cu_seqlens must be int32 or int64 (texts + 1,), "
            f"not {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
    if mask is not None and mask.shape != hidden.shape[:2]:
        raise ValueError(f"mask must be {tuple(hidden.shape[:2])} as hidden has it, not {tuple(mask.shape)}")
    if lengths is not None and (lengths.shape != hidden.shape[:1] or lengths.dtype not in integers):
        raise ValueError(
            f"lengths must be int32 or int64 ({hidden.shape[0]},), not {lengths.dtype} {tuple(lengths.shape)}"
        )


def _check_head(size: int, weight: Tensor | None, bias: Tensor | None, activation: str) -> None:
    """Raise a ValueError for a projection that does not fit rows of ``size``."""
    if weight is None:
        if bias is not None or activation != "identity":
            raise ValueError("bias and activation belong to a projection. Give weight as well.")
        return
    if weight.ndim != 2 or weight.shape[0] != size:
        raise ValueError(
            f"weight must be ({size}, D), not {tuple(weight.shape)}. Of a torch.nn.Linear give linear.weight.T."
        )
    if not 1 <= weight.shape[1] <= MAX_DIMENSION:
        raise ValueError(
            f"weight gives {weight.shape[1]} dimensions, the kernel 1 to {MAX_DIMENSION}. "
            "Project with torch.nn.functional.linear."
        )
    if bias is not None and bias.shape != weight.shape[1:]:
        raise ValueError(f"bias must be ({weight.shape[1]},) for this weight, not {tuple(bias.shape)}")
