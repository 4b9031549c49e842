"""What a build will need, estimated from a sample of its documents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...documents.document import Document, check_text
from ..encoder import TextEncoder
from ..storage.faiss_index import create_index, is_exact, resolve_factory
from .build_parts import bytes_per_vector
from .memory import resident
from .publish import storage_of
from .settings import BuildSettings

__all__ = ["Estimate", "estimate"]

_ENCODED = 64
_WARM = 8
_DOCUMENT_BYTES = 120  # of SQLite's pages and indexes for a document, without its text
_INDEX_BYTES = 20_000  # of an index without documents: mostly SQLite's tables
_TEXT_COPIES = 1.4  # the text and the posting lists of its words
_SORTED_COPIES = 1.1  # its words while they are sorted


@dataclass(frozen=True, slots=True)
class Estimate:
    """Roughly what a build will need.

    Attributes:
        documents: their number.
        seconds: of encoding.
        disk: bytes of the finished index.
        disk_while_building: peak bytes on disk.
        memory: peak memory of the process in bytes.
    """

    documents: int
    seconds: float
    disk: int
    disk_while_building: int
    memory: int


def estimate(
    sample: Sequence[Document],
    documents: int,
    encoder: TextEncoder,
    settings: BuildSettings,
) -> Estimate:
    """Extrapolate from ``sample`` (not empty) to ``documents``; encodes some of it to time the encoder."""
    dimension = encoder.get_embedding_dimension()
    factory, kept = storage_of(encoder, settings)
    index = create_index(resolve_factory(factory, documents), dimension)
    vector = 4 * dimension
    codes = getattr(index, "code_size", vector) if not is_exact(index) else vector
    stored = codes + (0 if is_exact(index) or kept == "none" else vector)
    text = sum(len(document.text.encode("utf-8", "replace")) for document in sample) / len(sample)
    row = stored + _DOCUMENT_BYTES + _TEXT_COPIES * text
    return Estimate(
        documents=documents,
        seconds=documents * _seconds_of_one(sample, encoder),
        disk=_INDEX_BYTES + int(documents * row),
        disk_while_building=_INDEX_BYTES + int(documents * (row + vector + _SORTED_COPIES * text)),
        memory=min(settings.max_memory, int(resident() + documents * bytes_per_vector(index)) + (64 << 20)),
    )


def _seconds_of_one(sample: Sequence[Document], encoder: TextEncoder) -> float:
    step = max(1, len(sample) // _ENCODED)
    texts = [
        document.text
        for document in sample[::step]
        if document.vector is None and check_text(document.text, "") is None  # the build reports these
    ]
    if not texts:
        return 0.0
    encoder.encode_document(texts[:_WARM], normalize_embeddings=True)
    begin = time.perf_counter()
    encoder.encode_document(texts, normalize_embeddings=True)
    return (time.perf_counter() - begin) / len(texts)
