"""Vectors to Faiss files, within a memory limit.

If the Faiss index of all vectors fits the limit, it is made in memory and written. If not, an inverted file is
trained once, filled shard by shard, and its lists are merged on disk; any other index is made in parts, each a file
over the next rows, which are searched as one.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..auto.measure import apply
from ..errors import BuildError, TooFewVectorsError
from ..storage.faiss_index import (
    MIN_POINTS_PER_LIST,
    create_index,
    default_nprobe,
    faiss_threads,
    hnsw_of,
    import_faiss,
    inverted_lists,
    ivf_of,
    layers,
    resolve_factory,
    short,
    train,
    transforms,
    write_index,
)
from ..storage.manifest import PartEntry
from ..storage.search_parameters import SearchParameters
from ..storage.spool import BLOCK_ROWS, Spool
from .memory import faiss_budget
from .settings import BuildSettings, Progress, Report

__all__ = ["VECTORS_FILE", "build_parts", "bytes_per_vector"]

VECTORS_FILE = "vectors.faiss"
DEFAULT_EF = 64
"""Candidates that a search of HNSW keeps by default."""

DEFAULT_REFINED = 4
"""An index with a refinement compares this many times k candidates again by default."""

# A third of the time of 64 points and 10 iterations, and recall@10 of the default search is the same to 0.3 points.
_POINTS_PER_LIST = 40
_LIST_ITERATIONS = 5
_MIN_SAMPLE_ROWS = 65_536  # for codecs without lists (PQ, SQ, OPQ)
_MAX_SAMPLE_BYTES = 256 << 20
_SEED = 20240


def bytes_per_vector(index: Any) -> float:
    """Bytes that Faiss takes for each vector while the index is filled, including its growing arrays."""
    faiss = import_faiss()
    if isinstance(index, faiss.IndexPreTransform):
        return bytes_per_vector(faiss.downcast_index(index.index))
    if isinstance(index, faiss.IndexRefine):
        parts = (index.base_index, index.refine_index)
        return sum(bytes_per_vector(faiss.downcast_index(part)) for part in parts)
    if isinstance(index, faiss.IndexHNSW):
        links = 4 * index.hnsw.nb_neighbors(0) * 1.1 + 16
        return bytes_per_vector(faiss.downcast_index(index.storage)) + float(links)
    if isinstance(index, faiss.IndexIVF):
        return 1.5 * (float(index.code_size) + 8)  # each list has room for the next power of two
    return 2.0 * float(getattr(index, "code_size", 4 * index.d))


def build_parts(
    spool: Spool,
    folder: Path,
    settings: BuildSettings,
    parameters: SearchParameters,
    report: Report,
) -> tuple[PartEntry, ...]:
    """Write the Faiss files for the vectors in ``spool`` to ``folder``.

    Args:
        spool: the vectors, at least one.
        folder: where to write; files with the same names are replaced.
        settings: ``factory``, ``max_memory`` and ``threads`` are used.
        parameters: the indexes' default search parameters, written with them.
        report: called after each step.

    Raises:
        BuildError: too few vectors to train on, or Faiss failed.
    """
    rows = spool.rows
    budget = faiss_budget(settings.max_memory)
    factory = resolve_factory(settings.factory, rows)
    index = create_index(factory, spool.dimension)
    need = bytes_per_vector(index) * rows
    with faiss_threads(settings.threads):
        try:
            if need > budget and _has_array_lists(index):
                path = folder / VECTORS_FILE
                _train(index, spool, 0, rows, budget=budget, report=report)
                apply(index, parameters)
                _merge_on_disk(index, spool, path, budget, report)
                return (PartEntry(VECTORS_FILE, rows, factory),)
            count = math.ceil(need / budget)
            step = math.ceil(rows / count / 8) * 8
            parts = []
            for number, begin in enumerate(range(0, rows, step), 1):
                end = min(begin + step, rows)
                file = VECTORS_FILE if number == 1 else f"vectors-{number:03d}.faiss"
                index = create_index(factory, spool.dimension)
                _train(index, spool, begin, end, budget=budget, report=report)
                _fill(index, spool, begin, end, report)
                apply(index, parameters)
                (folder / file).unlink(missing_ok=True)
                write_index(index, folder / file)
                parts.append(PartEntry(file, end - begin, factory))
            return tuple(parts)
        except RuntimeError as error:
            if isinstance(error, BuildError):
                raise
            told = f"Faiss cannot build {factory!r} from {rows} vectors: {short(error)}"
            if "training points" not in str(error):
                raise BuildError(told) from None
            raise TooFewVectorsError(f"{told}; use Flat, or fewer lists or bits") from None


def _train(index: Any, spool: Spool, begin: int, end: int, *, budget: int, report: Report) -> None:
    faiss = import_faiss()
    ivf = ivf_of(index)
    if not index.is_trained:
        wanted = _sample_rows(end - begin, spool.dimension, inverted_lists(index), budget)
        sample = spool.sample(wanted, begin, end, _SEED)
        report(Progress("train", 0, len(sample)))
        quantizers = _quantizers(index)
        # one that is made here must last as long; others are parts of the index, which must not keep itself
        index.referenced_objects = [one for one in quantizers if isinstance(one, faiss.ProductQuantizer)]
        for quantizer in quantizers:
            quantizer.cp.min_points_per_centroid = 1  # a small sample is the caller's choice: no warning
        if ivf is not None:
            ivf.cp.niter = _LIST_ITERATIONS
        train(index, sample)
    if ivf is not None:
        ivf.nprobe = default_nprobe(ivf.nlist)
    if isinstance(index, faiss.IndexRefine):
        index.k_factor = DEFAULT_REFINED
    hnsw = hnsw_of(index)
    if hnsw is not None:
        hnsw.hnsw.efSearch = DEFAULT_EF


def _quantizers(index: Any) -> list[Any]:
    """The parts of ``index`` with clustering parameters, to keep Faiss from warning about few points on stderr."""
    faiss = import_faiss()
    found = []
    for transform in transforms(index):
        if isinstance(transform, faiss.OPQMatrix):
            pq = transform.pq or faiss.ProductQuantizer(transform.d_out, transform.M, 8)  # as Faiss would
            transform.pq = pq
            found.append(pq)
    for layer in layers(index):
        if hasattr(layer, "cp"):
            found.append(layer)
        if isinstance(getattr(layer, "pq", None), faiss.ProductQuantizer):
            found.append(layer.pq)
    return found


def _sample_rows(rows: int, dimension: int, nlist: int | None, budget: int) -> int:
    """How many rows to train on. The sample is drawn from all rows, since a corpus is often sorted."""
    least = MIN_POINTS_PER_LIST * (nlist or 0)
    wanted = max(_MIN_SAMPLE_ROWS, _POINTS_PER_LIST * (nlist or 0))
    wanted = max(least, min(wanted, _MAX_SAMPLE_BYTES // (4 * dimension)))
    most = max(nlist or 0, budget // (3 * 4 * dimension))  # Faiss copies the sample
    return min(rows, wanted, most)


def _fill(index: Any, spool: Spool, begin: int, end: int, report: Report) -> None:
    faiss = import_faiss()
    if isinstance(index, faiss.IndexFlat):
        # a Flat index reserves its memory in one call, where blocks would make it grow by copying
        index.add(spool.read(begin, end))
        report(Progress("add", end, spool.rows))
        return
    for start, block in spool.blocks(begin, end):
        index.add(block)
        report(Progress("add", start + len(block), spool.rows))


def _has_array_lists(index: Any) -> bool:
    """Whether ``index`` is an inverted file whose lists can be written one after the other."""
    faiss = import_faiss()
    ivf = ivf_of(index)
    if ivf is None or isinstance(index, faiss.IndexRefine):
        return False
    return isinstance(faiss.downcast_InvertedLists(ivf.invlists), faiss.ArrayInvertedLists)


def _merge_on_disk(index: Any, spool: Spool, path: Path, budget: int, report: Report) -> None:
    """Write the trained inverted file ``index`` with all vectors of ``spool`` to ``path``.

    Shards of the rows are added to it and taken out again, list by list; then list after list is written as
    Faiss writes its array lists: ``ilar``, the number of lists and the bytes of a code (u64 each), ``full``,
    the number of lists again and their sizes (u64 each), and the codes and ids (i64) of each list.
    """
    faiss = import_faiss()
    ivf: Any = ivf_of(index)
    step = max(BLOCK_ROWS, int(budget / bytes_per_vector(index)))
    shards = []
    with contextlib.ExitStack() as files:
        for number, begin in enumerate(range(0, spool.rows, step)):
            end = min(begin + step, spool.rows)
            for start, block in spool.blocks(begin, end):
                index.add_with_ids(block, np.arange(start, start + len(block), dtype=np.int64))
                report(Progress("add", start + len(block), spool.rows))
            place = path.with_name(f"shard-{number:03d}")
            files.callback(place.unlink, missing_ok=True)
            with place.open("wb") as lists_file:
                shards.append(_Shard(place, _write_lists(ivf, lists_file), ivf.code_size))
            index.reset()
        sizes = np.sum([shard.sizes for shard in shards], axis=0, dtype=np.uint64)
        index.ntotal = ivf.ntotal = spool.rows
        header = io.BytesIO()
        faiss.write_index(index, faiss.PyCallbackIOWriter(header.write))
        lists = struct.pack("<4sQQ", b"ilar", ivf.nlist, ivf.code_size)
        at = header.getvalue().rfind(lists)
        if at < 0:
            raise BuildError(
                "the installed Faiss writes inverted lists in a format that embedkit cannot merge on disk; "
                "give the build more memory (--max-memory)"
            )
        path.unlink(missing_ok=True)
        opened = [files.enter_context(shard.path.open("rb")) for shard in shards]
        with path.open("xb") as out:
            out.write(header.getvalue()[:at] + lists + struct.pack("<4sQ", b"full", ivf.nlist))
            out.write(sizes.astype("<u8").tobytes())
            for number in range(ivf.nlist):
                for kind in range(2):
                    for shard, file in zip(shards, opened, strict=True):
                        out.write(shard.read(file, number, kind))


class _Shard:
    """Lists written by `_write_lists`: their sizes (nlist,), and a file with the codes and ids of each."""

    def __init__(self, path: Path, sizes: np.ndarray[Any, Any], code_size: int) -> None:
        self.path = path
        self.sizes = sizes
        self._code_size = code_size
        self._starts = np.concatenate([[0], np.cumsum(sizes)]) * (code_size + 8)

    def read(self, file: BinaryIO, number: int, kind: int) -> bytes:
        """Codes (``kind`` 0) or ids (1) of list ``number``."""
        size = int(self.sizes[number])
        file.seek(int(self._starts[number]) + kind * size * self._code_size)
        return file.read(size * (8 if kind else self._code_size))


def _write_lists(ivf: Any, file: BinaryIO) -> np.ndarray[Any, Any]:
    """Write the codes and ids of each list of ``ivf``, and return the lists' sizes."""
    faiss = import_faiss()
    lists = ivf.invlists
    sizes = np.array([lists.list_size(number) for number in range(ivf.nlist)], np.int64)
    for number, size in enumerate(sizes.tolist()):
        if size:
            file.write(faiss.rev_swig_ptr(lists.get_codes(number), size * ivf.code_size).tobytes())
            file.write(faiss.rev_swig_ptr(lists.get_ids(number), size).tobytes())
    return sizes
