"""`Hit`: one answer to a query."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ...documents.passages import FIELD
from ..storage.generation import Generation
from .hybrid import Parts
from .prepared import Found

__all__ = ["Hit", "Passage", "hit_fields", "passage_fields", "split_fields", "to_hits"]


@dataclass(frozen=True, slots=True)
class Passage:
    """The place of a passage in its document.

    Attributes:
        document: the document's id.
        number: of the passage, from 1.
        count: of the document's passages.
        begin: the passage's first character in the document's text.
        end: after its last.
        heading: the headings above it, from the outermost ("A > B"); empty if there is none.
    """

    document: str
    number: int
    count: int
    begin: int
    end: int
    heading: str = ""

    @property
    def before(self) -> str | None:
        """The id of the passage before this one, for `Index.get`; ``None`` for the first."""
        return f"{self.document}#{self.number - 1}" if self.number > 1 else None

    @property
    def after(self) -> str | None:
        """The id of the passage after this one; ``None`` for the last."""
        return f"{self.document}#{self.number + 1}" if self.number < self.count else None


def passage_fields(passage: Passage) -> dict[str, Any]:
    """The place of a passage, with its neighbors' ids, as JSON."""
    return {**asdict(passage), "before": passage.before, "after": passage.after}


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found by a search.

    Attributes:
        rank: 1 for the best.
        score: the cosine or dot product, by the metric of the index; of a hybrid search the fused score, 0 to 1.
        id: of the document.
        text: of the document.
        metadata: the document's other fields.
        passage: the place of a passage in its document; ``None`` if documents are whole.
        parts: what the score of a hybrid search was made of; ``None`` for any other search.
    """

    rank: int
    score: float
    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    parts: Parts | None = None
    passage: Passage | None = None

    @property
    def document(self) -> str:
        """The id of the document: of a passage's, or the hit's own."""
        return self.id if self.passage is None else self.passage.document


def hit_fields(hit: Hit, *, explain: bool) -> dict[str, Any]:
    """A hit as JSON; ``explain``: with what its score was made of."""
    fields = {"rank": hit.rank, "score": hit.score, "id": hit.id, "text": hit.text, "metadata": hit.metadata}
    if hit.passage is not None:
        fields["passage"] = passage_fields(hit.passage)
    if explain and hit.parts is not None:
        fields["parts"] = asdict(hit.parts)
    return fields


def to_hits(generation: Generation, found: Found) -> list[list[Hit]]:
    """Read the documents of what was ``found``."""
    documents = generation.fetch(found.rows)
    cut = generation.manifest.passages is not None
    result = []
    for number, (scores, rows) in enumerate(zip(found.scores.tolist(), found.rows.tolist(), strict=True)):
        hits: list[Hit] = []
        for place, (score, row) in enumerate(zip(scores, rows, strict=True)):
            if row >= 0:
                document = documents[row]
                metadata, passage = split_fields(document.metadata) if cut else (document.metadata, None)
                parts = None if found.parts is None else found.parts[number][place]
                hits.append(Hit(len(hits) + 1, score, document.id, document.text, metadata, parts, passage))
        result.append(hits)
    return result


def split_fields(metadata: dict[str, Any]) -> tuple[dict[str, Any], Passage | None]:
    """The document's own fields, and the place of the passage."""
    place = metadata.get(FIELD)
    try:
        passage = Passage(**place) if isinstance(place, dict) else None
    except TypeError:  # not written by a build
        return metadata, None
    return {name: value for name, value in metadata.items() if name != FIELD}, passage
