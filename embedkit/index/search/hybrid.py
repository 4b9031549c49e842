"""Hybrid search: the scores of vectors and of words, fused.

Each query's candidates are its `DEPTH` best documents by vector and its `DEPTH` best by words (BM25). A document scores

    (1 - w) · (c - c_last) / (c_best - c_last)  +  w · b / max(b_best, b_rare)

where c is its cosine (or dot product), c_best and c_last those of the first and the last candidate by vector, b its
BM25 score and b_best the best one; what was not found by one of the two counts 0 there. b_rare is what a text of
average length with the `RARE` rarest words of the query would score (`attainable`): where no document has them, the
best one is no good match in words, and vectors count for more. Words are weighed by how many documents of the whole
index hold them, whatever segment these are in. Scores lie between 0 and 1, and 1 is the best by both. w, `DEPTH` and
`RARE` are those of `benchmarks/hybrid.py`.

A search for more than 100 hits takes 2 k of each. What is not among the candidates scores 0 and comes last, so that the
scores and the order of the first hits are those of a search for fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..storage.words import RARE, attainable

__all__ = ["DEPTH", "RARE", "WORDS_WEIGHT", "Parts", "attainable", "check_weight", "fuse"]

DEPTH = 200
"""The number of candidates by vector, and by words."""

WORDS_WEIGHT = 0.6
"""The weight of the words by default; that of the vectors is the rest."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the score of a hybrid search was made of: ``(1 - w) · vector + w · words``.

    Attributes:
        similarity: the cosine or dot product; ``None`` if the search by vectors did not find the document.
        bm25: the score of the words; ``None`` if it holds none of them, or the search by words did not find it.
        vector: ``similarity`` between the last candidate (0) and the best (1); 0 for what comes after it.
        words: ``bm25`` as a share of the best, or of what the query's rarest words would score if that is more.
    """

    similarity: float | None
    bm25: float | None
    vector: float
    words: float


def check_weight(weight: object) -> float:
    """``weight`` of the words, from 0 to 1.

    Raises:
        TypeError: it is not a number.
        ValueError: it is out of range.
    """
    if isinstance(weight, bool) or not hasattr(weight, "__float__"):
        raise TypeError(
            f"hybrid must be True, False, None or the weight of the words from 0 to 1, not {weight!r:.80}"
        )
    value = float(weight)
    if not 0 <= value <= 1:
        raise ValueError(f"the weight of the words (hybrid) must be from 0 to 1, not {value:g}")
    return value


def fuse(
    by_vector: Sequence[tuple[int, float]],
    by_words: Sequence[tuple[int, float]],
    weight: float,
    k: int,
    rare: float = 0.0,
    *,
    depth: int = DEPTH,
) -> list[tuple[int, float, Parts]]:
    """The best ``k`` rows with their scores and parts, best first; ties by vector, then by row.

    Args:
        by_vector: rows and similarities of what was found by vector, best first.
        by_words: rows and BM25 scores of what was found by words, best first.
        weight: of the words, from 0 to 1.
        k: most rows.
        rare: `attainable` of the query's words.
        depth: how many of each are candidates; the others score 0.
    """
    similarity, bm25 = dict(by_vector[:depth]), dict(by_words[:depth])
    best, last = (by_vector[0][1], by_vector[:depth][-1][1]) if by_vector else (0.0, 0.0)
    spread = best - last
    most = max(by_words[0][1], rare) if by_words else 0.0
    # all alike, such as a single candidate: all are the best
    vector = {row: (cosine - last) / spread if spread > 0 else 1.0 for row, cosine in similarity.items()}
    words = {row: score / most if most > 0 else 1.0 for row, score in bm25.items()}
    scores = {row: (1 - weight) * share for row, share in vector.items()}
    for row, share in words.items():
        scores[row] = scores.get(row, 0.0) + weight * share
    # most candidates are no hits: numbers sort faster than tuples
    least = min(sorted(scores.values(), reverse=True)[:k], default=0.0)
    found = sorted(
        (-score, -similarity.get(row, -math.inf), row)
        for row, score in scores.items()
        if score > 0 and score >= least
    )[:k]
    hits = [
        (row, -score, Parts(similarity.get(row), bm25.get(row), vector.get(row, 0.0), words.get(row, 0.0)))
        for score, _, row in found
    ]
    if len(hits) == k:
        return hits
    # what scores 0, in the order that the formula would give it if all were candidates
    similarity, bm25 = dict(by_vector), dict(by_words)
    lowest = min(similarity.values(), default=0.0)
    rest = sorted(
        (
            (weight - 1) * (similarity.get(row, lowest) - last) / (spread or 1)
            - weight * bm25.get(row, 0.0) / (most or 1),
            -similarity.get(row, -math.inf),
            row,
        )
        for row in similarity.keys() | bm25.keys()
        if not scores.get(row)
    )
    return hits + [
        (row, 0.0, Parts(similarity.get(row), bm25.get(row), vector.get(row, 0.0), words.get(row, 0.0)))
        for _, _, row in rest[: k - len(hits)]
    ]
