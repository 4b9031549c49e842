"""One immutable segment of an index: vectors, keys and documents that share their row numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from embedkit.index import faiss_index
from embedkit.index.documents import DOCUMENTS_FILE, KEYS_FILE, Document, DocumentReader, DocumentWriter, Keys
from embedkit.index.errors import BuildError, IndexDamagedError
from embedkit.index.faiss_index import Float32Array, Int64Array
from embedkit.index.manifest import SEGMENT_FILES, SegmentEntry, hash_file

VECTORS_FILE = "vectors.faiss"
_SPOOL_FILE = "vectors.f32"


class SegmentWriter:
    """Writes a segment into an empty folder, in bounded memory but for the Faiss index itself.

    Vectors are spooled to a file as they come. Only when their number is known can ``auto`` choose, and the
    training sample be drawn from all of them; then the Faiss index is made in memory and written, and the
    spool goes.
    """

    def __init__(self, folder: Path, dimension: int) -> None:
        """Open the files in ``folder`` for vectors of ``dimension`` columns."""
        self._folder = folder
        self._dimension = dimension
        self._documents = DocumentWriter(folder)
        self._spool = (folder / _SPOOL_FILE).open("xb", buffering=0)
        self._vectors = 0

    @property
    def rows(self) -> int:
        """Documents added so far."""
        return self._documents.rows

    def add_document(self, document: Document) -> None:
        """Append a document (`InputError` if it cannot be stored); its vector follows, in the same order."""
        self._documents.add(document)

    def add_vectors(self, vectors: Float32Array) -> None:
        """Append ``vectors``: (n, dimension) float32, finite."""
        view = memoryview(np.ascontiguousarray(vectors, "<f4").tobytes())
        while view:  # an unbuffered write may be short
            view = view[self._spool.write(view) :]
        self._vectors += len(vectors)

    def finish(
        self, name: str, factory: str, *, threads: int | None, progress: Callable[[str, int, int], None]
    ) -> tuple[SegmentEntry, str, int | None, int | None]:
        """Build and write the Faiss index, close all files, and hash them.

        Returns:
            The manifest entry under ``name``, the factory string with ``auto`` resolved, nlist and nprobe.
        """
        rows = self.rows
        if self._vectors != rows:
            raise AssertionError(f"{rows} documents, {self._vectors} vectors")
        self._documents.finish()
        self._spool.close()
        spool = self._folder / _SPOOL_FILE
        factory = faiss_index.resolve_factory(factory, rows)
        vectors = np.memmap(spool, "<f4", "r", shape=(rows, self._dimension))
        index = faiss_index.build_index(factory, vectors, threads=threads, progress=progress)
        del vectors
        spool.unlink()
        faiss_index.write_index(index, self._folder / VECTORS_FILE)
        ivf = faiss_index.ivf_of(index)
        files = {file: hash_file(self._folder / file) for file in SEGMENT_FILES}
        lists = (None, None) if ivf is None else (int(ivf.nlist), int(ivf.nprobe))
        return SegmentEntry(name, rows, files), factory, *lists

    def close(self) -> None:
        """Let go of the files, finished or not."""
        self._spool.close()
        self._documents.close()


class Segment:
    """A finished segment, opened for reading."""

    def __init__(self, folder: Path, entry: SegmentEntry, *, dimension: int, nprobe: int | None) -> None:
        """Open the segment ``entry`` in ``folder``, checking the size of each file.

        Raises:
            FileNotFoundError: a file is missing.
            IndexDamagedError: a file has another size than the manifest says, or cannot be read.
        """
        self.folder = folder
        self.entry = entry
        for name, file in entry.files.items():
            size = (folder / name).stat().st_size
            if size != file.size:
                raise IndexDamagedError(
                    f"{folder / name}: {size} bytes, and the manifest says {file.size}; build the index again"
                )
        self.keys = Keys(folder / KEYS_FILE, entry.rows)
        self.vectors = faiss_index.read_index(folder / VECTORS_FILE, rows=entry.rows, dimension=dimension)
        self._ivf = faiss_index.ivf_of(self.vectors)
        if self._ivf is not None and nprobe is not None:
            self._ivf.nprobe = nprobe
        self.documents = DocumentReader(folder / DOCUMENTS_FILE, entry.rows)

    def search(self, vectors: Float32Array, k: int, nprobe: int | None) -> tuple[Float32Array, Int64Array]:
        """Scores and rows of the ``k`` best for each of ``vectors``, both (n, k); row -1 where none is."""
        parameters = None if nprobe is None else faiss_index.search_parameters(self.vectors, nprobe)
        scores, rows = self.vectors.search(vectors, k, params=parameters)
        return scores, rows

    def verify(self) -> None:
        """Hash every file and count the documents; `IndexDamagedError` names what does not fit."""
        for name, file in self.entry.files.items():
            if hash_file(self.folder / name).sha256 != file.sha256:
                raise IndexDamagedError(
                    f"{self.folder / name}: the content does not match its SHA-256 in the manifest; "
                    "build the index again"
                )
        if self.documents.count() != self.entry.rows:
            raise IndexDamagedError(
                f"{self.folder / DOCUMENTS_FILE}: rows are missing; build the index again"
            )

    def close(self) -> None:
        """Close the files."""
        self.documents.close()


def check_vectors(vectors: object, texts: int, dimension: int) -> tuple[Float32Array, Int64Array]:
    """What an encoder returned as float32 (texts, dimension), and the rows that hold NaN or infinity.

    Raises:
        BuildError: the shape is another one.
    """
    array = np.asarray(vectors, dtype=np.float32)
    if array.shape != (texts, dimension):
        raise BuildError(
            f"the encoder returned an array {array.shape} for {texts} texts, not ({texts}, {dimension})"
        )
    # One pass that makes no array: a sum is finite unless a term is not (or it overflows: then look closely).
    if np.isfinite(array.sum(dtype=np.float64)):
        return array, np.empty(0, np.int64)
    return array, np.flatnonzero(~np.isfinite(array).all(axis=1))
