"""Vectors from an encoder or a document: checked, and normalized."""

from __future__ import annotations

import numpy as np

from ..errors import BuildError
from .faiss_index import Float32Array, Int64Array

__all__ = ["check_encoded", "normalize_rows"]

_LENGTH_ERROR = 1e-6  # of a vector that was normalized in float32


def check_encoded(vectors: object, texts: int, dimension: int) -> tuple[Float32Array, Int64Array]:
    """What an encoder returned as float32 (texts, dimension), and the rows that hold NaN or infinity.

    Raises:
        BuildError: the shape is another one.
    """
    array = np.asarray(vectors, dtype=np.float32)
    if array.shape != (texts, dimension):
        raise BuildError(
            f"the encoder returned an array {array.shape} for {texts} texts, not ({texts}, {dimension})"
        )
    # One pass without a temporary array: a sum is finite unless a term is not (or it overflows: then look closely).
    if np.isfinite(array.sum(dtype=np.float64)):
        return array, np.empty(0, np.int64)
    return array, np.flatnonzero(~np.isfinite(array).all(axis=1))


def normalize_rows(vectors: Float32Array) -> Float32Array:
    """``vectors`` (n, dimension) at length 1; zeros, and rows that already have that length, stay bit for bit."""
    # a float32 square overflows beyond 1e19, so the largest value is taken out first
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    scaled = vectors / largest
    norms: Float32Array = np.linalg.norm(scaled, axis=1, keepdims=True)
    there = np.abs(norms.astype(np.float64) * largest - 1) <= _LENGTH_ERROR
    return np.where(there, vectors, scaled / np.maximum(norms, np.finfo(np.float32).tiny)).astype(np.float32)
