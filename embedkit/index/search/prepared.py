"""One search, its arguments checked against the index: ready to run on any number of queries."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import numpy as np

from ..storage.faiss_index import Float32Array, Int64Array
from ..storage.generation import Chosen, Generation
from ..storage.search_parameters import SearchParameters
from .hybrid import DEPTH, fuse

__all__ = ["PreparedSearch", "check_search_parameters", "prepare"]


@dataclass(frozen=True, slots=True)
class PreparedSearch:
    """What a search does, whatever the queries.

    Attributes:
        generation: what is searched.
        k: hits per query, at most as many as there are documents.
        parameters: how hard to search, completed by the index's defaults.
        chosen: the rows that match the condition; ``None``: there is no condition.
        hybrid: also search for the words of the queries.
    """

    generation: Generation
    k: int
    parameters: SearchParameters
    chosen: Chosen | None
    hybrid: bool

    def run(self, vectors: Float32Array, texts: list[str] | None) -> tuple[Float32Array, Int64Array]:
        """Scores and rows, both (n, k), of ``vectors`` (n, dimension); row -1 where fewer were found.

        A hybrid search needs the ``texts`` as well.

        Raises:
            ValueError: the search is hybrid, and the index has no full-text index.
        """
        if self.hybrid and texts is not None:
            return self._run_hybrid(vectors, texts)
        return self.generation.search(vectors, self.k, self.parameters, self.chosen)

    def _run_hybrid(self, vectors: Float32Array, texts: list[str]) -> tuple[Float32Array, Int64Array]:
        if not all(segment.entry.keywords for segment in self.generation.segments):
            raise ValueError(
                "hybrid search needs a full-text index, which this index lacks; embedkit-index compact adds it"
            )
        depth = max(DEPTH, 2 * self.k)
        nearest = min(depth, self.generation.manifest.documents)
        _, dense = self.generation.search(vectors, nearest, self.parameters, self.chosen)
        scores = np.zeros((len(texts), self.k), np.float32)
        rows = np.full((len(texts), self.k), -1, np.int64)
        for line, text in enumerate(texts):
            by_vector = [row for row in dense[line].tolist() if row >= 0]
            by_words = self.generation.keywords(text, depth, self.chosen)
            for place, (row, score) in enumerate(fuse((by_vector, by_words), self.k)):
                rows[line, place], scores[line, place] = row, score
        return scores, rows


def prepare(
    generation: Generation,
    k: int,
    parameters: SearchParameters,
    *,
    where: str | None = None,
    hybrid: bool = False,
) -> PreparedSearch:
    """Check the arguments of a search, and find the documents that the condition ``where`` selects.

    Raises:
        ValueError: an argument is out of range or does not apply to this index, or the condition is invalid.
    """
    try:
        k = operator.index(k)
    except TypeError:
        raise TypeError(f"k must be an integer, not {k!r:.80}") from None
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    check_search_parameters(generation, parameters)
    return PreparedSearch(
        generation,
        min(k, generation.manifest.documents),
        generation.with_defaults(parameters),
        None if where is None else generation.choose(where),
        hybrid,
    )


def check_search_parameters(generation: Generation, parameters: SearchParameters) -> None:
    """Raise ValueError if a parameter is out of range or does not apply to this kind of index."""
    nprobe, ef, rescore = parameters.nprobe, parameters.ef, parameters.rescore
    if rescore is not None and rescore < 0:
        raise ValueError(f"rescore must be 0 (off) or more, not {rescore}")
    if nprobe is not None and not generation.nlist:
        raise ValueError(f"nprobe does not apply: the index is {generation.factory}, without inverted lists")
    if nprobe is not None and not 1 <= nprobe <= generation.nlist:
        raise ValueError(
            f"nprobe must be from 1 to {generation.nlist}, the lists of this index, not {nprobe}"
        )
    if ef is not None and not generation.ef:
        raise ValueError(f"ef does not apply: the index is {generation.factory}, not HNSW")
    if ef is not None and ef < 1:
        raise ValueError(f"ef must be at least 1, not {ef}")
