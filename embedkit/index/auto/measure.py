"""Recall and time of a search, and the least effort that reaches a recall."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..storage.faiss_index import Float32Array, Int64Array, faiss_threads, import_faiss, ivf_of

K = 10
"""Recall is that of the ten nearest."""

K_FACTORS = (32, 16, 8, 4, 2)
_FEWER_CODES_MORE_LISTS = 4  # a smaller k_factor that needs this many times the lists is not faster
_MOST_EF = 1024
FINAL_CALLS = 3
"""Searches of which the quickest counts, where a figure is shown; one while a setting is looked for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How hard an index searches; ``None`` where its kind has no such number.

    Attributes:
        nprobe: inverted lists to visit.
        ef: candidates that HNSW keeps.
        k_factor: how many times k candidates an index with a refinement compares by its finer codes.
    """

    nprobe: int | None = None
    ef: int | None = None
    k_factor: int | None = None

    def __str__(self) -> str:
        """As ``nprobe 16, k_factor 4``; empty for an exact search."""
        named = (("nprobe", self.nprobe), ("ef", self.ef), ("k_factor", self.k_factor))
        return ", ".join(f"{name} {value}" for name, value in named if value is not None)


@dataclass(frozen=True, slots=True)
class Point:
    """One setting, measured.

    Attributes:
        setting: what was set.
        recall: recall@10, the mean over all queries.
        sure_recall: the lower recall of the two halves of the queries (even and odd ones). A setting counts
            as reaching a target when this does, since the least setting that reaches it on the very queries
            that chose it would often miss it on others.
        ms: milliseconds a query, of one thread's processor time, all queries in one call.
    """

    setting: Setting
    recall: float
    sure_recall: float
    ms: float


def apply(index: Any, setting: Setting) -> None:
    """Make ``setting`` what ``index`` (a Faiss index) does by default; it is written to its file, too."""
    faiss = import_faiss()
    if isinstance(index, faiss.IndexRefine):
        if setting.k_factor is not None:
            index.k_factor = setting.k_factor
        index = faiss.downcast_index(index.base_index)
    if setting.ef is not None and isinstance(index, faiss.IndexHNSW):
        index.hnsw.efSearch = setting.ef
    ivf = ivf_of(index)
    if setting.nprobe is not None and ivf is not None:
        ivf.nprobe = min(setting.nprobe, ivf.nlist)


def recalls(found: Int64Array, truth: Int64Array) -> tuple[float, float]:
    """Recall over all queries, and the lower one of the even and the odd queries.

    Args:
        found: (q, k) rows; -1 for none.
        truth: (q, k) rows of exact search. Recall of a query is |found ∩ truth| / k.
    """
    hits = (found[:, :, None] == truth[:, None, :]).any(axis=1).mean(axis=1)
    halves = [half.mean() for half in (hits[::2], hits[1::2]) if len(half)]
    return float(hits.mean()), float(min(halves))


def timed_search(search: Callable[[], Int64Array], calls: int) -> tuple[Int64Array, float]:
    """What ``search`` found, and the least seconds of so many ``calls`` on one thread.

    It is the thread's processor time: unlike the clock's it does not change with what else the machine does.
    """
    found = np.empty((0, 0), np.int64)
    least = float("inf")
    with faiss_threads(1):
        for _ in range(calls):
            begin = time.thread_time()
            found = search()
            least = min(least, time.thread_time() - begin)
    return found, least


def measure(index: Any, setting: Setting, queries: Float32Array, truth: Int64Array, calls: int = 1) -> Point:
    """Search the Faiss index ``index`` with ``setting`` for the ``queries``: (q, dimension)."""
    apply(index, setting)
    found, seconds = timed_search(lambda: index.search(queries, truth.shape[1])[1], calls)
    return Point(setting, *recalls(found, truth), 1e3 * seconds / len(queries))


def smallest(
    measured: Callable[[int], Point], target: float, most: int, *, start: int = 1, too_slow: float = np.inf
) -> tuple[Point | None, list[Point]]:
    """The least value whose recall is ``target``, if recall only grows with it, and all points measured.

    The value is doubled until the target is reached and then bisected.

    Args:
        measured: measures a value from ``start`` to ``most``.
        target: recall to reach, by both halves of the queries.
        most: the greatest value that makes sense.
        start: the least one.
        too_slow: milliseconds a query; once a value that misses the target takes as long, none is found.

    Returns:
        The point (``None``: no value reaches the target), and every point by growing value.
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


def search_settings(
    index: Any,
    queries: Float32Array,
    truth: Int64Array,
    target: float,
    *,
    k_factors: Sequence[int] = K_FACTORS,
    too_slow: float = np.inf,
) -> tuple[Point | None, list[Point]]:
    """The fastest setting of a Faiss index that reaches ``target``, and every point measured.

    Of an index with a refinement, the largest k_factor comes first: a smaller one can only need more lists.

    Args:
        index: changed: its settings are left at the last one measured.
        queries: (q, dimension).
        truth: (q, k) rows of exact search.
        target: recall@k to reach.
        k_factors: those to try, falling.
        too_slow: as in `smallest`.
    """
    faiss = import_faiss()
    refined = isinstance(index, faiss.IndexRefine)
    base = faiss.downcast_index(index.base_index) if refined else index
    ivf = ivf_of(base)
    if ivf is not None:
        kind, start, most = "nprobe", 1, int(ivf.nlist)
    elif isinstance(base, faiss.IndexHNSW):
        kind, start, most = "ef", K, max(K, min(_MOST_EF, int(base.ntotal)))
    else:
        point = measure(index, Setting(), queries, truth, FINAL_CALLS)
        return (point if point.sure_recall >= target else None), [point]
    best: Point | None = None
    points: list[Point] = []
    for factor in k_factors if refined else (None,):

        def measured(value: int, factor: int | None = factor) -> Point:
            setting = Setting(k_factor=factor, **{kind: value})
            return measure(index, setting, queries, truth)

        found, more = smallest(measured, target, most, start=start, too_slow=too_slow)
        points += more
        if found is None:
            break
        found = measure(index, found.setting, queries, truth, FINAL_CALLS)
        if best is None or found.ms < best.ms:
            best = found
        value = found.setting.nprobe or found.setting.ef or 1
        start, most = value, min(most, _FEWER_CODES_MORE_LISTS * value)
    return best, points
