"""The Triton kernel of `embedkit.kernels.qk_norm_rope`.

For each head of query and key, in the memory of the projection, h = D / 2:

    x ← x / √(mean x² + eps) · weight                                    with head norms
    x_d, x_{d+h} ← x_d cos − x_{d+h} sin, x_{d+h} cos + x_d sin          cos, sin of p θ_d at position p

A sequence of L tokens, more than the T that the model was trained with, rotates slower (NTK, Su 2023): with the stretch
s the base grows by g = s L / T − (s − 1), to the power D / (D − 2), so that θ_d shrinks by g^(−2d / (D − 2)). Such a
sequence is longer than a tile: its tiles name its ends.
"""

# Functions below @triton.jit are written in another language with the syntax of Python.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["forward"]


@triton.jit
def forward(
    x_ptr, tiles_ptr, cos_ptr, sin_ptr, speed_ptr, weight_ptr, eps, stretch,
    TOKEN: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr,
    NORM: tl.constexpr, ROTARY: tl.constexpr, TRAINED: tl.constexpr,
    HEADER: tl.constexpr, BLOCK_M: tl.constexpr, HALF: tl.constexpr, BLOCK_D: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """GROUP heads of one tile a program; those of one tile are adjacent in the grid.

    x: head n of token t begins at t · TOKEN + n · D; HEADS of queries, then KEYS. tiles: as `attention_tiles` gives
    them, HEADER + BLOCK_M columns. cos, sin: (positions, D / 2) float32. weight: (2, D), of queries and of keys.
    speed: (D / 2,) θ, read for sequences of more than TRAINED tokens; TRAINED 0: there are none.
    """
    GROUPS: tl.constexpr = (HEADS + KEYS + GROUP - 1) // GROUP
    tiles_ptr += (tl.program_id(0) // GROUPS).to(tl.int64) * (HEADER + BLOCK_M)
    group = tl.program_id(0) % GROUPS
    first = tl.load(tiles_ptr)
    end = tl.load(tiles_ptr + 1)
    length = tl.load(tiles_ptr + 3) - tl.load(tiles_ptr + 2)
    if (first < end) & (length > 0):  # not for tokens that fill up a batch
        row = tl.arange(0, BLOCK_M)
        d = tl.arange(0, BLOCK_D)
        inside = first + row < end
        there = d < HALF
        mask = inside[:, None] & there[None, :]
        if ROTARY:
            starts = tl.load(tiles_ptr + HEADER + row, mask=inside, other=0)
            positions = first + row - starts
            place = positions[:, None] * HALF + d[None, :]
            ready = mask & (length <= TRAINED) if TRAINED > 0 else mask
            cos = tl.load(cos_ptr + place, mask=ready, other=0.0)
            sin = tl.load(sin_ptr + place, mask=ready, other=0.0)
            if TRAINED > 0:  # noqa: SIM102 (known when compiling)
                if length > TRAINED:
                    grown = stretch * length.to(tl.float32) / TRAINED - (stretch - 1)
                    shrunk = tl.exp2(d.to(tl.float32) * (-2.0 / (D - 2)) * tl.log2(grown))
                    speed = tl.load(speed_ptr + d, mask=there, other=0.0) * shrunk
                    angle = positions.to(tl.float32)[:, None] * speed[None, :]
                    cos = tl.cos(angle)
                    sin = tl.sin(angle)
        x_ptr += first.to(tl.int64) * TOKEN
        offsets = row[:, None] * TOKEN + d[None, :]
        for head in range(group * GROUP, min(group * GROUP + GROUP, HEADS + KEYS)):
            a = tl.load(x_ptr + head * D + offsets, mask=mask, other=0.0).to(tl.float32)
            b = tl.load(x_ptr + head * D + HALF + offsets, mask=mask, other=0.0).to(tl.float32)
            if NORM:
                scale = 1 / tl.sqrt_rn((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / D + eps)
                weights = weight_ptr + tl.where(head < HEADS, 0, D)
                a = a * scale[:, None] * tl.load(weights + d, mask=there, other=0.0)[None, :]
                b = b * scale[:, None] * tl.load(weights + HALF + d, mask=there, other=0.0)[None, :]
            if ROTARY:
                a, b = a * cos - b * sin, b * cos + a * sin
            tl.store(x_ptr + head * D + offsets, a.to(x_ptr.dtype.element_ty), mask=mask)
            tl.store(x_ptr + head * D + HALF + offsets, b.to(x_ptr.dtype.element_ty), mask=mask)
