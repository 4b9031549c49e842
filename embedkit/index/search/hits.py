"""From queries to hits: what a search takes, how it is checked, and what it gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..storage.faiss_index import Float32Array, Int64Array
from ..storage.faiss_part import Effort
from ..storage.generation import Chosen, Generation
from ..storage.manifest import Manifest
from .hybrid import DEPTH, fuse

_LEAST_SQUARE, _MOST_SQUARE = 1e-30, 1e36
_TINY = 1e-38

Queries = str | Sequence[str] | npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer to a query.

    Attributes:
        rank: 1 for the best.
        score: cosine or dot product, as the index' metric says; of a hybrid search the fused score.
        id: of the document.
        text: the document's text.
        metadata: what else was stored with it.
    """

    rank: int
    score: float
    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


def texts_of(queries: Queries) -> list[str]:
    """The queries as a list of texts (`TypeError` if one is none)."""
    texts = [queries] if isinstance(queries, str) else list(queries)
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"query {position} is {type(text).__name__}; give texts, or vectors as one NumPy array"
            )
    return texts


def check_vectors(vectors: npt.NDArray[np.floating[Any]], manifest: Manifest) -> Float32Array:
    """Query vectors as float32 (n, dimension), normalized for cosine (`ValueError` if they cannot be used)."""
    array = np.ascontiguousarray(vectors, np.float32)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[1] != manifest.dimension:
        raise ValueError(
            f"query vectors have the shape {np.shape(vectors)}, the index needs (n, {manifest.dimension})"
        )
    if len(array) == 1:  # one query should not cost the overhead of six array operations
        square = float(array[0].dot(array[0]))
        if _LEAST_SQUARE < square < _MOST_SQUARE:
            return array if manifest.metric == "dot" else array / np.float32(math.sqrt(square))
    squares = np.einsum("ij,ij->i", array, array)
    if not np.isfinite(squares).all() and not np.isfinite(array).all():
        raise ValueError("a query vector holds NaN or infinity")
    if manifest.metric == "cosine":
        norms = np.sqrt(squares)
        if len(squares) and not _LEAST_SQUARE < squares.min() <= squares.max() < _MOST_SQUARE:
            norms = np.linalg.norm(
                array.astype(np.float64), axis=1
            )  # a square was too large or small for float32
        array = (array / np.maximum(norms, _TINY)[:, None]).astype(np.float32, copy=False)
    return array


def check_limits(
    generation: Generation, k: int, nprobe: int | None, ef: int | None, rescore: int | None
) -> None:
    """Raise ValueError for an argument that is out of range or does not apply."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if rescore is not None and rescore < 0:
        raise ValueError(f"rescore must be 0 (off) or more, not {rescore}")
    if nprobe is None and ef is None:
        return
    if nprobe is not None and not 1 <= nprobe <= generation.nlist:
        if not generation.nlist:
            kind = main_factory(generation)
            raise ValueError(f"nprobe does not apply: the index is {kind}, without inverted lists")
        raise ValueError(
            f"nprobe must be from 1 to {generation.nlist} (the lists of this index), not {nprobe}"
        )
    if ef is not None:
        if not generation.ef:
            raise ValueError(f"ef does not apply: the index is {main_factory(generation)}, not HNSW")
        if ef < 1:
            raise ValueError(f"ef must be at least 1, not {ef}")


def main_factory(generation: Generation) -> str:
    """The Faiss factory string of the part with the most vectors; that asked for, where there is none."""
    parts = [part for segment in generation.segments for part in segment.parts]
    if not parts:
        return generation.manifest.factory
    return max(parts, key=lambda part: part.rows).entry.factory


def to_hits(generation: Generation, scores: Float32Array, rows: Int64Array) -> list[list[Hit]]:
    """The documents of ``rows`` (n, k), -1 for none, as hits."""
    documents = generation.fetch(rows)
    result = []
    for line_scores, line in zip(scores.tolist(), rows.tolist(), strict=True):
        hits: list[Hit] = []
        for score, row in zip(line_scores, line, strict=True):
            if row >= 0:
                document = documents[row]
                hits.append(Hit(len(hits) + 1, score, document.id, document.text, document.metadata))
        result.append(hits)
    return result


def hybrid_rows(
    generation: Generation,
    texts: list[str],
    vectors: Float32Array,
    *,
    k: int,
    effort: Effort,
    chosen: Chosen | None,
) -> tuple[Float32Array, Int64Array]:
    """Fused scores and rows (n, k) of what the vectors and what the words of each query find.

    Raises:
        ValueError: the index has no words.
    """
    if not all(segment.entry.keywords for segment in generation.segments):
        raise ValueError(
            "the index has no full-text index, so that hybrid search is not possible; run embedkit-index compact"
        )
    depth = max(DEPTH, 2 * k)
    _, dense = generation.search(vectors, min(depth, generation.manifest.documents), effort, chosen)
    scores = np.zeros((len(texts), k), np.float32)
    rows = np.full((len(texts), k), -1, np.int64)
    for line, text in enumerate(texts):
        found = [row for row in dense[line].tolist() if row >= 0]
        for place, (row, score) in enumerate(fuse((found, generation.keywords(text, depth, chosen)), k)):
            rows[line, place], scores[line, place] = row, score
    return scores, rows
