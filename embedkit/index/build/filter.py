"""What of a build's input need not be encoded: texts that the index holds already, and repeated ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from ...documents.document import Document, EncodedDocument, check_text
from ...documents.passages import document_of
from ..storage.document_store import StoredDocument
from ..storage.generation import Generation
from .check import blocks, has_given_vector
from .resume import vector_bytes

__all__ = ["Filter"]

_STORED_AT_ONCE = 16  # documents, which may be long, that are compared with new ones


class Filter:
    """Passes on what must be stored.

    Of an upsert, a document that the base holds with the same text and fields is dropped; one whose fields alone have
    changed, or a passage whose text is that of another passage of its document before, brings its stored vector.
    (The model and the prompt are those of the index, so the same text has the same vector, unless one was given.)

    Attributes:
        unchanged: documents that were dropped because the base holds them.
        repeated: documents that were dropped because an earlier one has the same text, and the same given vector.
        blank: documents that were dropped because their text is empty or white space.
        unsure: whether a stored vector may be of a text that the model cut.
    """

    def __init__(self, base: Generation | None, *, passages: bool = False, repeated: bool = False) -> None:
        """Compare with ``base``, unless it is ``None``; ``repeated``: drop repeated texts."""
        self.unchanged = 0
        self.repeated = 0
        self.blank = 0
        self.unsure = False
        self._first_blank = ""
        self._base = base
        self._passages = passages
        self._seen: set[bytes | None] | None = set() if repeated else None
        self._passed: set[str] = set()

    def note_blank(self, document: Document) -> None:
        """Count ``document``, whose text is blank."""
        self.blank += 1
        self._first_blank = self._first_blank or f"the document {document.id!r:.80}"

    def told_blank(self, *, replaces: bool) -> str:
        """What became of the blank ones, for a warning; ``replaces``: documents with their ids are replaced."""
        kept = "; earlier documents with their ids stay" if replaces else ""
        texts = "1 blank text was" if self.blank == 1 else f"{self.blank:,} blank texts were"
        return f"{texts} left out ({'' if self.blank == 1 else 'first '}{self._first_blank}){kept}"

    def pieces(self, groups: Iterable[list[Document]]) -> Iterator[list[Document]]:
        """The groups (a document, or all its passages) that must be stored."""
        if self._base is None:
            yield from groups if self._seen is None else map(self._first, groups)
            return
        for block in blocks(groups):
            yield from self._changed(block, self._base)

    def _first(self, group: list[Document]) -> list[Document]:
        """The texts of ``group`` that no earlier one repeats."""
        assert self._seen is not None
        kept = []
        for document in group:
            digest = _digest(document)
            if digest in self._seen:
                self.repeated += 1
                continue
            if digest is not None:
                self._seen.add(digest)
            kept.append(document)
        return kept

    def refused(self, group: Iterable[Document]) -> None:
        """``group``, which was passed on, is not stored: a later one with such a text is the first."""
        if self._seen is not None:
            self._seen.difference_update(map(_digest, group))

    def _changed(self, block: list[list[Document]], base: Generation) -> Iterator[list[Document]]:
        names = [document_of(group[0].id or "") if self._passages else group[0].id for group in block]
        wanted = [name for name in names if isinstance(name, str) and check_text(name, "") is None]
        places: dict[str, list[tuple[int, int]]]
        if self._passages:
            places = base.find_passages(wanted)
        else:
            places = {name: [place] for name, place in base.find(wanted).items()}
        stored: dict[tuple[int, int], StoredDocument] = {}
        for at, (name, group) in enumerate(zip(names, block, strict=True)):
            if at % _STORED_AT_ONCE == 0:
                near = [name for name in names[at : at + _STORED_AT_ONCE] if isinstance(name, str)]
                stored = base.stored(chain.from_iterable(places.get(name, ()) for name in near))
            if not isinstance(name, str) or name in self._passed:
                yield group
                continue
            before = [(place, stored[place]) for place in places.get(name, ())]
            if _same(group, [document for _, document in before]):
                self.unchanged += 1
                continue
            self._passed.add(name)
            rows = {document.text: place for place, document in before}
            yield [
                self._encoded(document, base, *rows[document.text])
                if document.vector is None and document.text in rows and _exact(base, rows[document.text][0])
                else document
                for document in group
            ]

    def _encoded(self, document: Document, base: Generation, number: int, row: int) -> EncodedDocument:
        segment = base.segments[number]
        self.unsure = self.unsure or segment.entry.truncated != 0
        vectors: Any = segment.raw.gather(np.array([row], np.int64))
        vector = np.asarray(vectors[0], np.float32)
        return EncodedDocument(
            document.text, document.id, document.metadata, document.origin, document.position, vector
        )


def _digest(document: Document) -> bytes | None:
    """Of the text and the given vector; ``None`` for what is no text, which is refused where it is stored."""
    if not isinstance(document.text, str):
        return None
    digest = hashlib.blake2b(document.text.encode("utf-8", "surrogatepass"), digest_size=16)
    # that of the index's own model is told by the text, and may differ in its last bits
    vector = vector_bytes(document.vector) if has_given_vector(document) else None
    if vector is not None:
        digest.update(b"\0" + vector)  # no text that is stored holds a NUL
    return digest.digest()


def _exact(base: Generation, number: int) -> bool:
    """Whether the vectors of a segment are kept as they were encoded."""
    segment = base.segments[number]
    return segment.entry.raw == "fp32" or (segment.entry.raw == "none" and segment.exact)


def _same_fields(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    try:  # as they are stored: to Python 1, 1.0 and True are the same
        return json.dumps(new, sort_keys=True) == json.dumps(old, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # refused where it is stored
        return False


def _same(group: list[Document], before: list[StoredDocument]) -> bool:
    return len(group) == len(before) and all(
        new.vector is None
        and new.id == old.id
        and new.text == old.text
        and _same_fields(new.metadata or {}, old.metadata)
        for new, old in zip(group, before, strict=True)
    )
