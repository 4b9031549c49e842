"""Spreads examples with the same text over batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["spread_repeated"]

Indices = npt.NDArray[np.int64]


def spread_repeated(block: Indices, texts: npt.NDArray[np.integer[Any]], batch_size: int) -> Indices:
    """The block in an order in which no run of ``batch_size`` examples holds a text twice, as far as possible.

    Each example goes, in order, to the first batch that has room and none of its texts. What fits nowhere then takes
    the place of an example that fits elsewhere; only texts in more examples than there are batches are repeated.

    Args:
        block: (n,) examples, of which one may occur several times.
        texts: (examples, fields), numbers of each example's texts.
        batch_size: of all batches but the last.
    """
    own = [frozenset(row) for row in texts[block].tolist()]
    examples = Counter(chain.from_iterable(own))
    own = [frozenset(text for text in row if examples[text] > 1) for row in own]
    batches = _Batches(own, batch_size)
    crowded = {text for text, count in examples.items() if count > batches.count}
    left = [i for i in range(len(own)) if not batches.place(i, own[i])]
    # no search can end the repetition of a crowded text
    left = [i for i in left if own[i] & crowded or not batches.swap(i)]
    for i in left:
        if not batches.place(i, own[i] - crowded):
            batches.place(i, frozenset())
    return block[np.argsort(batches.of, kind="stable")]


class _Batches:
    """Batches that are filled; a set of batches is an integer with a bit for each.

    Attributes:
        count: number of batches.
        of: the batch of each example; -1 for none.
    """

    def __init__(self, own: list[frozenset[int]], batch_size: int) -> None:
        """Batches, empty at first, of the examples with the texts ``own``."""
        self.count = -(-len(own) // batch_size)
        self.of = [-1] * len(own)
        self._own = own
        self._room = [batch_size] * (self.count - 1) + [len(own) - (self.count - 1) * batch_size]
        self._open = (1 << self.count) - 1  # with room
        self._holding: defaultdict[int, int] = defaultdict(int)  # a text -> the batches that hold it
        self._holder: dict[tuple[int, int], int] = {}  # batch and text -> its example
        self._target = -1
        self._movable: list[list[int]] = []

    def place(self, i: int, apart: frozenset[int]) -> bool:
        """Put an example into the first batch that has room and none of the texts ``apart``; False if there is none."""
        fits = self._open & ~self._with_any(apart)
        if not fits:
            return False
        at = _first(fits)
        self._put(i, at)
        self._room[at] -= 1
        if not self._room[at]:
            self._open &= ~(1 << at)
        return True

    def swap(self, i: int) -> bool:
        """Put an example in the place of one that fits into the first batch with room; False if there is none.

        Until then no batch holds a text twice.
        """
        target = _first(self._open)
        if target != self._target:
            self._target = target
            self._movable = [[] for _ in range(self.count)]
            for other, at in enumerate(self.of):
                if at >= 0:
                    self._movable[at].append(other)
        for at in range(self.count):
            moved = None if at == target else self._removable(i, at)
            if moved is not None:
                for text in self._own[moved]:
                    self._holding[text] &= ~(1 << at)
                self._put(i, at)
                self.of[moved] = -1
                return self.place(moved, self._own[moved])
        return False

    def _removable(self, i: int, at: int) -> int | None:
        """An example of a batch that fits into the target, and without which example ``i`` fits into its batch."""
        bit = 1 << at
        shared = {self._holder[at, text] for text in self._own[i] if self._holding[text] & bit}
        if shared:
            other = shared.pop()
            return None if shared or not self._fits_target(other) else other
        movable = self._movable[at]
        # the target only gains texts: what does not fit now does not fit later
        while movable and not (self.of[movable[-1]] == at and self._fits_target(movable[-1])):
            movable.pop()
        return movable.pop() if movable else None

    def _fits_target(self, i: int) -> bool:
        return not self._with_any(self._own[i]) >> self._target & 1

    def _with_any(self, texts: frozenset[int]) -> int:
        """The batches that hold one of the texts."""
        found = 0
        for text in texts:
            found |= self._holding[text]
        return found

    def _put(self, i: int, at: int) -> None:
        self.of[i] = at
        for text in self._own[i]:
            self._holding[text] |= 1 << at
            self._holder[at, text] = i


def _first(batches: int) -> int:
    return (batches & -batches).bit_length() - 1
