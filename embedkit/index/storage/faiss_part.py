"""One Faiss index of a segment, and how to search only some of its rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...forking import cached_property, fork_lock
from .faiss_gpu import GPU_MOST, FaissGpu, OnGpu
from .faiss_index import (
    Float32Array,
    Int64Array,
    SelectorError,
    faiss_parameters,
    hnsw_of,
    import_faiss,
    is_exact,
    ivf_of,
    read_index,
)
from .manifest import FileEntry, PartEntry, altered, hash_file
from .raw import MISSING
from .search_parameters import SearchParameters

__all__ = ["Allowed", "Bits", "FaissPart", "bits_of", "count_bits", "is_set", "rows_of"]

EXACT_ROWS = 20_000
"""If a filter leaves at most this many rows of a part, they are compared one by one."""

_PARAMETERS_KEPT = 256  # of searches, as Faiss takes them
_UNKNOWN = object()
_FILES_KNOWN = 4096
_intact: dict[tuple[Path, int, int, int], None] = {}
"""Files whose content was compared with their checksums by this process: path, device, inode and time of change."""

_NO_SELECTOR = re.compile("(search params|id selector) not supported")
_MOST_FETCHED = 16_384  # most candidates fetched from an index that cannot filter, before all are compared

Bits = npt.NDArray[np.uint8]
"""A bitmap over rows: bit ``row % 8`` of byte ``row // 8``."""
Exact = Callable[[Int64Array, int, Int64Array], tuple[Float32Array, Int64Array]]
"""Compares queries, by their numbers, with the given rows of a part, and returns the best k."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The rows that a search may find.

    Attributes:
        bits: the rows.
        count: the number of rows.
        filtered: a condition selected them, so k of them must be found if there are k; otherwise only deleted
            rows are excluded.
    """

    bits: Bits
    count: int
    filtered: bool

    @property
    def few(self) -> bool:
        """Whether they are compared one by one, by their vectors."""
        return self.filtered and self.count <= EXACT_ROWS


