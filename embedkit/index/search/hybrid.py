"""Hybrid search: what the vectors find and what the words find, by reciprocal rank fusion.

A document's score is the sum of 1 / (60 + rank) over the two lists that it stands in (Cormack, Clarke and
Buettcher, SIGIR 2009). The words' list is that of BM25 over an FTS5 index, each segment with its own counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["DEPTH", "fuse", "match_expression"]

DEPTH = 100
"""Least length of the two lists."""

_RANK_CONSTANT = 60
_MOST_WORDS = 64
_WORD = re.compile(r"\w+")


def match_expression(query: str) -> str | None:
    """The FTS5 query for documents that hold any word of ``query``; ``None`` where it has no word."""
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))[:_MOST_WORDS]
    return " OR ".join(f'"{word}"' for word in words) or None


def fuse(lists: Iterable[Iterable[int]], k: int) -> list[tuple[int, float]]:
    """The best ``k`` rows of ranked ``lists``, best first, with their scores; ties by row."""
    scores: dict[int, float] = {}
    for ranked in lists:
        for rank, row in enumerate(ranked, 1):
            scores[row] = scores.get(row, 0.0) + 1 / (_RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]
