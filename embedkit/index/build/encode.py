"""Texts to vectors, a chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...documents.document import Document
from ..encoder import TextEncoder
from ..errors import BuildError
from ..storage.faiss_index import Float32Array
from ..storage.vectors import check_encoded, normalize_rows
from .check import has_given_vector

__all__ = ["CHUNK_TEXTS", "Chunk", "Pace", "encode_chunk", "encode_texts", "truncated_by"]

CHUNK_TEXTS = 2048
_CHUNK_CHARACTERS = 4 << 20
_LEAST_CHARACTERS = 1 << 15
_CHUNK_SECONDS = 5.0  # about what a build that is stopped loses


class Pace:
    """How much text a chunk may have so that a build that is stopped loses seconds, whatever the encoder's speed.

    Attributes:
        characters: of the next chunk.
    """

    def __init__(self) -> None:
        """Begin with little text: nothing is known of the encoder."""
        self.characters = _LEAST_CHARACTERS

    def took(self, characters: int, seconds: float) -> None:
        """Note the time that a chunk took."""
        wanted = int(characters * _CHUNK_SECONDS / max(seconds, 1e-3))
        self.characters = min(max(wanted, _LEAST_CHARACTERS), _CHUNK_CHARACTERS)


@dataclass(slots=True)
class Chunk:
    """Stored documents whose vectors are next to be written.

    Attributes:
        texts: of the documents.
        origins: of the documents, for error messages.
        vectors: those that came with their documents, by place in the chunk.
        given: how many of those the caller has given.
        characters: in all texts.
        limit: the characters that it may have.
        position: as in `Document`, of the last one.
        committed: the documents up to the last one are on disk.
    """

    texts: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    vectors: dict[int, Float32Array] = field(default_factory=dict)
    given: int = 0
    characters: int = 0
    limit: int = _CHUNK_CHARACTERS
    position: int = 0
    committed: bool = False

    def add(self, document: Document, vector: Float32Array | None) -> None:
        """Append ``document``, with its ``vector`` if it came with one."""
        if vector is not None:
            self.vectors[len(self.texts)] = vector
        self.given += has_given_vector(document)
        self.texts.append(document.text)
        self.origins.append(document.origin or f"document {document.id}")
        self.characters += len(document.text)
        self.position = document.position

    @property
    def full(self) -> bool:
        """Whether it should be encoded now."""
        return len(self.texts) >= CHUNK_TEXTS or self.characters >= self.limit


def truncated_by(encoder: TextEncoder) -> int | None:
    """How many texts ``encoder`` has cut so far; ``None`` if it does not count them."""
    count = encoder.describe().get("truncated")
    return count if isinstance(count, int) else None


def encode_chunk(chunk: Chunk, encoder: TextEncoder, dimension: int, *, normalize: bool) -> Float32Array:
    """The vectors (n, dimension) of a chunk: those given, and the encoder's for the other texts."""
    texts, given = chunk.texts, chunk.vectors
    if not given:
        return encode_texts(encoder, texts, chunk.origins, dimension, normalize=normalize)
    result = np.empty((len(texts), dimension), np.float32)
    places = [place for place in range(len(texts)) if place not in given]
    if places:
        wanted, origins = [texts[place] for place in places], [chunk.origins[place] for place in places]
        result[places] = encode_texts(encoder, wanted, origins, dimension, normalize=normalize)
    stacked = np.stack(list(given.values()))
    result[list(given)] = normalize_rows(stacked) if normalize else stacked
    return result


def encode_texts(
    encoder: TextEncoder, texts: list[str], origins: Sequence[str], dimension: int, *, normalize: bool
) -> Float32Array:
    """The encoder's vectors (n, dimension) for ``texts``.

    Raises:
        BuildError: the encoder returned another shape, or NaN or infinity (names the text's origin).
    """
    encoded = encoder.encode_document(texts, normalize_embeddings=normalize)
    vectors, unusable = check_encoded(encoded, len(texts), dimension)
    if len(unusable):
        raise BuildError(
            f"{origins[unusable[0]]}: the encoder returned NaN or infinity for this text; check the model's weights"
        )
    return vectors
