"""Queries as given by the caller: texts or vectors, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from ...inputs import check_collection
from ..storage.faiss_index import Float32Array
from ..storage.manifest import Manifest

__all__ = ["Queries", "are_vectors", "query_rows", "query_texts", "query_vectors"]

_LEAST_SQUARE, _MOST_SQUARE = 1e-30, 1e36
_TINY = 1e-38

Queries = str | Sequence[str] | npt.NDArray[np.floating[Any]]
"""A text, several texts, or vectors (n, dimension) or (dimension,)."""


def are_vectors(queries: Queries) -> TypeGuard[npt.NDArray[np.floating[Any]]]:
    """Whether ``queries`` are vectors: an array, unless it is one of texts."""
    if not isinstance(queries, np.ndarray) or queries.dtype.kind in "UT":
        return False
    return (
        queries.dtype.kind != "O" or queries.ndim != 1 or not any(isinstance(one, str) for one in queries[:1])
    )


def query_texts(queries: Queries) -> list[str]:
    """The queries as a list of texts.

    Raises:
        TypeError: they are neither a text nor several in a defined order, or one is not a text.
        ValueError: one is empty or white space, which is near to no document in particular.
    """
    if isinstance(queries, str):
        texts = [queries]
    else:
        check_collection(queries, "a text, several texts or vectors")
        texts = list(queries)
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"query {position} is {type(text).__name__}; queries are texts, or vectors in one NumPy array"
            )
        if not text.strip():
            raise ValueError(f"query {position} is empty; give a text to look for")
    return texts


def query_rows(vectors: npt.NDArray[np.floating[Any]], dimension: int) -> Float32Array:
    """Query vectors as float32 (n, dimension).

    Raises:
        ValueError: the shape is not (n, dimension) or (dimension,).
    """
    array = np.ascontiguousarray(vectors, np.float32)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[1] != dimension:
        raise ValueError(
            f"query vectors have the shape {np.shape(vectors)}, the index needs (n, {dimension})"
        )
    return array


def query_vectors(vectors: npt.NDArray[np.floating[Any]], manifest: Manifest) -> Float32Array:
    """Query vectors as float32 (n, dimension), normalized if the metric is cosine.

    Raises:
        ValueError: the shape is not (n, dimension) or (dimension,), or a vector holds NaN or infinity.
    """
    array = query_rows(vectors, manifest.dimension)
    if len(array) == 1:  # spares a single query the overhead of six array operations
        with np.errstate(over="ignore"):  # a square beyond float32 is computed again below
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
