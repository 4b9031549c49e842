"""`Hit`: one answer to a query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..storage.faiss_index import Float32Array, Int64Array
from ..storage.generation import Generation

__all__ = ["Hit", "to_hits"]


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found by a search.

    Attributes:
        rank: 1 for the best.
        score: the cosine or dot product, by the metric of the index; of a hybrid search the fused score.
        id: of the document.
        text: of the document.
        metadata: the document's other fields.
    """

    rank: int
    score: float
    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


def to_hits(generation: Generation, scores: Float32Array, rows: Int64Array) -> list[list[Hit]]:
    """Read the documents of ``rows`` (n, k), -1 for none, with their ``scores`` (n, k)."""
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
