"""Chooses the CUDA graph for a batch: a graph has a fixed number of tokens, sequences and tiles.

Graph sizes are spaced so that a batch of more than `SMALL` tokens leaves at most 6 % of its graph's tokens idle.
Smaller batches, such as one query, cost the same whatever their size, since launching the kernels takes longer than
running them: their graph sizes double, starting from 16.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

__all__ = ["IDLE", "SMALL", "Buckets"]

IDLE = 0.06
"""Maximum share of idle tokens in a bucket larger than `SMALL`."""
SMALL = 512
_STEP = 16  # tokens: Triton compiles one kernel for all multiples of 16
_TEXT_TOKENS = 4  # a batch whose texts are shorter than this on average has no graph


class Buckets:
    """The sizes of CUDA graphs for batches of at most ``budget`` tokens."""

    def __init__(self, budget: int) -> None:
        """Choose sizes: about 65 for a budget of 16384 tokens."""
        self.budget = max(_STEP, budget // _STEP * _STEP)
        sizes = [_STEP]
        while sizes[-1] < self.budget:
            last = sizes[-1]
            if last < SMALL:
                sizes.append(min(2 * last, self.budget))
            else:
                # The worst case is a batch with one token more than the previous size.
                most = int((last + 1) / (1 - IDLE)) // _STEP * _STEP
                sizes.append(min(most, self.budget))
        self.sizes = sizes

    @staticmethod
    def sequences(size: int) -> int:
        """The number of sequences in the graph of ``size`` tokens; a smaller batch is filled up with empty ones."""
        return -(-size // (_TEXT_TOKENS * _STEP)) * _STEP

    def usual(self, spare: float) -> list[int]:
        """Sizes, largest first, of which one fits any batch with at most ``spare`` of its tokens idle.

        All sizes up to `SMALL` belong to them: those of single queries.
        """
        found = [self.sizes[-1]]
        for size, below in zip(reversed(self.sizes), [*reversed(self.sizes[:-1]), 0], strict=True):
            # Without this size, batches of one token more than the next would leave too much of the last idle.
            if size < found[-1] and (size <= SMALL or below + 1 < found[-1] * (1 - spare)):
                found.append(size)
        return found

    def choose(self, tokens: int, texts: int) -> int | None:
        """The size of the graph for a batch; None to run the batch without a graph, at its own size."""
        for size in self.sizes[bisect_left(self.sizes, tokens) :]:
            if size > SMALL and size - tokens > IDLE * size:
                return None
            if texts <= self.sequences(size):
                return size
        return None

    def cut(self, lengths: npt.NDArray[np.int32], most_texts: int) -> list[int]:
        """Cut sequences of ``lengths``, longest first, into batches of the budget; see `Stage.cut`.

        A sequence longer than the budget becomes a batch of its own.
        """
        most = min(most_texts or len(lengths), self.sequences(self.budget))
        ends = np.cumsum(lengths, dtype=np.int64)
        bounds = [0]
        while bounds[-1] < len(lengths):
            begin = bounds[-1]
            before = int(ends[begin - 1]) if begin else 0
            fitting = int(np.searchsorted(ends, before + self.budget, side="right"))
            bounds.append(max(begin + 1, min(fitting, begin + most)))
        return bounds
