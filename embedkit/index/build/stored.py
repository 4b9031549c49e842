"""The documents of a generation as the input of a build, to encode them again with another model."""

from __future__ import annotations

from collections.abc import Iterator

from ...documents.document import Document
from ...documents.errors import InputError
from ..storage.generation import Generation
from ..storage.manifest import DOCUMENTS_FILE

__all__ = ["Stored"]


class Stored:
    """The living documents of a generation, in its order; can be iterated again and again."""

    def __init__(self, generation: Generation) -> None:
        """Read ``generation``, which stays open meanwhile.

        Raises:
            IndexDamagedError: its documents were altered.
        """
        self._generation = generation
        for segment in generation.segments:
            segment.check_files(DOCUMENTS_FILE)

    def __iter__(self) -> Iterator[Document]:
        """One document at a time."""
        for segment in self._generation.segments:
            for _, document, _ in segment.living_documents():
                if not document.text.strip():  # it came with its vector: there is nothing to encode again
                    raise InputError(
                        f"document {document.id}",
                        "the index holds its vector without a text, which cannot be encoded again; delete it, "
                        "or import the index with its documents, or build a new one",
                    )
                yield Document(document.text, document.id, document.metadata or None)
