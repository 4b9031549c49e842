"""Attention over packed sequences, with relative position bias and rotary positions, in one Triton kernel.

    s_ij = scale · R_i q_i · R_j k_j + bias[j − i]            i, j tokens of one sequence, j within a window if any
    o_i  = Σ_j softmax_j(s_ij) v_j

`varlen_attention_triton` explains the algorithm; this file checks arguments, chooses block sizes and launches. Forward
only.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from .attention_tiles import BLOCK, HEADER, attention_tiles
from .blocks import blocks, capability_of
from .launch import INTEGERS, check_tensors, device_of
from .varlen_attention_triton import forward

__all__ = ["MAX_HEAD_SIZE", "max_head_size", "varlen_attention"]

MAX_HEAD_SIZE = 256
"""A program holds the rows of a tile in registers."""
_FARTHEST = 2**30  # added to the number of a token, it fits 32 bits


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    rotary_value: bool = False,
    before: int | None = None,
    after: int | None = None,
    tile_map: Tensor | None = None,
) -> Tensor:
    """Attention of every token to the tokens of its own sequence; softmax and sums are float32.

    If a sequence has 16-bit values that are not finite (float16 beyond 65504), its own results become NaN, those of
    others do not change.

    Args:
        query, key, value: (tokens, heads, head_size), float32, float16 or bfloat16 on a GPU. The values of a head
            must be adjacent in memory; other strides are free, e.g. for slices of one matrix, but a sequence must lie
            within 2^31 values. Key and value may have fewer heads, each for as many of the queries'.
        cu_seqlens: (sequences + 1,), int32 or int64: sequence b is the tokens ``cu_seqlens[b]`` up to
            ``cu_seqlens[b + 1]``, from 0 on; used only without ``tile_map``.
        max_seqlen: tokens of the longest sequence; ``bias`` and ``rotary`` must reach that far.
        scale: factor of the scores; head_size ** -0.5 by default.
        bias: (heads, 2 · max_distance − 1) float32: ``bias[h, max_distance − 1 + j − i]`` is added to the score
            of query i and key j; finite.
        rotary: cosines and sines, each (positions, head_size / 2) float32, contiguous; entry d of row p rotates
            the values 2 d and 2 d + 1 of query and key at position p of their sequence.
        rotary_value: rotate the values as well.
        before, after: how many tokens before and after itself a token sees (a causal mask is ``after=0``); by default
            all of its sequence. The time grows with the window, not with the sequence.
        tile_map: `attention_tiles` on the device. The launch depends on its shape only, so that a CUDA graph can be
            replayed with other lengths. Results of tokens outside all tiles are uninitialized. By default it is
            computed from ``cu_seqlens``, which synchronizes the GPU.

    Returns:
        (tokens, heads, head_size), contiguous, with the type of ``query``.

    Raises:
        ValueError: shapes, types or devices do not fit.
    """
    _check(query, key, value, cu_seqlens, max_seqlen, bias, rotary, rotary_value, tile_map)
    for name, reach in (("before", before), ("after", after)):
        if reach is not None and reach < 0:
            raise ValueError(f"{name} must not be negative, and is {reach}")
    tokens, heads, size = query.shape
    if tile_map is None:
        bounds = cu_seqlens.cpu()
        lengths = bounds.diff().numpy()
        if bounds[0] != 0 or lengths.max(initial=0) > max_seqlen:
            raise ValueError(
                f"cu_seqlens must start with 0, with at most max_seqlen = {max_seqlen} tokens in a sequence, "
                f"not {bounds[0]} and {lengths.max(initial=0)}"
            )
        tile_map = torch.from_numpy(attention_tiles(lengths, tokens=tokens)).to(query.device)
    result = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if result.numel() == 0:
        return result
    cos, sin = (None, None) if rotary is None else rotary
    with device_of(query):
        forward[(len(tile_map) * heads,)](
            query, key, value, result, tile_map, None if bias is None else bias.contiguous(), cos, sin,
            size**-0.5 if scale is None else scale,
            HEADS=heads,
            QUERY_TOKEN=query.stride(0), QUERY_HEAD=query.stride(1),
            KEY_TOKEN=key.stride(0), KEY_HEAD=key.stride(1),
            VALUE_TOKEN=value.stride(0), VALUE_HEAD=value.stride(1),
            MAX_DISTANCE=0 if bias is None else (bias.shape[1] + 1) // 2,
            ROTARY=rotary is not None, ROTARY_VALUE=rotary_value, SHARED=heads // key.shape[1],
            # Compiled in: a clamp to anything that varies would compile a kernel for each batch.
            BEFORE=-1 if before is None else min(before, _FARTHEST),
            AFTER=-1 if after is None else min(after, _FARTHEST),
            **_options(
                size, query.element_size(), tile_map.shape[1] - HEADER, capability_of(query.device),
                bias=bias is not None, rotary=rotary is not None,
            ),
        )  # fmt: skip
    return result


def max_head_size(capability: int) -> int:
    """The largest heads that fit the shared memory of a GPU of ten times this compute capability."""
    return MAX_HEAD_SIZE if capability >= 80 else 128


def _options(
    head_size: int, element_size: int, block: int = BLOCK, capability: int = 80, *, bias: bool, rotary: bool
) -> dict[str, Any]:
    """The compile-time arguments of `forward` that follow from the shapes."""
    plain = not bias and not rotary
    block_d = max(16, triton.next_power_of_2(head_size))
    options: dict[str, Any] = {
        "D": head_size,
        "HEADER": HEADER,
        "BLOCK_M": block,
        "BLOCK_D": block_d,
        "WIDEN": bool(triton.knobs.runtime.interpret),
    }
    # The largest number of keys per step that does not spill registers.
    if element_size == 4:
        # float32 products run from registers, without tensor cores: fewer keys, more threads, no pipelining.
        narrow = block_d <= 32
        warps = 8 if block_d <= 64 else 16 if plain else 32
        return {**options, "BLOCK_N": 32 if narrow else 16, "num_warps": warps, "num_stages": 1}
    warps = 8 if block * max(block_d, 64) > 4096 else 4
    # Small heads: many programs per multiprocessor hide more latency than loading keys ahead would, which takes as many
    # registers again. On an H100 one stage is 29 % faster for heads of 32 with a bias, and up to 10 % for plain ones of
    # 64; with a bias those take 2.
    # Two stages of rotated heads of 256 do not fit the shared memory of sm_86, sm_89 and sm_120.
    one = block_d <= (64 if plain else 32) or (rotary and block_d > 128)
    stages = 1 if one else 2
    return options | blocks("varlen_attention", capability, BLOCK_N=32, num_warps=warps, num_stages=stages)


def _shares(query: Tensor, key: Tensor) -> bool:
    """Whether each head of ``key`` belongs to equally many of ``query``."""
    return (
        key.ndim == 3
        and key.shape[::2] == query.shape[::2]
        and key.shape[1] > 0
        and query.shape[1] % key.shape[1] == 0
    )


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    bias: Tensor | None,
    rotary: tuple[Tensor, Tensor] | None,
    rotary_value: bool,
    tile_map: Tensor | None,
) -> None:
    """Raise a ValueError for anything wrong that can be seen without reading GPU memory."""
    if query.ndim != 3:
        raise ValueError(f"query must be (tokens, heads, head_size), not {tuple(query.shape)}")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        fits = tensor.shape == (query if name == "query" else key).shape and _shares(query, tensor)
        if not fits or tensor.dtype != query.dtype:
            raise ValueError(
                f"{name} is {tensor.dtype} {tuple(tensor.shape)}, query {query.dtype} {tuple(query.shape)}"
            )
        if tensor.numel() and tensor.stride(2) != 1:
            raise ValueError(f"the values of a head of {name} are not adjacent. Call contiguous() on it.")
        longest = min(max_seqlen, len(tensor))
        if longest * tensor.stride(0) >= 2**31:
            raise ValueError(
                f"{longest} tokens of {name} lie {tensor.stride(0)} values apart, beyond 2^31 in all. "
                "Call contiguous() on it."
            )
    _, heads, size = query.shape
    if not 1 <= size <= MAX_HEAD_SIZE:
        raise ValueError(f"heads of {size} values; the kernel supports 1 to {MAX_HEAD_SIZE}")
    if cu_seqlens.ndim != 1 or len(cu_seqlens) == 0 or cu_seqlens.dtype not in INTEGERS:
        raise ValueError(
            "cu_seqlens must be int32 or int64 (sequences + 1,), "
            f"not {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
    if bias is not None:
        distance = bias.shape[-1] // 2 + 1
        if bias.dtype != torch.float32 or bias.shape != (heads, 2 * distance - 1):
            raise ValueError(
                f"bias must be float32 ({heads}, 2 max_distance - 1), not {bias.dtype} {tuple(bias.shape)}"
            )
        if max_seqlen > distance:
            raise ValueError(f"bias reaches sequences of {distance} tokens, max_seqlen is {max_seqlen}")
    if rotary_value and rotary is None:
        raise ValueError("rotary_value rotates values by rotary; pass rotary as well.")
    for name, table in zip(("cos", "sin"), rotary or (), strict=False):
        if table.dtype != torch.float32 or table.ndim != 2 or 2 * table.shape[1] != size:
            raise ValueError(
                f"rotary {name} must be float32 (positions, head_size / 2 = {size / 2:g}), "
                f"not {table.dtype} {tuple(table.shape)}"
            )
        if len(table) < max_seqlen or not table.is_contiguous():
            raise ValueError(
                f"rotary {name} must be contiguous and have max_seqlen = {max_seqlen} rows, not {len(table)}"
            )
    if tile_map is not None and (
        tile_map.dtype != torch.int32
        or tile_map.ndim != 2
        or tile_map.shape[1] - HEADER not in (16, 32, 64, 128)
        or not tile_map.is_contiguous()
    ):
        raise ValueError(
            "tile_map must be contiguous int32 as returned by attention_tiles, "
            f"not {tile_map.dtype} {tuple(tile_map.shape)}"
        )
    if tile_map is not None and tile_map.shape[1] - HEADER > BLOCK and size > 128:
        raise ValueError(
            f"tiles of {tile_map.shape[1] - HEADER} tokens for heads of {size} values do not fit a GPU's memory for "
            f"a program; make them of {BLOCK}: attention_tiles(lengths, {BLOCK})"
        )
    cos, sin = (None, None) if rotary is None else rotary
    check_tensors(
        query=query, key=key, value=value, bias=bias, cos=cos, sin=sin,
        others={"tile_map": tile_map}, instead="torch.nn.functional.scaled_dot_product_attention",
    )  # fmt: skip
