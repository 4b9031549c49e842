"""Divides a packed batch into tiles, one for each program of `embedkit.kernels.varlen_attention`.

A tile is up to ``block`` adjacent tokens of a packed batch: several whole sequences, or a part of one that is longer
than the block. This fills the tensor cores with queries even if sequences are short, and a whole sequence needs only
one pass over its keys, which are the tokens of its tile.

This is the readable implementation; `_core.TokenWindow.pack` computes the same tiles for the GPU backend, ten times
faster (csrc/pipeline/attention_tiles.cc).
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK", "HEADER", "attention_tiles", "max_attention_tiles"]

BLOCK = 64
"""Default number of tokens in a tile."""
HEADER = 4
"""Columns of a tile before the starts of the sequences of its tokens."""


def max_attention_tiles(tokens: int, block: int = BLOCK, *, descending: bool = False) -> int:
    """The maximum number of tiles of a batch of ``tokens`` tokens, including tokens of no sequence.

    Two adjacent tiles of whole sequences hold more than ``block`` tokens together, every part of a long sequence but
    the last holds ``block``, and a long sequence may be followed by its remainder and a single short sequence: three
    tiles per block, and two at the ends.

    With ``descending``, no sequence is longer than the one before it. Then the short ones come together: n > block
    tokens of a long one take ⌈n / block⌉ < 2 n / block tiles, and s tokens of short ones at most 2 s / (block + 1) + 1.
    """
    return 2 * tokens // block + 2 if descending else 3 * (tokens // block) + 2


def attention_tiles(
    lengths: npt.ArrayLike, block: int = BLOCK, *, tokens: int | None = None, tiles: int | None = None
) -> npt.NDArray[np.int32]:
    """The tiles of a packed batch.

    Args:
        lengths: (sequences,) tokens of each sequence; empty ones take no tile.
        block: tokens in a tile: 16, 32, 64 or 128.
        tokens: rows of the batch; those after the last sequence (the padding of a CUDA graph) get tiles without
            keys, whose result is zero. Default: the sum of the lengths.
        tiles: rows of the result, fixed for all batches of a CUDA graph; `max_attention_tiles` is sufficient.
            Default: as many as needed, at least 1.

    Returns:
        (tiles, 4 + block) int32: first token, end token, first key, end key, and for each of its tokens the
        first token of its sequence. Idle tiles are zero.

    Raises:
        ValueError: the arguments do not fit together, or there are more tiles than ``tiles``.
    """
    if block not in (16, 32, 64, 128):
        raise ValueError(f"block must be 16, 32, 64 or 128, not {block}")
    sizes = np.asarray(lengths, dtype=np.int64)
    if sizes.ndim != 1 or (sizes < 0).any():
        raise ValueError(f"lengths must be (sequences,) and not negative, not {sizes!r:.80}")
    sizes = sizes[sizes > 0]
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    used = int(bounds[-1])
    tokens = used if tokens is None else tokens
    if not used <= tokens < 2**31:
        raise ValueError(
            f"the sequences have {used} tokens, the batch {tokens}; it must have at least as many"
        )

    # One step per tile, not per sequence.
    ends = bounds.tolist()
    headers: list[tuple[int, int, int, int]] = []
    sequence = 0
    while sequence < len(sizes):
        start = ends[sequence]
        fitting = bisect_right(ends, start + block, lo=sequence) - 1
        if fitting > sequence:
            headers.append((start, ends[fitting], start, ends[fitting]))
            sequence = fitting
        else:
            end = ends[sequence + 1]
            headers += [(first, min(first + block, end), start, end) for first in range(start, end, block)]
            sequence += 1
    headers += [(first, min(first + block, tokens), 0, 0) for first in range(used, tokens, block)]
    count = max(1, len(headers)) if tiles is None else tiles
    if len(headers) > count:
        raise ValueError(
            f"the batch has {len(headers)} tiles, and there is room for {count}; "
            f"max_attention_tiles({tokens}, {block}) = {max_attention_tiles(tokens, block)} is always sufficient"
        )

    result = np.zeros((count, HEADER + block), dtype=np.int32)
    if headers:
        filled = result[: len(headers)]
        filled[:, :HEADER] = headers
        starts = np.zeros(tokens, dtype=np.int32)
        starts[:used] = np.repeat(bounds[:-1], sizes)
        rows = filled[:, :1] + np.arange(block)
        inside = rows < filled[:, 1:2]
        filled[:, HEADER:][inside] = starts[rows[inside]]
    return result
