"""Near duplicates in a finished segment, by the similarity of their vectors."""

from __future__ import annotations

import contextlib

import numpy as np

from ..storage.faiss_index import Float32Array, Int64Array, faiss_threads
from ..storage.layout import Writer
from ..storage.manifest import SegmentEntry
from ..storage.raw import RawFile, RawVectors, rescore
from ..storage.search_parameters import SearchParameters
from ..storage.segment import Segment
from ..storage.spool import SPOOL_FILE
from ..storage.vectors import normalize_rows
from .settings import BuildSettings, near_similarity

__all__ = ["near_duplicates"]

_NEIGHBOURS = 64
_AT_ONCE = 1024


def near_duplicates(
    writer: Writer, entry: SegmentEntry, dimension: int, settings: BuildSettings
) -> Int64Array:
    """The rows of the finished segment that are at least as similar to an earlier row that is kept as ``settings`` say.

    Compares each row's 64 nearest neighbors, as the segment's own Faiss index finds them; so of a larger group of
    duplicates, or in an index that is not exact, some may remain. Their vectors are those that were encoded, unless an
    interrupted build has removed them: then those of the segment, which its codes may only approximate.
    """
    similarity = near_similarity(settings.dedup)
    if similarity is None:
        return np.empty(0, np.int64)
    folder = writer.finished(entry.name)
    segment = Segment(writer.root, folder, entry, dimension=dimension)
    dropped = np.zeros(entry.rows, np.bool_)
    with contextlib.closing(segment), faiss_threads(settings.threads):
        for empty in segment.ids.empty_rows():
            dropped[empty] = True
        gone = dropped.copy()
        spool = folder / SPOOL_FILE
        spooled = spool.exists()
        encoded: RawVectors = RawFile(spool, "fp32", entry.rows, dimension) if spooled else segment.raw

        def gather(rows: Int64Array) -> Float32Array:
            vectors = encoded.gather(rows)
            return vectors if spooled else normalize_rows(vectors)  # those of codes are longer or shorter

        count = min(_NEIGHBOURS, entry.rows)
        for begin in range(0, entry.rows, _AT_ONCE):
            rows = np.arange(begin, min(begin + _AT_ONCE, entry.rows))
            vectors = gather(rows)
            _, found, _ = segment.search(vectors, count, None, SearchParameters(rescore=4))
            earlier = np.where(found < rows[:, None], found, -1)
            scores, found = rescore(vectors, earlier, count, gather)
            near = (scores >= similarity - 1e-6) & (found >= 0)
            for line in np.flatnonzero(near.any(axis=1)).tolist():
                row = begin + line
                if not dropped[row] and not dropped[found[line][near[line]]].all():
                    dropped[row] = True
        return np.flatnonzero(dropped & ~gone)
