"""One search, its arguments checked against the index: ready to run on any number of queries."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np

from ..storage.faiss_index import Float32Array, Int64Array
from ..storage.filters import Where
from ..storage.generation import Chosen, Generation
from ..storage.search_parameters import SearchParameters
from .hybrid import DEPTH, WORDS_WEIGHT, Parts, check_weight, fuse

__all__ = ["Found", "Hybrid", "PreparedSearch", "check_hybrid", "prepare"]

Hybrid = bool | float | None
"""Whether to search for words, too: ``None``: if the index has them; a number: the weight of the words, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
        scores: (n, k), best first.
        rows: (n, k); -1 where fewer were found.
        parts: of a hybrid search, for each query those of the hits found.
    """

    scores: Float32Array
    rows: Int64Array
    parts: list[list[Parts]] | None = None


@dataclass(frozen=True, slots=True)
class PreparedSearch:
    """What a search does, whatever the queries.

    Attributes:
        generation: what is searched.
        k: hits per query, at most as many as there are documents.
        parameters: how hard to search, completed by the index's defaults.
        chosen: the rows that match the condition; ``None``: there is no condition.
        words_weight: the weight of the words of the queries; ``None``: search by vectors only.
    """

    generation: Generation
    k: int
    parameters: SearchParameters
    chosen: Chosen | None
    words_weight: float | None

    def run(self, vectors: Float32Array, texts: list[str] | None) -> Found:
        """What is found for ``vectors`` (n, dimension); a hybrid search needs their ``texts`` as well."""
        if self.words_weight is None or texts is None:
            return Found(*self.generation.search(vectors, self.k, self.parameters, self.chosen))
        depth = max(DEPTH, 2 * self.k)
        documents = self.generation.manifest.documents
        depths = {min(depth, documents)}
        if not self.generation.compares_all:
            # this one finds the candidates: a deeper search may find other ones first
            depths.add(min(DEPTH, documents))
        searches = [
            self.generation.search(vectors, nearest, self.parameters, self.chosen)
            for nearest in sorted(depths)
        ]
        scores = np.zeros((len(texts), self.k), np.float32)
        rows = np.full((len(texts), self.k), -1, np.int64)
        parts = []
        for line, text in enumerate(texts):
            by_vector: dict[int, float] = {}
            for similarities, dense in searches:
                for row, similarity in zip(dense[line].tolist(), similarities[line].tolist(), strict=True):
                    if row >= 0:
                        by_vector.setdefault(row, similarity)
            asked = self.generation.asked(text)
            by_words = self.generation.keywords(asked, depth, self.chosen)
            fused = fuse(list(by_vector.items()), by_words, self.words_weight, self.k, asked.attainable)
            for place, (row, score, _) in enumerate(fused):
                rows[line, place], scores[line, place] = row, score
            parts.append([part for _, _, part in fused])
        return Found(scores, rows, parts)


def prepare(
    generation: Generation,
    k: int,
    parameters: SearchParameters,
    *,
    where: Where | None = None,
    hybrid: Hybrid = False,
) -> PreparedSearch:
    """Check the arguments of a search, and find the documents that the condition ``where`` selects.

    Raises:
        ValueError: an argument is out of range or does not apply to this index, or the condition is invalid.
        TypeError: an argument has the wrong type.
    """
    try:
        k = operator.index(k)
    except TypeError:
        raise TypeError(f"k must be an integer, not {k!r:.80}") from None
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    generation.check(parameters)
    return PreparedSearch(
        generation,
        min(k, generation.manifest.documents),
        generation.with_defaults(parameters),
        None if where is None else generation.choose(where),
        _words_weight(generation, hybrid),
    )


def check_hybrid(hybrid: Hybrid) -> Hybrid:
    """``hybrid``; a bool of numpy, which would be taken for the weight 0 or 1, as one of Python.

    Raises:
        ValueError, TypeError: as `check_weight`, if it is one.
    """
    if isinstance(hybrid, np.bool_):
        return bool(hybrid)
    return hybrid if hybrid is None or isinstance(hybrid, bool) else check_weight(hybrid)


def _words_weight(generation: Generation, hybrid: Hybrid) -> float | None:
    hybrid = check_hybrid(hybrid)
    if hybrid is None:
        return WORDS_WEIGHT if generation.searches_words else None
    if hybrid is False:
        return None
    if not generation.has_words:
        old = "were made by an earlier embedkit" if generation.has_old_words else "this index lacks"
        raise ValueError(
            f"hybrid search needs the words of the texts, which {old}; embedkit-index compact makes them"
        )
    if not generation.searches_words:
        raise ValueError(
            "hybrid search needs the words of the texts, and those of this index hold none; search it without --hybrid "
            "and --words-weight (hybrid=None)"
        )
    return WORDS_WEIGHT if hybrid is True else hybrid
