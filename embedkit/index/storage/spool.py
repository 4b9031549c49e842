"""Vectors in a plain file: what a build has encoded, in its order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .faiss_index import Float32Array

__all__ = ["BLOCK_ROWS", "SPOOL_FILE", "Spool", "SpoolWriter"]

SPOOL_FILE = "vectors.f32"
BLOCK_ROWS = 16_384


class SpoolWriter:
    """Appends vectors to a file."""

    def __init__(self, path: Path, dimension: int, rows: int = 0) -> None:
        """Open ``path`` for (…, dimension) float32; keep its first ``rows`` rows."""
        self.path = path
        self._bytes_per_row = 4 * dimension
        self._file = path.open("ab", buffering=0)
        self._file.truncate(rows * self._bytes_per_row)

    @property
    def rows(self) -> int:
        """Complete rows in the file, by its size on disk: Ctrl-C may strike between a write and a count."""
        return os.fstat(self._file.fileno()).st_size // self._bytes_per_row

    def add(self, vectors: Float32Array) -> None:
        """Append ``vectors``: (n, dimension) float32."""
        view = memoryview(np.ascontiguousarray(vectors, "<f4").tobytes())
        while view:  # an unbuffered write may be short
            view = view[self._file.write(view) :]

    def sync(self) -> None:
        """Make what was appended survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Spool:
    """The vectors in a file, read in blocks: a map's pages would count as memory of the process."""

    def __init__(self, path: Path, rows: int, dimension: int) -> None:
        """Read (rows, dimension) float32 from ``path``."""
        self.path = path
        self.rows = rows
        self.dimension = dimension

    def read(self, begin: int, end: int) -> Float32Array:
        """Rows ``begin`` to ``end`` (exclusive)."""
        width = self.dimension
        values = np.fromfile(self.path, "<f4", (end - begin) * width, offset=4 * begin * width)
        return values.reshape(end - begin, width).astype(np.float32, copy=False)

    def blocks(self, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, Float32Array]]:
        """First row and vectors of each block from ``begin`` to ``end``."""
        end = self.rows if end is None else end
        for start in range(begin, end, BLOCK_ROWS):
            yield start, self.read(start, min(start + BLOCK_ROWS, end))

    def sample(self, count: int, begin: int, end: int, seed: int) -> Float32Array:
        """``count`` of the rows from ``begin`` to ``end``, random and the same every time, in their order."""
        if count >= end - begin:
            return self.read(begin, end)
        chosen = begin + np.sort(np.random.default_rng(seed).choice(end - begin, count, replace=False))
        taken = [
            block[
                chosen[np.searchsorted(chosen, start) : np.searchsorted(chosen, start + len(block))] - start
            ]
            for start, block in self.blocks(begin, end)
        ]
        return np.concatenate(taken)
