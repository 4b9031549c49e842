"""One immutable segment of an index: vectors, ids and documents that share their row numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...forking import cached_property, fork_lock
from ..errors import IndexDamagedError
from .document_store import DocumentReader, StoredDocument
from .faiss_index import Float32Array, Int64Array, can_read_back
from .faiss_part import Allowed, Bits, FaissPart, count_bits, rows_of
from .ids import Ids
from .layout import TOMBSTONES_FOLDER
from .manifest import DOCUMENTS_FILE, IDS_FILE, RAW_FILE, SegmentEntry, altered, hash_file
from .raw import FaissVectors, RawFile, RawVectors, best, exact_search, raw_size, rescore
from .search_parameters import SearchParameters
from .words import Words

__all__ = ["CHARACTERS_AT_ONCE", "Segment"]

CHARACTERS_AT_ONCE = 4 << 20
"""Of documents in memory together: one may have 64 MiB."""

_IDS_AT_ONCE = 4096  # a multiple of 8


class Segment:
    """A finished segment, opened for reading. Thread-safe.

    Attributes:
        dead: the bitmap of deleted rows; ``None`` if there are none.
    """

    def __init__(self, root: Path, folder: Path, entry: SegmentEntry, *, dimension: int) -> None:
        """Open the segment ``entry`` in ``folder``, checking the size of each file; Faiss' are read when needed.

        Raises:
            FileNotFoundError: a file is missing.
            IndexDamagedError: a file has another size than the manifest says, or cannot be read.
        """
        self.folder = folder
        self.entry = entry
        for name, file in entry.files.items():
            _check_size(folder / name, file.size)
        self.ids = Ids(folder / IDS_FILE, entry.rows)
        self._dimension = dimension
        self.parts = [
            FaissPart(folder / part.file, part, dimension, entry.files[part.file]) for part in entry.parts
        ]
        self.starts = [0, *np.cumsum([part.rows for part in self.parts]).tolist()]
        self._lock = fork_lock()
        self._raw: RawVectors | None = None
        if entry.raw != "none":
            _check_size(folder / RAW_FILE, raw_size(entry.raw, entry.rows, dimension))
            self._raw = RawFile(folder / RAW_FILE, entry.raw, entry.rows, dimension)
        self.dead: Bits | None = None
        if entry.tombstones is not None:
            path = root / TOMBSTONES_FOLDER / entry.tombstones.file
            _check_size(path, entry.tombstones.size)
            self.dead = np.fromfile(path, np.uint8)
            if hashlib.sha256(self.dead.tobytes()).hexdigest() != entry.tombstones.sha256:
                raise altered(path)
            self._alive = ~self.dead
            if entry.rows % 8:  # bits beyond the last row do not belong to rows
                self._alive[-1] &= (1 << entry.rows % 8) - 1
        self.documents = DocumentReader(folder / DOCUMENTS_FILE, entry.rows)
        self.words = Words(self.documents, entry.rows)

    @cached_property
    def exact(self) -> bool:
        """Whether the scores of all its Faiss indexes are exact."""
        return all(part.exact for part in self.parts)

    @property
    def keeps_vectors(self) -> bool:
        """Whether it has vectors, and not only codes."""
        return self.entry.raw != "none" or self.exact

    @property
    def rescores(self) -> bool:
        """Whether it has vectors, or finer codes, to score again what was found by its codes."""
        return self.keeps_vectors or any(part.refined for part in self.parts)

    @cached_property
    def can_read_back(self) -> bool:
        """Whether `raw` is nearly what was encoded: kept beside the codes, or read back from them."""
        return self.keeps_vectors or all(can_read_back(part.factory) for part in self.entry.parts)

    @property
    def raw(self) -> RawVectors:
        """The vectors as they are kept."""
        with self._lock:  # one object, which prepares each Faiss index once
            if self._raw is None:
                indexes = [part.index for part in self.parts]
                self._raw = FaissVectors(indexes, self.starts, self._dimension)
            return self._raw

    def alive(self, row: int) -> bool:
        """Whether ``row`` is not deleted."""
        return self.dead is None or not (self.dead[row >> 3] >> (row & 7)) & 1

    def living(self) -> Bits | None:
        """The bitmap of rows that are not deleted, ``None`` for all."""
        return None if self.dead is None else self._alive

    def living_ids(self) -> Iterator[list[str]]:
        """The ids of the rows that are not deleted, in blocks in order."""
        for begin in range(0, self.entry.rows, _IDS_AT_ONCE):
            rows = np.arange(begin, min(begin + _IDS_AT_ONCE, self.entry.rows))
            if self.dead is not None:
                dead = np.unpackbits(
                    self.dead[begin // 8 :][: _IDS_AT_ONCE // 8], count=len(rows), bitorder="little"
                )
                rows = rows[dead == 0]
            yield self.ids.many(rows)

    def find(self, ids: Iterable[str]) -> dict[str, int]:
        """The rows of those ``ids`` that this segment holds, without deleted ones."""
        return {document_id: row for document_id, row in self.documents.find(ids).items() if self.alive(row)}

    def search(
        self, vectors: Float32Array, k: int, chosen: Bits | None, parameters: SearchParameters
    ) -> tuple[Float32Array, Int64Array, npt.NDArray[np.bool_]]:
        """What is best for each of ``vectors``.

        Args:
            vectors: (n, dimension).
            k: most hits per query.
            chosen: rows that match a condition, without deleted ones; ``None``: no condition.
            parameters: how hard to search.

        Returns:
            Scores and rows, both (n, ≤ k), row -1 where fewer were found; and of each query whether a part compared its
            vectors because fewer were found by its codes.
        """
        if len(self.parts) == 1:
            return self._search_part(0, vectors, k, chosen, parameters)
        found = [
            self._search_part(number, vectors, k, chosen, parameters) for number in range(len(self.parts))
        ]
        scores = np.concatenate([scores for scores, _, _ in found], axis=1)
        rows = np.concatenate(
            [
                np.where(rows < 0, -1, rows + start)
                for (_, rows, _), start in zip(found, self.starts, strict=False)
            ],
            axis=1,
        )
        return *best(scores, rows, k), np.any([completed for _, _, completed in found], axis=0)

    def _search_part(
        self, number: int, vectors: Float32Array, k: int, chosen: Bits | None, parameters: SearchParameters
    ) -> tuple[Float32Array, Int64Array, npt.NDArray[np.bool_]]:
        part = self.parts[number]
        start = self.starts[number]
        allowed = self._allowed(number, chosen)
        completed = np.zeros(len(vectors), np.bool_)

        def exact(queries: Int64Array, k: int, rows: Int64Array) -> tuple[Float32Array, Int64Array]:
            completed[queries] = not part.exact
            scores, found = exact_search(vectors[queries], k, rows + start, self.raw.gather)
            return scores, found - start

        if allowed is not None and allowed.few:
            scores, rows = exact_search(vectors, k, rows_of(allowed.bits) + start, self.raw.gather)
            return scores, rows - start, completed
        if part.exact or not parameters.rescore:
            return *part.search(vectors, k, allowed, parameters, exact), completed
        _, rows = part.search(vectors, k * parameters.rescore, allowed, parameters, exact)
        scores, rows = rescore(vectors, np.where(rows < 0, -1, rows + start), k, self.raw.gather)
        return scores, np.where(rows < 0, -1, rows - start), completed

    def _allowed(self, number: int, chosen: Bits | None) -> Allowed | None:
        """The rows that a search of a part may find; ``None`` for all."""
        bits = self.living() if chosen is None else chosen
        if bits is None:
            return None
        start = self.starts[number]
        mine = bits[start // 8 : (start + self.parts[number].rows + 7) // 8]
        return Allowed(mine, count_bits(mine), chosen is not None)

    def compares_vectors(self, chosen: Bits) -> set[bool]:
        """Of each part with codes and ``chosen`` rows: whether their vectors are compared, and not the codes."""
        coded = [number for number, part in enumerate(self.parts) if not part.exact]
        allowed = [self._allowed(number, chosen) for number in coded]
        return {one.few for one in allowed if one is not None and one.count}

    def living_documents(self) -> Iterator[tuple[int, StoredDocument, int]]:
        """`DocumentReader.scan` without the rows that are deleted."""
        return (found for found in self.documents.scan() if self.alive(found[0]))

    def scan(self, block: int = 2048) -> Iterator[tuple[list[StoredDocument], Float32Array]]:
        """Documents and vectors (n, dimension) of the rows that are not deleted, in blocks in order.

        A block has ``block`` rows, or fewer with long texts or metadata.
        """
        documents: list[StoredDocument] = []
        rows: list[int] = []
        characters = 0
        for row, document, size in self.living_documents():
            documents.append(document)
            rows.append(row)
            characters += size
            if len(rows) == block or characters >= CHARACTERS_AT_ONCE:
                yield documents, self.raw.gather(np.array(rows))
                documents, rows, characters = [], [], 0
        if rows:
            yield documents, self.raw.gather(np.array(rows))

    def check_files(self, *names: str) -> None:
        """Hash the files ``names``, by default all, and raise `IndexDamagedError` for one that was altered.

        What is copied gets a hash of its own, so that damage which is not found before is never found.
        """
        for name in names or self.entry.files:
            if hash_file(self.folder / name).sha256 != self.entry.files[name].sha256:
                raise altered(self.folder / name)

    def check_rows(self) -> None:
        """`check_files` of those that `scan` reads."""
        vectors = [part.file for part in self.entry.parts] if self.entry.raw == "none" else [RAW_FILE]
        self.check_files(DOCUMENTS_FILE, *vectors)

    def verify(self) -> None:
        """Hash every file, and compare ids and documents; `IndexDamagedError` names a mismatch."""
        self.check_files()
        if self.entry.tombstones is not None:
            entry = self.entry.tombstones
            path = self.folder.parent.parent / TOMBSTONES_FOLDER / entry.file
            if hash_file(path).sha256 != entry.sha256:
                raise altered(path)
        path = self.folder / DOCUMENTS_FILE
        found = 0
        for row, document, _ in self.documents.scan():
            if row >= self.entry.rows or self.ids[row] != document.id:
                raise IndexDamagedError(
                    f"{path}: row {row} has the id {document.id!r}, but the ids file has another; build the index again"
                )
            found += self.alive(row)
        if found != self.entry.documents:
            raise IndexDamagedError(
                f"{path}: rows are missing: {found} of {self.entry.documents} documents found; build the index again"
            )

    def close(self) -> None:
        """Close the files."""
        self.documents.close()


def _check_size(path: Path, expected: int) -> None:
    size = path.stat().st_size
    if size != expected:
        raise IndexDamagedError(
            f"{path}: {size} bytes, but the manifest says {expected}; build the index again"
        )
