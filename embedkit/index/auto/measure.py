"""Recall and time of a search, and the fastest search parameters that reach a recall."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ..storage import raw
from ..storage.faiss_index import Float32Array, Int64Array, faiss_threads, hnsw_of, import_faiss, ivf_of
from ..storage.search_parameters import SearchParameters

__all__ = [
    "FINAL_CALLS",
    "K",
    "Point",
    "Truth",
    "apply",
    "check_recall",
    "fastest_parameters",
    "frontier",
    "measure",
    "smallest",
    "timed_search",
]

K = 10
"""Recall is measured over the ten nearest."""

_TIE = np.float32(1e-6)  # equal texts that were encoded in different batches differ by less
_RESCORES = (32, 16, 8, 4, 2)
_FEWER_CODES_MORE_LISTS = 4  # a smaller rescore that needs this many times the lists is not faster
_MOST_EF = 1024
FINAL_CALLS = 3
"""Searches per figure that is shown, of which the fastest counts; one while searching for parameters."""


@dataclass(frozen=True, slots=True)
class Point:
    """Search parameters, measured.

    Attributes:
        parameters: what was set.
        recall: recall@10, the mean over all queries.
        sure_recall: the lower recall of two halves of the queries (even and odd ones). Parameters reach a target
            when this does: the smallest that reach it on the very queries that chose them would often miss it
            on others.
        ms: milliseconds per query: CPU time of one thread, all queries in one call.
    """

    parameters: SearchParameters
    recall: float
    sure_recall: float
    ms: float

    def to_json(self) -> dict[str, Any]:
        """The fields as a manifest stores them."""
        return {
            "setting": self.parameters.to_json(),
            "recall": self.recall,
            "sure_recall": self.sure_recall,
            "ms": self.ms,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Point:
        """What `to_json` wrote."""
        parameters = SearchParameters.from_json(data["setting"])
        return cls(parameters, data["recall"], data["sure_recall"], data["ms"])


class Truth:
    """Queries and what exact search finds for them, with which other searches are compared."""

    def __init__(
        self, queries: Float32Array, rows: Int64Array, gather: Callable[[Int64Array], Float32Array]
    ) -> None:
        """``queries`` (q, dimension), the ``rows`` (q, k) of exact search, and ``gather``, which reads vectors."""
        self.queries = queries
        self.k = rows.shape[1]
        self._gather = gather
        scores = self._scores(rows)
        last = scores[:, -1:]
        self._tied = last - _TIE * np.abs(last), last + _TIE * np.abs(last)
        self._above = (scores > self._tied[1]).sum(axis=1)

    def recalls(self, found: Int64Array) -> tuple[float, float]:
        """Recall over all queries, and the lower recall of the even and the odd queries.

        Recall of a query is |found ∩ true| / k; -1 in ``found`` (q, k) is none. Of the rows that are as near as the
        last true one, such as repeated texts, any is as good as another.
        """
        scores = self._scores(found)
        low, high = self._tied
        above, near = (scores > high).sum(axis=1), (scores >= low).sum(axis=1)
        hits = np.minimum(near, above + self.k - self._above) / self.k
        halves = [half.mean() for half in (hits[::2], hits[1::2]) if len(half)]
        return float(hits.mean()), float(min(halves))

    def _scores(self, rows: Int64Array) -> Float32Array:
        """The exact scores of ``rows`` (q, k), best first."""
        return raw.rescore(self.queries, rows, self.k, self._gather)[0]


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other point beats in both recall and time, fastest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (one.ms, -one.recall)):
        if not best or point.recall > best[-1].recall:
            best.append(point)
    return best


def check_recall(target_recall: float) -> None:
    """Raise ValueError unless ``target_recall`` is above 0 and at most 1, TypeError unless it is a number."""
    if not isinstance(target_recall, Real):
        raise TypeError(f"target_recall must be a number, not {target_recall!r:.80}")
    if not 0 < target_recall <= 1:
        raise ValueError(f"target_recall must be above 0 and at most 1, not {target_recall}")


def apply(index: Any, parameters: SearchParameters) -> None:
    """Make ``parameters`` the defaults of a Faiss index; they are also written to its file."""
    faiss = import_faiss()
    if parameters.rescore is not None and isinstance(index, faiss.IndexRefine):
        index.k_factor = parameters.rescore
    hnsw = hnsw_of(index)
    if parameters.ef is not None and hnsw is not None:
        hnsw.hnsw.efSearch = parameters.ef
    ivf = ivf_of(index)
    if parameters.nprobe is not None and ivf is not None:
        ivf.nprobe = min(parameters.nprobe, ivf.nlist)


def timed_search(search: Callable[[], Int64Array], calls: int) -> tuple[Int64Array, float]:
    """The result of ``search``, and the seconds of the fastest of ``calls`` calls on one thread.

    Measured in CPU time of the thread, which does not depend on other load on the machine.
    """
    found = np.empty((0, 0), np.int64)
    least = float("inf")
    with faiss_threads(1):
        for _ in range(calls):
            begin = time.thread_time()
            found = search()
            least = min(least, time.thread_time() - begin)
    return found, least


def measure(index: Any, parameters: SearchParameters, truth: Truth, calls: int = 1) -> Point:
    """Search the Faiss index ``index`` with ``parameters`` for the queries of ``truth``."""
    apply(index, parameters)
    found, seconds = timed_search(lambda: index.search(truth.queries, truth.k)[1], calls)
    return Point(parameters, *truth.recalls(found), 1e3 * seconds / len(truth.queries))


def smallest(
    measured: Callable[[int], Point], target: float, most: int, *, start: int = 1, too_slow: float = np.inf
) -> tuple[Point | None, list[Point]]:
    """The smallest value that reaches ``target``, provided that recall grows with it, and all points measured.

    The value is doubled until it reaches the target, and then bisected.

    Args:
        measured: measures a value from ``start`` to ``most``.
        target: recall to reach, in both halves of the queries.
        most: the largest value.
        start: the smallest value.
        too_slow: milliseconds per query; a value that misses the target and takes this long ends the search.

    Returns:
        The point (``None``: no value reaches the target), and every point in the order of its value.
    """
    points: dict[int, Point] = {}
    low, high = start - 1, min(start, most)
    while True:
        point = points[high] = measured(high)
        if point.sure_recall >= target:
            break
        if high == most or point.ms >= too_slow:
            return None, _ordered(points)
        low, high = high, min(2 * high, most)
    while high - low > max(1, high // 32):  # finer than 3 % is below what can be measured
        middle = (low + high) // 2
        point = points[middle] = measured(middle)
        if point.sure_recall >= target:
            high = middle
        else:
            low = middle
    return points[high], _ordered(points)


def _ordered(points: dict[int, Point]) -> list[Point]:
    return [points[value] for value in sorted(points)]


def fastest_parameters(
    index: Any,
    truth: Truth,
    target: float,
    *,
    rescores: Sequence[int] = _RESCORES,
    too_slow: float = np.inf,
) -> tuple[Point | None, list[Point]]:
    """The fastest parameters of a Faiss index that reach ``target``, and every point measured.

    For an index with a refinement the largest rescore is tried first: a smaller one can only need more lists.

    Args:
        index: is left with the last parameters measured.
        truth: the queries, and what exact search finds for them.
        target: recall@k to reach.
        rescores: values of rescore to try, descending.
        too_slow: as in `smallest`.
    """
    faiss = import_faiss()
    refined = isinstance(index, faiss.IndexRefine)
    ivf, hnsw = ivf_of(index), hnsw_of(index)
    if ivf is not None:
        kind, start, most = "nprobe", 1, int(ivf.nlist)
    elif hnsw is not None:
        kind, start, most = "ef", K, max(K, min(_MOST_EF, int(hnsw.ntotal)))
    else:
        point = measure(index, SearchParameters(), truth, FINAL_CALLS)
        return (point if point.sure_recall >= target else None), [point]
    best: Point | None = None
    points: list[Point] = []
    for rescore in rescores if refined else (None,):

        def measured(value: int, rescore: int | None = rescore) -> Point:
            return measure(index, SearchParameters(rescore=rescore, **{kind: value}), truth)

        found, more = smallest(measured, target, most, start=start, too_slow=too_slow)
        points += more
        if found is None:
            break
        found = measure(index, found.parameters, truth, FINAL_CALLS)
        if best is None or found.ms < best.ms:
            best = found
        value = found.parameters.nprobe or found.parameters.ef or 1
        start, most = value, min(most, _FEWER_CODES_MORE_LISTS * value)
    return best, points
