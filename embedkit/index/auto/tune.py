"""nprobe or ef of an index that exists: the least that reaches a recall, measured on the index itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..storage.faiss_index import Float32Array, Int64Array, import_faiss
from ..storage.vectors import normalize_rows
from .measure import FINAL_CALLS, K, Point, Setting, recalls, smallest, timed_search

if TYPE_CHECKING:
    from ..storage.generation import Generation

QUERIES = 1000
"""Stored vectors that are searched for where no queries are given."""

_BLOCK_ROWS = 16_384
_MOST_EF = 4096
_SEED = 20240

_log = logging.getLogger("embedkit")


@dataclass(frozen=True, slots=True)
class Tuned:
    """What `tune` found.

    Attributes:
        point: the setting that an index takes from now on, measured.
        reached: whether it reaches the target; if none does, it is that of the best recall.
        target_recall: recall@10 that was asked for.
        queries: how many were searched for.
        stored: the queries are stored vectors, each left out of its own hits, not queries that were given.
        points: every setting measured, by growing effort.
    """

    point: Point
    reached: bool
    target_recall: float
    queries: int
    stored: bool
    points: Sequence[Point]

    def to_dict(self) -> dict[str, Any]:
        """JSON for the manifest."""
        return asdict(self)

    def lines(self) -> list[str]:
        """A table of the points, a line each."""
        source = "stored vectors" if self.stored else "queries given"
        head = f"recall@10 ≥ {self.target_recall:g} of {self.queries:,} {source}; one thread"
        lines = [head, "recall  ms/query  setting"]
        for point in self.points:
            chosen = "  (chosen)" if point.setting == self.point.setting else ""
            lines.append(f"{point.recall:6.4f}  {point.ms:8.4f}  {point.setting}{chosen}")
        return lines


def tune(generation: Generation, target_recall: float, queries: Float32Array | None = None) -> Tuned:
    """Find the least nprobe or ef that reaches ``target_recall``; changes nothing.

    Args:
        generation: an opened index.
        target_recall: recall@10 against exact search, above 0, at most 1.
        queries: (q, dimension), normalized where the metric is cosine; ``None``: up to 1,000 stored vectors.
            Queries of users often lie elsewhere than documents do and need more lists: give some if you can.

    Raises:
        ValueError: ``target_recall`` is out of range, or the index has no such number or no documents.
    """
    if not 0 < target_recall <= 1:
        raise ValueError(f"target_recall must be above 0 and at most 1, not {target_recall}")
    parts = [part for segment in generation.segments for part in segment.parts]
    most = max((part.nlist or 0 for part in parts), default=0)
    kind, start = ("nprobe", 1) if most else ("ef", K)
    if not most:
        if not any(part.ef for part in parts):
            raise ValueError("the index compares every vector: it has neither nprobe nor ef to tune")
        most = min(_MOST_EF, max(K, generation.manifest.documents))
    living = generation.living_rows()
    if not len(living):
        raise ValueError("the index holds no document to tune it with")
    own = np.empty(0, np.int64)
    if queries is None:
        random = np.random.default_rng(_SEED)
        own = np.sort(random.choice(living, min(QUERIES, len(living)), replace=False))
        queries = generation.vectors(own)
        if generation.manifest.metric == "cosine":  # what is kept as int8 comes back not quite normalized
            queries = normalize_rows(queries)
    asked = queries
    k = min(K, len(living) - bool(len(own)))
    if k < 1:
        raise ValueError("the index holds one document: there is nothing to tune")
    extra = k + bool(len(own))
    truth = _without(_exact(generation, asked, living, extra), own)

    def measured(value: int, calls: int = 1) -> Point:
        setting = Setting(**{kind: value})
        effort = generation.effort(setting.nprobe, setting.ef, None)
        found, seconds = timed_search(lambda: generation.search(asked, extra, effort)[1], calls)
        return Point(setting, *recalls(_without(found, own), truth), 1e3 * seconds / len(asked))

    point, points = smallest(measured, target_recall, most, start=start)
    best = point or max(points, key=lambda one: (one.recall, -one.ms))
    value = best.setting.nprobe or best.setting.ef or 1
    final = measured(value, FINAL_CALLS)
    if point is None:
        _log.warning("no %s reaches recall@10 %g; %d reaches %.4f", kind, target_recall, value, final.recall)
    shown = [final if one.setting == final.setting else one for one in points]
    return Tuned(final, point is not None, target_recall, len(asked), bool(len(own)), shown)


def _exact(generation: Generation, queries: Float32Array, living: Int64Array, k: int) -> Int64Array:
    """(q, k) rows of exact search, from the vectors as they are kept, block by block."""
    faiss = import_faiss()
    scores = np.full((len(queries), k), -np.inf, np.float32)
    rows = np.full((len(queries), k), -1, np.int64)
    for begin in range(0, len(living), _BLOCK_ROWS):
        block = living[begin : begin + _BLOCK_ROWS]
        more, found = faiss.knn(queries, generation.vectors(block), k, metric=faiss.METRIC_INNER_PRODUCT)
        more = np.where(found < 0, -np.inf, more)
        all_scores = np.concatenate([scores, more], axis=1)
        all_rows = np.concatenate([rows, np.where(found < 0, -1, block[found])], axis=1)
        best = np.argsort(-all_scores, axis=1, kind="stable")[:, :k]
        scores = np.take_along_axis(all_scores, best, axis=1)
        rows = np.take_along_axis(all_rows, best, axis=1)
    return rows


def _without(found: Int64Array, own: Int64Array) -> Int64Array:
    """``found`` without each query's own row, or without the last hit where that is not among them."""
    if not len(own):
        return found
    is_own = found == own[:, None]
    is_own[~is_own.any(axis=1), -1] = True
    # a text that is stored twice may come twice, a row does not
    rest: Int64Array = found[~is_own].reshape(len(found), -1)
    return rest
