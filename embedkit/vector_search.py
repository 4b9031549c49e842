"""Semantic search and paraphrase mining in memory, like sentence-transformers' utilities of the same names.

Both are a k-nearest-neighbor search by inner product in Faiss, which computes the matrix of scores in blocks of
fixed size: memory is that of the vectors and the results, never n².
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .arguments import check_positive
from .index.storage.faiss_index import (
    Float32Array,
    Int64Array,
    create_index,
    default_nprobe,
    import_faiss,
    ivf_of,
    resolve_factory,
    train,
)
from .inputs import check_collection
from .output import holds_texts

if TYPE_CHECKING:
    from .encoder import Encoder

__all__ = ["paraphrase_mining", "semantic_search"]

Score = Literal["cosine", "dot"]

# sentence-transformers passes functions of its ``util``, recognized by their names.
_SCORES = {
    "cosine": "cosine",
    "dot": "dot",
    "cos_sim": "cosine",
    "pytorch_cos_sim": "cosine",
    "dot_score": "dot",
}
_BLOCK_CELLS = 1 << 20  # neighbors of a block of queries
_BUFFERED_PAIRS = 1 << 20  # pairs collected before only the best are kept


def semantic_search(  # noqa: PLR0917 (the positions of sentence-transformers)
    query_embeddings: Any,
    corpus_embeddings: Any,
    query_chunk_size: int | None = None,
    corpus_chunk_size: int | None = None,
    top_k: int = 10,
    score_function: Score | Callable[..., Any] = "cosine",
) -> list[list[dict[str, int | float]]]:
    """The ``top_k`` rows of the corpus most similar to each query, by exact search.

    For vectors on disk, more than fit in memory, or millions of them, use `Index`.

    Args:
        query_embeddings: (n, dim) or (dim,): an array, a torch tensor, or a list of them.
        corpus_embeddings: (m, dim), likewise.
        query_chunk_size, corpus_chunk_size: accepted as in sentence-transformers, without effect: memory is bounded.
        top_k: results per query.
        score_function: ``"cosine"`` or ``"dot"``, or sentence-transformers' ``cos_sim`` or ``dot_score``.

    Returns:
        For each query a list of ``{"corpus_id": row, "score": score}``, best first.

    Raises:
        TypeError: texts are given in place of their vectors, or ``top_k`` is not an integer.
        ValueError: the shapes do not match, a value is not finite, or the score function is unknown.
        ImportError: Faiss is not installed.
    """
    k = check_positive("top_k", top_k)
    cosine = _check_score(score_function) == "cosine"
    queries = _matrix("query_embeddings", query_embeddings, cosine)
    corpus = _matrix("corpus_embeddings", corpus_embeddings, cosine)
    if not len(queries) or not len(corpus):
        return [[] for _ in range(len(queries))]
    if queries.shape[1] != corpus.shape[1]:
        raise ValueError(
            f"query_embeddings have {queries.shape[1]} dimensions and corpus_embeddings {corpus.shape[1]}; "
            "encode both with one model and one truncate_dim"
        )
    scores, rows = _exact(corpus)(queries, min(k, len(corpus)))
    return [
        [{"corpus_id": row, "score": score} for row, score in zip(line, values, strict=True)]
        for line, values in zip(rows.tolist(), scores.tolist(), strict=True)
    ]


def paraphrase_mining(  # noqa: PLR0917 (the positions of sentence-transformers)
    model: Encoder,
    sentences: Sequence[str],
    show_progress_bar: bool = False,
    batch_size: int | None = None,
    query_chunk_size: int | None = None,
    corpus_chunk_size: int | None = None,
    max_pairs: int = 500_000,
    top_k: int = 100,
    score_function: Score | Callable[..., Any] = "cosine",
    truncate_dim: int | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
    *,
    factory: str = "Flat",
) -> list[list[int | float]]:
    """The most similar pairs of sentences.

    A pair counts when one sentence is among the ``top_k`` nearest of the other.

    Args:
        model: the encoder.
        sentences: the texts.
        show_progress_bar, batch_size, truncate_dim, prompt_name, prompt: as in `Encoder.encode`.
        query_chunk_size, corpus_chunk_size: as in `semantic_search`, without effect.
        max_pairs: return at most this many pairs, the best ones.
        top_k: nearest neighbors to consider per sentence.
        score_function: as in `semantic_search`.
        factory: the Faiss index that finds the neighbors: ``"Flat"`` compares all pairs; ``"auto"`` is an inverted
            file from 20,000 sentences on, which is much faster and misses a few pairs; or any ``factory`` of
            `Index.build`.

    Returns:
        A list of ``[score, i, j]``, best first, where i < j are positions in ``sentences``.

    Raises:
        TypeError: ``sentences`` is one text, or holds something else than texts, or an argument has the wrong type.
        ValueError: an argument is out of range or unknown.
        ImportError: Faiss is not installed.
    """
    k, most = check_positive("top_k", top_k), check_positive("max_pairs", max_pairs)
    cosine = _check_score(score_function) == "cosine"
    if isinstance(sentences, str):
        raise TypeError("sentences must be a list of texts, not one text")
    check_collection(sentences, "a list of texts as sentences")
    texts = list(sentences)
    if len(texts) < 2:
        return []
    import_faiss()  # before all texts are encoded: if it is missing, say so at once
    vectors = model.encode(
        texts,
        batch_size=batch_size,
        show_progress_bar=show_progress_bar,
        truncate_dim=truncate_dim,
        prompt_name=prompt_name,
        prompt=prompt,
    )
    vectors = _matrix("the vectors of the sentences", vectors, cosine)
    resolved = resolve_factory(factory, len(vectors))
    search = _exact(vectors) if resolved == "Flat" else _indexed(vectors, resolved)
    pairs = _Pairs(len(vectors), most)
    wanted = min(k + 1, len(vectors))  # a sentence is its own neighbor
    rows = max(1, _BLOCK_CELLS // wanted)
    for first in range(0, len(vectors), rows):
        pairs.add(first, *search(vectors[first : first + rows], wanted), k)
    return pairs.best()


class _Pairs:
    """The best ``most`` pairs of ``n`` sentences seen so far, each once."""

    def __init__(self, n: int, most: int) -> None:
        self._n, self._most = n, most
        self._keys: list[Int64Array] = []  # i * n + j for i < j
        self._scores: list[Float32Array] = []
        self._held = 0

    def add(self, first: int, scores: Float32Array, columns: Int64Array, k: int) -> None:
        """Add the neighbors (rows, k + 1) of the sentences from ``first`` on."""
        rows = np.arange(first, first + len(columns))[:, None]
        others = (columns != rows) & (columns >= 0)  # -1 where an index found fewer
        # Among many copies of a sentence it may not be its own neighbor: then one of the k + 1 is too many.
        others &= np.cumsum(others, axis=1) <= k
        keys = np.minimum(rows, columns) * self._n + np.maximum(rows, columns)
        self._keys.append(keys[others])
        self._scores.append(scores[others])
        self._held += int(others.sum())
        if self._held > max(_BUFFERED_PAIRS, 2 * self._most):
            self._prune()

    def _prune(self) -> None:
        keys, at = np.unique(np.concatenate(self._keys), return_index=True)
        scores = np.concatenate(self._scores)[at]
        if len(keys) > self._most:
            best = np.argpartition(-scores, self._most - 1)[: self._most]
            keys, scores = keys[best], scores[best]
        self._keys, self._scores, self._held = [keys], [scores], len(keys)

    def best(self) -> list[list[int | float]]:
        """``[score, i, j]``, best first; equal scores in the order of i and j."""
        self._prune()
        keys, scores = self._keys[0], self._scores[0]
        order = np.lexsort((keys, -scores))
        left, right = np.divmod(keys[order], self._n)
        return [
            list(pair) for pair in zip(scores[order].tolist(), left.tolist(), right.tolist(), strict=True)
        ]


def _exact(corpus: Float32Array) -> Callable[[Float32Array, int], tuple[Float32Array, Int64Array]]:
    """Exact search in ``corpus``, without copying it."""
    faiss = import_faiss()

    def search(queries: Float32Array, k: int) -> tuple[Float32Array, Int64Array]:
        scores, rows = faiss.knn(queries, corpus, k, metric=faiss.METRIC_INNER_PRODUCT)
        return scores, rows

    return search


def _indexed(
    corpus: Float32Array, factory: str
) -> Callable[[Float32Array, int], tuple[Float32Array, Int64Array]]:
    """Search in a Faiss index of ``corpus``."""
    index = create_index(factory, corpus.shape[1])
    ivf = ivf_of(index)
    if ivf is not None:
        ivf.cp.min_points_per_centroid = 1  # no warning on stderr about few vectors
        ivf.nprobe = default_nprobe(ivf.nlist)
    try:
        train(index, corpus)
        index.add(corpus)
    except RuntimeError as error:
        raise ValueError(
            f"Faiss cannot build {factory!r} from {len(corpus)} vectors; use 'Flat', or fewer lists or bits"
        ) from error

    def search(queries: Float32Array, k: int) -> tuple[Float32Array, Int64Array]:
        scores, rows = index.search(queries, k)
        return scores, rows

    return search


def _check_score(score_function: Any) -> str:
    name = score_function
    if callable(name):  # another library's cos_sim may be another function
        module = getattr(name, "__module__", None) or ""
        name = getattr(name, "__name__", None) if module.startswith("sentence_transformers.") else None
    known = _SCORES.get(name) if isinstance(name, str) else None
    if known is None:
        raise ValueError(
            f"unknown score_function={score_function!r}; use 'cosine' or 'dot', "
            "or cos_sim or dot_score of sentence-transformers"
        )
    return known


def _matrix(name: str, values: Any, normalize: bool) -> Float32Array:
    """``values`` as (n, dim) float32 in C order, with rows of length 1 if ``normalize``."""
    if hasattr(values, "detach"):  # torch, from any device and in any of its types
        values = values.detach().cpu().float().numpy()
    elif isinstance(values, list | tuple) and values and hasattr(values[0], "detach"):
        values = [row.detach().cpu().float().numpy() for row in values]
    if holds_texts(values):
        raise TypeError(f"{name} holds texts; pass their vectors: encoder.encode(texts)")
    array: npt.NDArray[Any] = np.ascontiguousarray(values, np.float32)
    if array.size == 0:
        return np.empty((0, 0), np.float32)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2:
        raise ValueError(f"{name}: the shape is {array.shape}, expected (n, dim)")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: row {int(np.argwhere(~np.isfinite(array))[0][0])} holds NaN or infinity")
    if normalize:
        # in float64: the square of what a float32 holds can be too large or too small for one
        norms = np.sqrt(np.einsum("ij,ij->i", array, array, dtype=np.float64))[:, None]
        norms[norms == 0] = 1.0
        array = np.divide(array, norms, out=np.empty_like(array), dtype=np.float64, casting="same_kind")
    return array
