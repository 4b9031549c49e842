"""A whole generation of an index, opened for reading: its manifest and the segments listed there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from embedkit.index.documents import StoredDocument
from embedkit.index.errors import IndexDamagedError
from embedkit.index.faiss_index import Float32Array, Int64Array
from embedkit.index.layout import SEGMENTS_FOLDER, current_name, manifest_at
from embedkit.index.manifest import Manifest
from embedkit.index.segment import Segment


class Generation:
    """The segments of one manifest, searched as one; rows count through the segments in their order."""

    def __init__(self, manifest: Manifest, segments: list[Segment]) -> None:
        """Use `open_generation`."""
        self.manifest = manifest
        self.segments = segments
        self._starts = np.cumsum([0, *(segment.entry.rows for segment in segments)])

    def search(self, vectors: Float32Array, k: int, nprobe: int | None) -> tuple[Float32Array, Int64Array]:
        """Scores and rows of the best ``k`` (at most all documents), both (n, k); row -1 where none is."""
        found = [segment.search(vectors, min(k, segment.entry.rows), nprobe) for segment in self.segments]
        if len(found) == 1:
            return found[0]
        scores = np.concatenate([scores for scores, _ in found], axis=1)
        starts = self._starts[:-1]
        rows = np.concatenate(
            [np.where(rows < 0, -1, rows + start) for (_, rows), start in zip(found, starts, strict=True)],
            axis=1,
        )
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]  # Faiss scores a missing hit -3.4e38
        return np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)

    def key(self, row: int) -> str:
        """The key of ``row``; ``IndexError`` if there is no such row."""
        number, local = self._locate(row)
        return self.segments[number].keys[local]

    def fetch(self, rows: Int64Array) -> dict[int, StoredDocument]:
        """The documents of all ``rows`` but -1, by row, with one query to each segment concerned."""
        wanted: dict[int, list[int]] = {}
        for row in np.unique(rows[rows >= 0]).tolist():
            number, local = self._locate(row)
            wanted.setdefault(number, []).append(local)
        return {
            int(self._starts[number]) + local: document
            for number, local_rows in wanted.items()
            for local, document in self.segments[number].documents.fetch(local_rows).items()
        }

    def _locate(self, row: int) -> tuple[int, int]:
        """Segment number and row in it."""
        if not 0 <= row < self.manifest.documents:
            raise IndexError(f"row {row} is not in the index of {self.manifest.documents} documents")
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return number, int(row - self._starts[number])

    def close(self) -> None:
        """Close the files."""
        for segment in self.segments:
            segment.close()


def open_generation(root: Path, accept: Callable[[Manifest], None]) -> Generation:
    """Open the live generation of the index at ``root``, if ``accept`` raises nothing about its manifest.

    Raises:
        IndexNotFoundError: no finished index is there.
        IndexDamagedError: a file is missing, has the wrong size, or cannot be read.
    """
    while True:
        name = current_name(root)
        try:
            manifest = manifest_at(root, name)
            accept(manifest)
            return Generation(manifest, _open_segments(root, manifest))
        except (FileNotFoundError, IndexDamagedError) as error:
            # a build may have replaced the index since its name was read: then open the new generation
            if current_name(root) != name:
                continue
            if isinstance(error, FileNotFoundError):
                raise IndexDamagedError(
                    f"{error.filename}: missing, though the index lists it; build the index again"
                ) from None
            raise


def _open_segments(root: Path, manifest: Manifest) -> list[Segment]:
    with contextlib.ExitStack() as opened:
        segments = []
        for entry in manifest.segments:
            folder = root / SEGMENTS_FOLDER / entry.name
            segment = Segment(folder, entry, dimension=manifest.dimension, nprobe=manifest.nprobe)
            opened.callback(segment.close)
            segments.append(segment)
        opened.pop_all()
    return segments
