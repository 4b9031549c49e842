"""The Triton kernel of `embedkit.kernels.varlen_attention`.

For each head and each query token i of a sequence, over the keys j of that sequence alone:

    s_ij = scale · R_i q_i · R_j k_j + bias[j − i]
    o_i  = Σ_j softmax_j(s_ij) v_j            over i − before ≤ j ≤ i + after

R_p rotates the pairs (x_2d, x_2d+1) by the angle p θ_d, given as cos and sin; without rotary positions it is the
identity, and with rotary_value v_j stands for R_j v_j.

A program computes one tile (`embedkit.kernels.attention_tiles`) of one head. The softmax runs over blocks of keys with
the running maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022), in base 2. Sequences in the same tile share
the matrix product, whose entries between different sequences are masked: with 8 to 64 tokens the tensor cores would
otherwise run on padding.

A value that is not finite would pass that mask, since 0 · inf is NaN. A tile whose result is not finite is therefore
computed again, with such values as zeros and their keys' scores as NaN: the sequences that hold them get NaN, and the
others what they get beside other neighbors. A score that is not finite becomes NaN: -inf would leave its key out.
"""

# Functions below @triton.jit are written in another language with the syntax of Python.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["forward"]


@triton.jit
def _load(
    ptr, first, inside, positions, cos_ptr, sin_ptr,
    STRIDE: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    """(BLOCK, BLOCK_D): rows of D values, STRIDE apart, from row ``first`` on, rotated to their positions.

    Zero outside.
    """
    row = tl.arange(0, BLOCK)
    d = tl.arange(0, BLOCK_D)
    mask = inside[:, None] & (d < D)[None, :]
    x = tl.load(ptr + ((first + row)[:, None] * STRIDE + d[None, :]), mask=mask, other=0.0)
    if ROTATE:
        # A thread holds both values of a pair, so that none are exchanged.
        even, odd = tl.split(tl.reshape(x.to(tl.float32), (BLOCK, BLOCK_D // 2, 2)))
        pair = tl.arange(0, BLOCK_D // 2)
        angle = positions[:, None] * (D // 2) + pair[None, :]
        there = inside[:, None] & (pair < D // 2)[None, :]
        cos = tl.load(cos_ptr + angle, mask=there, other=0.0)
        sin = tl.load(sin_ptr + angle, mask=there, other=0.0)
        turned = tl.join(even * cos - odd * sin, odd * cos + even * sin)
        x = tl.reshape(turned, (BLOCK, BLOCK_D)).to(x.dtype)
    return x


@triton.jit
def _dot(a, b, c, WIDEN: tl.constexpr):
    """``a`` ``b`` + ``c``, accumulated in float32."""
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    # The default for float32 would be TF32: 10 bits of mantissa.
    return tl.dot(a, b, c, input_precision="ieee")


@triton.jit
def _attend(
    query_ptr, key_ptr, value_ptr, out_ptr, tiles_ptr, bias_ptr, cos_ptr, sin_ptr, scale,
    head, HEADS: tl.constexpr, D: tl.constexpr,
    QUERY_TOKEN: tl.constexpr, QUERY_HEAD: tl.constexpr, KEY_TOKEN: tl.constexpr, KEY_HEAD: tl.constexpr,
    VALUE_TOKEN: tl.constexpr, VALUE_HEAD: tl.constexpr,
    MAX_DISTANCE: tl.constexpr, ROTARY: tl.constexpr, ROTARY_VALUE: tl.constexpr,
    SHARED: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr,
    HEADER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    WIDEN: tl.constexpr, ISOLATE: tl.constexpr,
):  # fmt: skip
    """Write a tile's rows; 1 if any of them is not finite, else 0.

    ISOLATE: a value that is not finite affects the rows of its own sequence only.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    first = tl.load(tiles_ptr)
    end = tl.load(tiles_ptr + 1)
    key_start = tl.load(tiles_ptr + 2)
    key_end = tl.load(tiles_ptr + 3)
    # 64 bits for what is the same in the whole program: tokens · hidden_size may pass 2³¹, but 64 bits for
    # every value would fill the registers.
    shared = (head // SHARED).to(tl.int64)
    query_ptr += first.to(tl.int64) * QUERY_TOKEN + head.to(tl.int64) * QUERY_HEAD
    key_ptr += key_start.to(tl.int64) * KEY_TOKEN + shared * KEY_HEAD
    value_ptr += key_start.to(tl.int64) * VALUE_TOKEN + shared * VALUE_HEAD
    out_ptr += first.to(tl.int64) * (HEADS * D) + head * D
    rows = first + tl.arange(0, BLOCK_M)
    inside = rows < end
    # No sequence starts at -1: a row outside the tile has no keys, and so no distance to look up.
    starts = tl.load(tiles_ptr + HEADER + rows - first, mask=inside, other=-1)
    query = _load(
        query_ptr, 0, inside, rows - starts, cos_ptr, sin_ptr,
        QUERY_TOKEN, D, BLOCK_M, BLOCK_D, ROTARY,
    )  # fmt: skip
    # A finite start: rows whose keys are all in a later block must not compute inf - inf.
    maximum = tl.full((BLOCK_M,), -1e30, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    result = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    seen_start = key_start
    seen_end = key_end
    if BEFORE >= 0:
        seen_start = tl.maximum(key_start, first - BEFORE)
    if AFTER >= 0:
        seen_end = tl.minimum(key_end, end + AFTER)
    for k in tl.range(seen_start, seen_end, BLOCK_N, num_stages=1 if ISOLATE else None):
        keys = k + tl.arange(0, BLOCK_N)
        present = keys < key_end
        # Keys outside the tile: those of a long sequence, of which the tile is a part.
        key_starts = tl.load(
            tiles_ptr + HEADER + keys - first, mask=(keys >= first) & (keys < end), other=key_start
        )
        positions = keys - key_starts
        key = _load(
            key_ptr, k - key_start, present, positions, cos_ptr, sin_ptr,
            KEY_TOKEN, D, BLOCK_N, BLOCK_D, ROTARY,
        )  # fmt: skip
        scores = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        scores = _dot(query, tl.trans(key), scores, WIDEN) * (scale * LOG2_E)
        scores += scores * 0
        same = (starts[:, None] == key_starts[None, :]) & present[None, :]
        distance = keys[None, :] - rows[:, None]
        if BEFORE >= 0:
            same = same & (distance >= -BEFORE)
        if AFTER >= 0:
            same = same & (distance <= AFTER)
        if MAX_DISTANCE > 0:
            place = head * (2 * MAX_DISTANCE - 1) + MAX_DISTANCE - 1 + distance
            scores += tl.load(bias_ptr + place, mask=same, other=0.0) * LOG2_E
        if ISOLATE:
            value = _load(
                value_ptr, k - key_start, present, positions, cos_ptr, sin_ptr,
                VALUE_TOKEN, D, BLOCK_N, BLOCK_D, ROTARY_VALUE,
            )  # fmt: skip
            # x - x is 0, or NaN where x is not finite.
            wide = value.to(tl.float32)
            finite = wide - wide == 0
            broken = tl.sum((~finite).to(tl.int32), axis=1) > 0
            value = tl.where(finite, value, 0.0)
            scores = tl.where(broken[None, :], float("nan"), scores)
        scores = tl.where(same, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_maximum[:, None])
        decay = tl.exp2(maximum - new_maximum)
        total = total * decay + tl.sum(weights, axis=1)
        maximum = new_maximum
        if not ISOLATE:
            value = _load(
                value_ptr, k - key_start, present, positions, cos_ptr, sin_ptr,
                VALUE_TOKEN, D, BLOCK_N, BLOCK_D, ROTARY_VALUE,
            )  # fmt: skip
        result = _dot(weights.to(value.dtype), value, result * decay[:, None], WIDEN)
    # Tokens without keys, which fill up a batch, get zeros.
    empty = (starts < 0) | (key_end == 0)
    result = result / tl.where(empty, 1.0, total)[:, None]
    column = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    offsets = column[:, None] * (HEADS * D) + d[None, :]
    tl.store(out_ptr + offsets, result.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (d < D)[None, :])
    # Over all values at once: Triton 3.7 cannot reduce rows, then columns, on compute capability 10.0.
    return tl.max((result - result != 0).to(tl.int32))


@triton.jit
def forward(
    query_ptr, key_ptr, value_ptr, out_ptr, tiles_ptr, bias_ptr, cos_ptr, sin_ptr, scale,
    HEADS: tl.constexpr, D: tl.constexpr,
    QUERY_TOKEN: tl.constexpr, QUERY_HEAD: tl.constexpr, KEY_TOKEN: tl.constexpr, KEY_HEAD: tl.constexpr,
    VALUE_TOKEN: tl.constexpr, VALUE_HEAD: tl.constexpr,
    MAX_DISTANCE: tl.constexpr, ROTARY: tl.constexpr, ROTARY_VALUE: tl.constexpr,
    SHARED: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr,
    HEADER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """One tile of one head a program; neighbors take the heads of one tile, whose rows lie together.

    query, key, value: token t of head h begins at t · X_TOKEN + h · X_HEAD.
    out: (tokens, HEADS, D). tiles: as `attention_tiles` gives them, HEADER + BLOCK_M columns.
    SHARED: heads of queries for each of keys and values. BEFORE, AFTER: how far a token sees; -1: all of its sequence.
    bias: (HEADS, 2 MAX_DISTANCE − 1) float32, MAX_DISTANCE 0: none. cos, sin: (positions, D / 2) float32.
    WIDEN: multiply 16-bit values as float32, which is as exact: for the interpreter, which would multiply the
        bit patterns of bfloat16.
    """
    head = tl.program_id(0) % HEADS
    tiles_ptr += (tl.program_id(0) // HEADS).to(tl.int64) * (HEADER + BLOCK_M)
    if tl.load(tiles_ptr) < tl.load(tiles_ptr + 1):
        broken = _attend(
            query_ptr, key_ptr, value_ptr, out_ptr, tiles_ptr, bias_ptr, cos_ptr, sin_ptr, scale,
            head, HEADS, D, QUERY_TOKEN, QUERY_HEAD, KEY_TOKEN, KEY_HEAD, VALUE_TOKEN, VALUE_HEAD,
            MAX_DISTANCE, ROTARY, ROTARY_VALUE, SHARED, BEFORE, AFTER, HEADER, BLOCK_M, BLOCK_N, BLOCK_D, WIDEN, False,
        )  # fmt: skip
        # Not in float32, whose range no model exceeds, and where a second pass would spill registers.
        if query_ptr.dtype.element_ty != tl.float32:  # noqa: SIM102 (known when compiling)
            if broken > 0:
                # From the start, with few keys a step, so that this rare case does not raise the number of registers.
                _attend(
                    query_ptr, key_ptr, value_ptr, out_ptr, tiles_ptr, bias_ptr, cos_ptr, sin_ptr, scale,
                    head, HEADS, D, QUERY_TOKEN, QUERY_HEAD, KEY_TOKEN, KEY_HEAD, VALUE_TOKEN, VALUE_HEAD,
                    MAX_DISTANCE, ROTARY, ROTARY_VALUE, SHARED, BEFORE, AFTER,
                    HEADER, BLOCK_M, 16, BLOCK_D, WIDEN, True,
                )  # fmt: skip
