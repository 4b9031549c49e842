"""The original vectors of a segment: for exact scores, for filters that leave few rows, and for compaction.

A Faiss index that stores vectors unchanged (Flat, RFlat, and HNSW and inverted files over Flat) returns them. Any
other is accompanied by ``vectors.raw``, little endian: float32 (rows, dimension), or int8 of that shape followed by
one float32 scale per row, whose product with the integers is the vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...files import link_or_copy
from ...forking import fork_lock
from .faiss_index import Float32Array, Int64Array, import_faiss, ivf_of
from .manifest import Raw
from .spool import Spool

__all__ = [
    "MISSING",
    "FaissVectors",
    "RawFile",
    "RawVectors",
    "best",
    "exact_search",
    "quantize",
    "raw_size",
    "rescore",
    "write_raw",
]


class RawVectors(Protocol):
    """Returns the vectors of rows."""

    def gather(self, rows: Int64Array) -> Float32Array:
        """The vectors of ``rows`` of the segment: (n, dimension)."""


class RawFile:
    """Vectors in ``vectors.raw``, mapped."""

    def __init__(self, path: Path, kind: Raw, rows: int, dimension: int) -> None:
        """Map ``path``; the caller has checked its size."""
        shape = (rows, dimension)
        self._scales = None
        if kind == "int8":
            self._values = np.memmap(path, "i1", "r", shape=shape)
            self._scales = np.memmap(path, "<f4", "r", offset=rows * dimension, shape=(rows,))
        else:
            self._values = np.memmap(path, "<f4", "r", shape=shape)

    def gather(self, rows: Int64Array) -> Float32Array:
        """See `RawVectors`."""
        vectors = np.asarray(self._values[rows], np.float32)
        if self._scales is not None:
            vectors *= np.asarray(self._scales[rows], np.float32)[:, None]
        return vectors


class FaissVectors:
    """Vectors read back from the Faiss indexes of a segment."""

    def __init__(self, indexes: Sequence[Any], starts: Sequence[int], dimension: int) -> None:
        """``starts``: the first row of each index, and the total number of rows."""
        self._indexes = indexes
        self._starts = np.asarray(starts)
        self._dimension = dimension
        self._lock = fork_lock()
        self._ready = False

    def gather(self, rows: Int64Array) -> Float32Array:
        """See `RawVectors`; an index that quantizes returns approximations."""
        with self._lock:  # the map from rows to positions in the lists is built once, by one thread
            if not self._ready:
                for index in self._indexes:
                    ivf = ivf_of(index)
                    if ivf is not None:
                        ivf.make_direct_map(False)  # a fork may have left this process one that is half made
                        ivf.make_direct_map()
                self._ready = True
        vectors = np.empty((len(rows), self._dimension), np.float32)
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for number, index in enumerate(self._indexes):
            mine = np.flatnonzero(owners == number)
            if len(mine):
                vectors[mine] = index.reconstruct_batch(rows[mine] - self._starts[number])
        return vectors


def write_raw(spool: Spool, path: Path, kind: Raw) -> None:
    """Write ``spool`` to ``vectors.raw`` at ``path``; the spool's file is kept."""
    path.unlink(missing_ok=True)
    if kind == "fp32":
        link_or_copy(spool.path, path)
        return
    scales = []
    with path.open("xb") as file:
        for _, block in spool.blocks():
            codes, scale = quantize(block)
            file.write(codes.tobytes())
            scales.append(scale)
        file.write(np.concatenate(scales).astype("<f4").tobytes())


def quantize(vectors: Float32Array) -> tuple[np.ndarray[Any, Any], Float32Array]:
    """int8 (n, dimension) and scales float32 (n,), whose product approximates ``vectors``."""
    scales = np.maximum(np.abs(vectors).max(axis=1), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales.astype(np.float32)


def raw_size(kind: Raw, rows: int, dimension: int) -> int:
    """Bytes of ``vectors.raw``."""
    return rows * (dimension + 4) if kind == "int8" else 4 * rows * dimension


def best(scores: Float32Array, rows: Int64Array, k: int) -> tuple[Float32Array, Int64Array]:
    """The ``k`` best columns of each line of ``scores`` and ``rows`` (n, m), best first; ties in order."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def exact_search(
    vectors: Float32Array, k: int, rows: Int64Array, gather: Callable[[Int64Array], Float32Array]
) -> tuple[Float32Array, Int64Array]:
    """The best ``k`` of ``rows``, whose vectors ``gather`` reads: scores and rows, both (n, min(k, len(rows)))."""
    faiss = import_faiss()
    k = min(k, len(rows))
    scores = np.empty((len(vectors), 0), np.float32)
    found = np.empty((len(vectors), 0), np.int64)
    for begin in range(0, len(rows), 16_384):
        block = rows[begin : begin + 16_384]
        some, places = faiss.knn(
            vectors, gather(block), min(k, len(block)), metric=faiss.METRIC_INNER_PRODUCT
        )
        scores = np.concatenate([scores, some], axis=1)
        found = np.concatenate([found, block[places]], axis=1)
        if begin:
            scores, found = best(scores, found, k)
    return scores, found


def rescore(
    vectors: Float32Array, rows: Int64Array, k: int, gather: Callable[[Int64Array], Float32Array]
) -> tuple[Float32Array, Int64Array]:
    """Rank candidates ``rows`` (n, m), -1 for none, by their vectors, which ``gather`` reads; keep the best ``k``."""
    scores = np.full(rows.shape, MISSING, np.float32)
    step = max(1, (1 << 22) // max(1, rows.shape[1] * vectors.shape[1]))  # 16 MiB of candidates at once
    for begin in range(0, len(rows), step):
        block = rows[begin : begin + step]
        lines, columns = np.nonzero(block >= 0)
        candidates = gather(block[lines, columns])
        scores[begin + lines, columns] = np.einsum("ij,ij->i", candidates, vectors[begin + lines])
    return best(scores, rows, k)


MISSING = np.float32(-3.4028235e38)
"""The score that Faiss returns for a missing hit."""
