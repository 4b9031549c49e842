"""Verifies an index against its manifest (files, ids, counts) and its vectors against its model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..encoder import TextEncoder
from ..errors import IndexDamagedError
from ..storage.generation import Generation
from ..storage.ids import shared_id

__all__ = ["verify"]

_SEED = 20240
_LEAST_COSINE = 0.98
"""int8 differs between instruction sets by up to 0.001, and so do vectors kept as int8; another text by 0.1."""
_LEAST_COSINE_OF_CODES = 0.5


def verify(generation: Generation, encoder: TextEncoder | None, sample: int) -> dict[str, Any]:
    """Check ``generation`` for `embedkit.Index.verify`; ``encoder`` encodes ``sample`` documents again."""
    for segment in generation.segments:
        try:
            segment.verify()
        except FileNotFoundError as error:
            raise IndexDamagedError(
                f"{error.filename}: missing; the index was rebuilt or damaged since it was opened"
            ) from None
    _check_ids(generation)
    result: dict[str, Any] = {
        "files": sum(len(segment.entry.files) for segment in generation.segments),
        "documents": generation.manifest.documents,
    }
    if encoder is not None and generation.manifest.documents:
        result["encoded"], result["agreement"] = _encode_again(generation, encoder, sample)
    return result


def _check_ids(generation: Generation) -> None:
    """Raise if an id is in two segments."""
    segments = generation.segments
    shared = shared_id([segment.living_ids for segment in segments], generation.manifest.documents)
    if shared is not None:
        name, one, other = shared
        raise IndexDamagedError(
            f"the id {name!r} is in {segments[one].folder} and in {segments[other].folder}; build the index again"
        )


def _encode_again(generation: Generation, encoder: TextEncoder, sample: int) -> tuple[int, float]:
    """The number of documents encoded again, and their least cosine to the stored vectors."""
    rows = generation.living_rows()
    chosen = np.sort(np.random.default_rng(_SEED).choice(rows, min(sample, len(rows)), replace=False))
    documents = generation.fetch(chosen)
    chosen = np.array([row for row in chosen.tolist() if documents[row].text.strip()], np.int64)
    if not len(chosen):  # imported without texts
        return 0, 1.0
    stored = generation.vectors(chosen)
    texts = [documents[row].text for row in chosen.tolist()]
    cosine = generation.manifest.metric == "cosine"
    made = np.asarray(encoder.encode_document(texts, normalize_embeddings=cosine), np.float32)
    norms = np.linalg.norm(stored, axis=1) * np.linalg.norm(made, axis=1)
    agreement = np.einsum("ij,ij->i", stored, made) / np.maximum(norms, 1e-30)
    agreement[norms < 1e-20] = 1.0
    kept = all(segment.can_read_back for segment in generation.segments)
    least = _LEAST_COSINE if kept else _LEAST_COSINE_OF_CODES
    worst = int(np.argmin(agreement))
    if agreement[worst] < least:
        row = int(chosen[worst])
        raise IndexDamagedError(
            f"the vector of the document {documents[row].id!r} is not the one the model computes of its text "
            f"(cosine {agreement[worst]:.4f}); build the index again. If vectors were given to the build (--vectors, "
            "Document.vector), they need not be the model's: verify with --sample 0 (sample=0)"
        )
    return len(chosen), float(agreement[worst])
