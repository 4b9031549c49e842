"""The words of a query: what is asked of the full-text index, and what they can score (`index.words` makes them)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

__all__ = ["RARE", "attainable", "common_from", "match_expression", "phrases_of"]

RARE = 3
"""Rarest words of a query that a document is expected to hold."""

_COMMON_SHARE = 0.05
_LEAST_COMMON = 10
_MOST_WORDS = 64
_WORD = re.compile(r"\w+")
_PHRASE = re.compile(r'"(?:[^"]|"")*"(?: \*)?')


def match_expression(query: str) -> str | None:
    """The FTS5 expression for documents that contain any word of ``query``; ``None`` if it has no words.

    For a full-text index that an earlier embedkit made; `index.words.analyzer` has today's.
    """
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))[:_MOST_WORDS]
    return " OR ".join(f'"{word}"' for word in words) or None


def common_from(rows: int) -> int:
    """The number of texts, of ``rows`` in all, from which on a word that is in so many is common."""
    return max(int(rows * _COMMON_SHARE), _LEAST_COMMON)


def phrases_of(match: str) -> list[str]:
    """The distinct phrases of an FTS5 expression, each an expression of its own."""
    return list(dict.fromkeys(_PHRASE.findall(match)))


def attainable(counts: Sequence[int], rows: int) -> float:
    """The BM25 score of a text of average length that holds the `RARE` rarest words of a query once.

    Args:
        counts: for each word of the query that is not common, how many of the texts hold it.
        rows: texts in all.
    """
    # as FTS5 weighs a word; of such a text, the other factor of BM25 is 1
    weights = [max(math.log((rows - count + 0.5) / (count + 0.5)), 1e-6) for count in counts]
    return sum(sorted(weights, reverse=True)[:RARE])
