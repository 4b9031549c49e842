"""`Hit`: one answer to a query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..storage.faiss_index import Float32Array, Int64Array
from ..storage.generation import Generation

__all__ = ["Hit", "to_hits"]


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer to a query.

    Attributes:
        rank: 1 for the best.
        score: cosine or dot product, as the index' metric says; of a hybrid search the fused score.
        id: of the document.
        text: the document's text.
        metadata: what else was stored with it.
    """

    rank: int
    score: float
    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


def to_hits(generation: Generation, scores: Float32Array, rows: Int64Array) -> list[list[Hit]]:
    """The documents of ``rows`` (n, k), -1 for none, as hits."""
    documents = generation.fetch(rows)
    result = []
    for line_scores, line in zip(scores.tolist(), rows.tolist(), strict=True):
        hits: list[Hit] = []
        for score, row in zip(line_scores, line, strict=True):
            if row >= 0:
                document = documents[row]
                hits.append(Hit(len(hits) + 1, score, document.id, document.text, document.metadata))
        result.append(hits)
    return result
