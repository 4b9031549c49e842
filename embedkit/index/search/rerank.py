"""Reorders what a search found by the scores of a cross-encoder, which reads query and document together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...cross_encoder import CrossEncoder
    from .hits import Hit

__all__ = ["rerank"]


def rerank(
    model: CrossEncoder, queries: Sequence[str], found: Sequence[Sequence[Hit]], k: int
) -> list[list[Hit]]:
    """The ``k`` best of each query's hits.

    Args:
        model: with one class, whose score is the rank.
        queries: the texts that were searched for.
        found: the hits of each query, more than ``k`` of them for the reordering to matter.
        k: how many to keep.

    Returns:
        Hits with new ranks and the cross-encoder's scores. Equal scores keep the order of the search.

    Raises:
        ValueError: the model has several classes.
    """
    if model.num_labels != 1:
        raise ValueError(
            f"reranking needs a cross-encoder of one class, this one has {', '.join(model.labels[:10])}"
        )
    pairs = [(query, hit.text) for query, hits in zip(queries, found, strict=True) for hit in hits]
    scores = model.predict(pairs)
    result: list[list[Hit]] = []
    start = 0
    for hits in found:
        own = scores[start : start + len(hits)]
        start += len(hits)
        order = np.argsort(-own, kind="stable")[:k]
        result.append(
            [replace(hits[i], rank=rank, score=float(own[i])) for rank, i in enumerate(order.tolist(), 1)]
        )
    return result
