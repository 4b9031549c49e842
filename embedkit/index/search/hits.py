"""`Hit`: one answer to a query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..storage.generation import Generation
from .hybrid import Parts
from .prepared import Found

__all__ = ["Hit", "to_hits"]


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found by a search.

    Attributes:
        rank: 1 for the best.
        score: the cosine or dot product, by the metric of the index; of a hybrid search the fused score, 0 to 1.
        id: of the document.
        text: of the document.
        metadata: the document's other fields.
        parts: what the score of a hybrid search was made of; ``None`` for any other search.
    """

    rank: int
    score: float
    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    parts: Parts | None = None


def to_hits(generation: Generation, found: Found) -> list[list[Hit]]:
    """Read the documents of what was ``found``."""
    documents = generation.fetch(found.rows)
    result = []
    for number, (scores, rows) in enumerate(zip(found.scores.tolist(), found.rows.tolist(), strict=True)):
        hits: list[Hit] = []
        for place, (score, row) in enumerate(zip(scores, rows, strict=True)):
            if row >= 0:
                document = documents[row]
                parts = None if found.parts is None else found.parts[number][place]
                hits.append(Hit(len(hits) + 1, score, document.id, document.text, document.metadata, parts))
        result.append(hits)
    return result
