"""Tuning of an existing index: the smallest nprobe or ef that reaches a recall, measured on the index itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..storage.faiss_index import Float32Array, Int64Array
from ..storage.generation import Generation
from ..storage.raw import exact_search
from ..storage.search_parameters import SearchParameters
from ..storage.vectors import normalize_rows
from .measure import FINAL_CALLS, K, Point, Truth, smallest, timed_search

__all__ = ["Tuned", "tune"]

QUERIES = 1000
"""Number of stored vectors used as queries if none are given."""

_MOST_EF = 4096
_SEED = 20240

_log = logging.getLogger("embedkit")


@dataclass(frozen=True, slots=True)
class Tuned:
    """What `tune` found.

    Attributes:
        point: the parameters that the index searches with from now on, measured.
        reached: whether they reach the target; if none do, these have the best recall.
        target_recall: recall@10 that was asked for.
        queries: the number of queries.
        stored_queries: the queries are stored vectors, each excluded from its own hits; none were given.
        points: every measurement, fastest parameters first.
    """

    point: Point
    reached: bool
    target_recall: float
    queries: int
    stored_queries: bool
    points: Sequence[Point]

    def to_dict(self) -> dict[str, Any]:
        """The result as a manifest stores it."""
        return {
            "point": self.point.to_json(),
            "reached": self.reached,
            "target_recall": self.target_recall,
            "queries": self.queries,
            "stored_queries": self.stored_queries,
            "points": [point.to_json() for point in self.points],
        }

    def lines(self) -> list[str]:
        """A table of the points, a line per point."""
        source = "stored vectors" if self.stored_queries else "given queries"
        head = f"recall@10 ≥ {self.target_recall:g} of {self.queries:,} {source}; one thread"
        lines = [head, "recall  ms/query  parameters"]
        for point in self.points:
            chosen = "  (chosen)" if point.parameters == self.point.parameters else ""
            lines.append(f"{point.recall:6.4f}  {point.ms:8.4f}  {point.parameters}{chosen}")
        return lines


def tune(generation: Generation, target_recall: float, queries: Float32Array | None = None) -> Tuned:
    """Find the smallest nprobe or ef that reaches ``target_recall``; changes nothing.

    Args:
        generation: the index, with nprobe or ef.
        target_recall: recall@10 against exact search, as `check_recall` accepts it.
        queries: (q, dimension), normalized if the metric is cosine; ``None``: up to 1,000 stored vectors. Real
            queries are distributed differently from documents and often need more lists: give some if you can.

    Raises:
        ValueError: the index has no documents, or only one.
    """
    kind, start = ("nprobe", 1) if generation.nlist else ("ef", K)
    most = generation.nlist or min(_MOST_EF, max(K, generation.manifest.documents))
    living = generation.living_rows()
    if not len(living):
        raise ValueError("the index holds no documents to tune it with")
    own = np.empty(0, np.int64)
    if queries is None:
        random = np.random.default_rng(_SEED)
        own = np.sort(random.choice(living, min(QUERIES, len(living)), replace=False))
        queries = generation.vectors(own)
        if generation.manifest.metric == "cosine":  # vectors kept as int8 are not quite normalized
            queries = normalize_rows(queries)
    k = min(K, len(living) - bool(len(own)))
    if k < 1:
        raise ValueError("the index holds one document: there is nothing to tune")
    extra = k + bool(len(own))
    exact = _without(exact_search(queries, extra, living, generation.vectors)[1], own)
    truth = Truth(queries, exact, generation.vectors)

    def measured(value: int, calls: int = 1) -> Point:
        parameters = SearchParameters(**{kind: value})
        complete = generation.with_defaults(parameters)
        found, seconds = timed_search(lambda: generation.search(queries, extra, complete)[1], calls)
        return Point(parameters, *truth.recalls(_without(found, own)), 1e3 * seconds / len(queries))

    point, points = smallest(measured, target_recall, most, start=start)
    best = point or max(points, key=lambda one: (one.recall, -one.ms))
    value = best.parameters.nprobe or best.parameters.ef or 1
    final = measured(value, FINAL_CALLS)
    if point is None:
        _log.warning("no %s reaches recall@10 %g; %d reaches %.4f", kind, target_recall, value, final.recall)
    shown = [final if one.parameters == final.parameters else one for one in points]
    return Tuned(final, point is not None, target_recall, len(queries), bool(len(own)), shown)


def _without(found: Int64Array, own: Int64Array) -> Int64Array:
    """``found`` without each query's own row, or without its last hit if its own row is not among them."""
    if not len(own):
        return found
    is_own = found == own[:, None]
    is_own[~is_own.any(axis=1), -1] = True
    # equal texts may be found twice, a row cannot
    rest: Int64Array = found[~is_own].reshape(len(found), -1)
    return rest