class FaissPart:
    """A Faiss index, opened when it is first searched. Thread-safe.

    Attributes:
        entry: its entry in the manifest.
        rows: the number of vectors.
    """

    def __init__(self, path: Path, entry: PartEntry, dimension: int, file: FileEntry) -> None:
        """Use the file at ``path``, of which the manifest says what ``file`` does."""
        self.entry = entry
        stat = path.stat()
        self._file = (path, stat.st_dev, stat.st_ino, stat.st_mtime_ns)
        self._dimension = dimension
        self._sha256 = file.sha256
        self._lock = fork_lock()
        self._index: Any = None
        self.rows = entry.rows
        self._takes_selectors = True
        self._on_gpu: OnGpu | None = None
        self._without_selector: dict[SearchParameters, Any] = {}

    @property
    def index(self) -> Any:
        """The Faiss object in main memory: the file, mapped.

        Faiss trusts a file: a wrong length in it ends the process, a wrong row reads beyond the memory. So the file is
        compared with its checksum first, once in a process (0.17 s of one core for 500,000 × 128 vectors).

        Raises:
            IndexDamagedError: the file is not the one that was written, or Faiss cannot read it.
        """
        if self._index is None:
            with self._lock:
                if self._index is None:
                    path = self._file[0]
                    if self._file not in _intact:
                        if hash_file(path).sha256 != self._sha256:
                            raise altered(path)
                        _intact[self._file] = None
                        while len(_intact) > _FILES_KNOWN:
                            _intact.pop(next(iter(_intact)))
                    self._index = read_index(path, rows=self.rows, dimension=self._dimension)
        return self._index

    @cached_property
    def exact(self) -> bool:
        """Whether its scores are exact."""
        return is_exact(self.index)

    @cached_property
    def refined(self) -> bool:
        """Whether it scores again what it has found by codes, by finer ones or the vectors."""
        return isinstance(self.index, import_faiss().IndexRefine)

    @cached_property
    def nlist(self) -> int | None:
        """Inverted lists; ``None`` if it has none."""
        ivf = ivf_of(self.index)
        return None if ivf is None else int(ivf.nlist)

    @cached_property
    def nprobe(self) -> int | None:
        """The lists that it visits by default; ``None`` if it has none."""
        ivf = ivf_of(self.index)
        return None if ivf is None else int(ivf.nprobe)

    @cached_property
    def ef(self) -> int | None:
        """The candidates that it keeps by default; ``None`` if it is not HNSW."""
        hnsw = hnsw_of(self.index)
        return None if hnsw is None else int(hnsw.hnsw.efSearch)

    def to_gpu(self, gpu: FaissGpu, *, half: bool, before: Iterable[FaissPart]) -> None:
        """Search on the GPU from now on, except for more than `GPU_MOST` hits.

        Args:
            gpu: where to copy the index.
            half: store vectors in float16 there.
            before: parts of an earlier generation; the copy of the same file is shared.

        Raises:
            MemoryError: the GPU has no memory for it.
            RuntimeError: the process was forked after the GPU was opened.
            ValueError: Faiss cannot search such an index on a GPU.
        """
        self._on_gpu = next((part._on_gpu for part in before if part._file == self._file), None)
        if self._on_gpu is not None:
            return
        gpu.check()
        try:
            self._on_gpu = gpu.move(self.index, half=half)
        except RuntimeError as error:
            if re.search("alloc fail|memory allocation|out of memory", str(error)):
                raise MemoryError(
                    f"the GPU has no memory for the vectors of {self.entry.factory}; open the index with "
                    "half=True, which takes half as much, or device='cpu'"
                ) from error
            raise ValueError(
                f"Faiss cannot search {self.entry.factory} on a GPU; use device='cpu', or build the index "
                "as Flat or IVF"
            ) from error

    def search(
        self,
        vectors: Float32Array,
        k: int,
        allowed: Allowed | None,
        parameters: SearchParameters,
        exact: Exact,
    ) -> tuple[Float32Array, Int64Array]:
        """Scores and rows of the best ``k`` (at most all) for each of ``vectors``; row -1 where fewer were found.

        ``exact`` finds them for the queries for which Faiss finds fewer than it should.
        """
        k = min(k, self.rows)
        if allowed is None:
            scores, rows = self._search(vectors, k, parameters)
            lacking = np.flatnonzero(rows[:, -1] < 0)
            if len(lacking) and self.ef is not None:  # a wider search reaches more of the graph
                wide = replace(parameters, ef=min(self.rows, 8 * max(k, parameters.ef or self.ef)))
                scores[lacking], rows[lacking] = self._search(vectors[lacking], k, wide)
                lacking = lacking[rows[lacking, -1] < 0]
            if len(lacking) and self._visits_all(parameters):
                scores[lacking], rows[lacking] = exact(lacking, k, np.arange(self.rows))
            return scores, rows
        k = min(k, allowed.count)
        if k == 0:
            empty = (len(vectors), 0)
            return np.empty(empty, np.float32), np.empty(empty, np.int64)
        takes_selectors = self._takes_selectors and not self._uses_gpu(k)
        if takes_selectors:
            try:
                scores, rows = self._search(vectors, k, parameters, allowed.bits)
            except SelectorError:
                takes_selectors = self._takes_selectors = False
        lacking = np.empty(0, np.int64)
        if not takes_selectors:
            scores, rows, lacking = self._overfetch(vectors, k, parameters, allowed)
        # An inverted file finds fewer than k if the lists visited hold fewer; a filter must not be the reason.
        if allowed.filtered or self._visits_all(parameters):
            lacking = np.flatnonzero(rows[:, -1] < 0)
        if len(lacking):
            scores[lacking], rows[lacking] = exact(lacking, k, rows_of(allowed.bits))
        return scores, rows

    def _visits_all(self, parameters: SearchParameters) -> bool:
        """Whether a search should find ``k`` of all rows.

        Even then some kinds find fewer: a graph may not reach every vector, least of all where many are the same, and
        fast scan leaves out some of the farthest.
        """
        return self.nlist is None or (parameters.nprobe or self.nprobe or 1) >= self.nlist

    def _uses_gpu(self, k: int) -> bool:
        return self._on_gpu is not None and k <= GPU_MOST

    def _search(
        self, vectors: Float32Array, k: int, parameters: SearchParameters, bits: Bits | None = None
    ) -> tuple[Float32Array, Int64Array]:
        if parameters.rescore:  # Faiss makes room for rescore · k candidates
            parameters = replace(parameters, rescore=min(parameters.rescore, math.ceil(self.rows / k)))
        if bits is not None:
            given = faiss_parameters(self.index, parameters, import_faiss().IDSelectorBitmap(bits))
        elif self._on_gpu is not None and k <= GPU_MOST:
            nprobe = None if self.nlist is None else min(parameters.nprobe or self.nprobe or 1, self.nlist)
            return self._on_gpu.search(vectors, k, nprobe)
        else:
            given = self._without_selector.get(parameters, _UNKNOWN)
            if given is _UNKNOWN:
                given = faiss_parameters(self.index, parameters)
                if len(self._without_selector) < _PARAMETERS_KEPT:
                    self._without_selector[parameters] = given
        try:
            scores, rows = self.index.search(vectors, k, params=given)
        except RuntimeError as error:
            if bits is None or not _NO_SELECTOR.search(str(error)):
                raise
            raise SelectorError(type(self.index).__name__) from None
        return scores, rows

    def _overfetch(
        self, vectors: Float32Array, k: int, parameters: SearchParameters, allowed: Allowed
    ) -> tuple[Float32Array, Int64Array, Int64Array]:
        """Fetch more than ``k``, drop what is not allowed, and fetch still more where too few are left.

        Returns:
            Scores, rows, and the queries for which too few are left even so.
        """
        scores = np.full((len(vectors), k), MISSING, np.float32)
        rows = np.full((len(vectors), k), -1, np.int64)
        open_ = np.arange(len(vectors))
        limit = min(self.rows, GPU_MOST) if self._uses_gpu(k) else self.rows
        fetch = k + min(self.rows - allowed.count, int(k * self.rows / allowed.count * 1.5) + 16)
        while len(open_):
            fetch = min(fetch, limit)
            found_scores, found = self._search(vectors[open_], fetch, parameters)
            keep = (found >= 0) & is_set(allowed.bits, np.maximum(found, 0))
            # those kept, in their order, at the left
            order = np.argsort(~keep, axis=1, kind="stable")[:, :k]
            kept = np.take_along_axis(keep, order, axis=1)
            rows[open_] = np.where(kept, np.take_along_axis(found, order, axis=1), -1)
            scores[open_] = np.where(kept, np.take_along_axis(found_scores, order, axis=1), MISSING)
            lacking = (rows[open_, -1] < 0) & (found[:, -1] >= 0)
            open_ = open_[lacking]
            if fetch >= min(limit, _MOST_FETCHED):
                break
            fetch *= 4
        return scores, rows, open_


def rows_of(bits: Bits) -> Int64Array:
    """The rows whose bits are set."""
    return np.flatnonzero(np.unpackbits(bits, bitorder="little"))


def is_set(bits: Bits, rows: Int64Array) -> npt.NDArray[np.bool_]:
    """Whether each of ``rows`` has its bit set."""
    found: npt.NDArray[np.bool_] = (bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 != 0
    return found


def bits_of(rows: Int64Array, count: int) -> Bits:
    """A bitmap over ``count`` rows in which ``rows`` are set."""
    flags = np.zeros(count, np.bool_)
    flags[rows] = True
    return np.packbits(flags, bitorder="little")


def count_bits(bits: Bits) -> int:
    """How many bits are set."""
    return int(np.count_nonzero(np.unpackbits(bits)))
