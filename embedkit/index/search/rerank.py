"""Reranking of hits by a cross-encoder, which reads query and document together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...arguments import check_positive

if TYPE_CHECKING:
    from ...cross_encoder import CrossEncoder
    from .hits import Hit

__all__ = ["CANDIDATES", "reordered", "rerank"]

CANDIDATES = 50
"""Hits of a query that a cross-encoder reads unless told otherwise."""


def rerank(
    model: CrossEncoder, queries: Iterable[str], found: Iterable[Sequence[Hit]], k: int
) -> list[list[Hit]]:
    """The ``k`` best hits of each query by the scores of ``model``.

    Args:
        model: a cross-encoder with one output.
        queries: the texts that were searched for.
        found: the hits of each query; search for more than ``k``, so that reranking can promote others.
        k: hits to keep per query.

    Returns:
        Hits with the cross-encoder's ranks and scores. Equal scores keep the order of the search.

    Raises:
        TypeError: ``queries`` is a single str, or ``k`` no integer.
        ValueError: the model has several outputs, there are not as many queries as lists of hits, or ``k`` is below 1.
    """
    if isinstance(queries, str):
        raise TypeError("queries must be a list of texts, not a str; give [query]")
    k = check_positive("k", k)
    found = list(found)
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
        result.append(reordered(hits, own, k))
    return result


def reordered(hits: Sequence[Hit], scores: npt.NDArray[np.floating[Any]], k: int) -> list[Hit]:
    """The ``k`` best ``hits`` by ``scores`` (n,), with these and new ranks; equal scores keep the order."""
    order = np.argsort(-scores, kind="stable")[:k]
    return [replace(hits[i], rank=rank, score=float(scores[i])) for rank, i in enumerate(order.tolist(), 1)]
