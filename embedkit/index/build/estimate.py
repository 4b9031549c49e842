"""What a build will take, from a sample of its documents: told before it begins."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...documents.document import Document, check_text
from ..encoder import TextEncoder
from ..storage.faiss_index import create_index, is_exact, resolve_factory
from .build_parts import bytes_per_vector
from .memory import resident

_ENCODED = 64
_WARM = 8
_DOCUMENT_BYTES = 120  # of SQLite's pages and indexes for a document, its texts not counted
_TEXT_COPIES = 1.6  # the text, and its words in the full-text index


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build will take, roughly.

    Attributes:
        documents: how many.
        seconds: to encode them.
        disk: bytes of the index.
        disk_while_building: bytes at most in between.
        memory: bytes of the process at most.
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
    *,
    factory: str,
    max_memory: int,
) -> Estimate:
    """Extrapolate from ``sample`` (not empty) to ``documents``; encodes a few of them to time the encoder."""
    dimension = encoder.get_embedding_dimension()
    index = create_index(resolve_factory(factory, documents), dimension)
    vector = 4 * dimension
    codes = getattr(index, "code_size", vector) if not is_exact(index) else vector
    stored = codes + (0 if is_exact(index) else vector)
    text = sum(len(document.text.encode("utf-8", "replace")) for document in sample) / len(sample)
    row = stored + _DOCUMENT_BYTES + _TEXT_COPIES * text
    return Estimate(
        documents=documents,
        seconds=documents * _seconds_of_one(sample, encoder),
        disk=int(documents * row),
        disk_while_building=int(documents * (row + vector)),
        memory=min(max_memory, int(resident() + documents * bytes_per_vector(index)) + (64 << 20)),
    )


def _seconds_of_one(sample: Sequence[Document], encoder: TextEncoder) -> float:
    step = max(1, len(sample) // _ENCODED)
    texts = [
        document.text
        for document in sample[::step]
        if document.vector is None and check_text(document.text, "") is None  # the build says what is wrong
    ]
    if not texts:
        return 0.0
    encoder.encode_document(texts[:_WARM], normalize_embeddings=True)
    begin = time.perf_counter()
    encoder.encode_document(texts, normalize_embeddings=True)
    return (time.perf_counter() - begin) / len(texts)
