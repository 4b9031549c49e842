"""Hybrid search: the results of vectors and of words, fused by reciprocal rank.

A document scores the sum of 1 / (60 + rank) over the two rankings (Cormack, Clarke and Buettcher, SIGIR 2009).
Words are ranked by BM25 in an FTS5 index; each segment counts its own documents.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["DEPTH", "fuse"]

DEPTH = 100
"""Minimum length of each ranking."""

_RANK_CONSTANT = 60


def fuse(rankings: Iterable[Iterable[int]], k: int) -> list[tuple[int, float]]:
    """The best ``k`` rows of ``rankings`` with their scores, best first; ties by row."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] = scores.get(row, 0.0) + 1 / (_RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]
