"""What a build will need, estimated from a sample of its documents."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from ...documents.document import Document, check_text
from ...documents.errors import InputError
from ...documents.passages import PassageCutter
from ...inputs import TextsWarning
from ..encoder import TextEncoder, trial_of
from ..storage.faiss_index import create_index, is_exact, resolve_factory
from .build_parts import bytes_per_vector
from .memory import faiss_budget, resident
from .publish import storage_of
from .settings import BuildSettings

__all__ = ["Estimate", "estimate"]

_ENCODED = 64
_WARM = 8
_DOCUMENT_BYTES = 120  # of SQLite's pages and indexes for a document, without its text
_INDEX_BYTES = 20_000  # of an index without documents: mostly SQLite's tables
_TEXT_COPIES = 1.4  # the text and the posting lists of its words
_SORTED_COPIES = 1.1  # its words while they are sorted
_SEEN_BYTES = 80  # of a text's digest in a set of Python


@dataclass(frozen=True, slots=True)
class Estimate:
    """Roughly what a build will need.

    Attributes:
        documents: their number.
        passages: that of their passages; ``None`` if they stay whole.
        seconds: of encoding.
        disk: bytes of the finished index.
        disk_while_building: peak bytes on disk.
        memory: peak memory of the process in bytes.
    """

    documents: int
    passages: int | None
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
    """Extrapolate from ``sample`` (not empty) to ``documents``; encodes some of it to time the encoder.

    It neither warns of texts nor counts them in ``encoder``: the build does.

    Raises:
        BuildError: no build is possible within ``settings.max_memory``, so none is estimated.
    """
    faiss_budget(settings.max_memory)
    trial = trial_of(encoder)
    passages = None
    if settings.passages is not None:
        whole, sample = len(some := _some(sample)), _cut(some, PassageCutter(trial, settings.passages))
        passages = max(documents, round(documents * len(sample) / whole))
    rows = documents if passages is None else passages
    dimension = encoder.get_embedding_dimension()
    factory, kept = storage_of(encoder, settings)
    index = create_index(resolve_factory(factory, rows), dimension)
    vector = 4 * dimension
    codes = getattr(index, "code_size", vector) if not is_exact(index) else vector
    stored = codes + (0 if is_exact(index) or kept == "none" else vector)
    text = sum(len(document.text.encode("utf-8", "replace")) for document in sample) / len(sample)
    row = stored + _DOCUMENT_BYTES + _TEXT_COPIES * text
    # The texts that --dedup has seen are held beside --max-memory.
    seen = int(rows * _SEEN_BYTES) if settings.dedup is not None else 0
    least = int(resident()) + (64 << 20)
    return Estimate(
        documents=documents,
        passages=passages,
        seconds=rows * _seconds_of_one(sample, trial),
        disk=_INDEX_BYTES + int(rows * row),
        disk_while_building=_INDEX_BYTES + int(rows * (row + vector + _SORTED_COPIES * text)),
        memory=seen + min(settings.max_memory, least + int(rows * bytes_per_vector(index))),
    )


def _some(sample: Sequence[Document]) -> Sequence[Document]:
    """Documents from all over ``sample``."""
    return sample[:: max(1, len(sample) // _ENCODED)]


def _usable(document: Document) -> bool:
    return check_text(document.text, "") is None  # the build reports the others


def _cut(documents: Sequence[Document], cutter: PassageCutter) -> list[Document]:
    """The passages of ``documents``; those that cannot be cut stay whole, and the build reports them."""
    pieces: list[Document] = []
    for document in documents:
        try:
            pieces += cutter.cut(document) if _usable(document) else [document]
        except InputError:
            pieces.append(document)
    return pieces


def _seconds_of_one(sample: Sequence[Document], encoder: TextEncoder) -> float:
    texts = [document.text for document in _some(sample) if document.vector is None and _usable(document)]
    if not texts:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TextsWarning)  # the build warns of all texts
        encoder.encode_document(texts[:_WARM], normalize_embeddings=True)
        begin = time.perf_counter()
        encoder.encode_document(texts, normalize_embeddings=True)
    return (time.perf_counter() - begin) / len(texts)
