"""Figures of rankings against judgments, as trec_eval computes them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

__all__ = ["mrr", "ndcg", "recall"]

_Id = TypeVar("_Id", bound=Hashable)
Rankings = Sequence[Sequence[_Id]]
Gains = Sequence[Mapping[_Id, float]]


def ndcg(rankings: Rankings[_Id], gains: Gains[_Id], k: int) -> float:
    """Mean nDCG@k, with DCG = Σ gain_i / log2(i + 1) over the first ``k`` ids (Järvelin and Kekäläinen 2002).

    Args:
        rankings: ids found for each query, best first.
        gains: for each query the gain (> 0) of each relevant id; at least one.
        k: how many ids count.
    """

    def one(ranking: Sequence[_Id], gain: Mapping[_Id, float]) -> float:
        ideal = sorted(gain.values(), reverse=True)
        largest = ideal[0]  # of which each is a share: sums of relevances may be beyond a float
        found = [gain.get(id, 0.0) / largest for id in ranking[:k]]
        return _dcg(found) / _dcg([value / largest for value in ideal[:k]])

    return _mean([one(*pair) for pair in zip(rankings, gains, strict=True)])


def mrr(rankings: Rankings[_Id], gains: Gains[_Id], k: int) -> float:
    """Mean of 1 / rank of the first relevant id among the first ``k``; 0 where there is none."""
    return _mean(
        [
            next((1 / rank for rank, id in enumerate(ranking[:k], 1) if id in gain), 0.0)
            for ranking, gain in zip(rankings, gains, strict=True)
        ]
    )


def recall(rankings: Rankings[_Id], gains: Gains[_Id], k: int) -> float:
    """Mean share of a query's relevant ids among the first ``k``."""
    return _mean(
        [
            len(gain.keys() & set(ranking[:k])) / len(gain)
            for ranking, gain in zip(rankings, gains, strict=True)
        ]
    )


def _dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
