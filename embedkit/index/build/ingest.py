"""Documents to rows and vectors on disk: the part of a build that takes the time, and can be resumed.

Reading (and writing documents to SQLite) runs ahead on a background thread where the source allows it,
encoding on the caller's thread, so that Ctrl-C reaches it; both let go of the GIL for their long parts. After
each shard of some thousand documents everything is flushed and noted in the journal.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...documents.document import Document
from ...documents.errors import InputError, OnError, reject
from ..encoder import TextEncoder
from ..errors import BuildError, ResumeError
from ..prefetch import prefetch
from ..storage.document_store import DocumentWriter
from ..storage.faiss_index import Float32Array
from ..storage.journal import Journal, State
from ..storage.spool import SPOOL_FILE, Spool, SpoolWriter
from ..storage.vectors import check_encoded, normalize_rows

SHARD_ROWS = 16_384
SHARD_SECONDS = 10.0

_CHUNK_TEXTS = 2048
_CHUNK_CHARACTERS = 4 << 20
_CHUNKS_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is.

    Attributes:
        stage: "encode", "copy", "choose", "train" or "add".
        done: documents encoded (before an interruption, too) or copied, candidates measured, or vectors
            trained on or added.
        total: of how many; ``None`` while encoding, where the number of documents is not known.
        position: bytes of input behind the documents encoded, when they were read from files.
    """

    stage: str
    done: int
    total: int | None
    position: int = 0


@dataclass(slots=True)
class _Chunk:
    texts: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    vectors: dict[int, Any] = field(default_factory=dict)  # those that came with their documents
    characters: int = 0
    position: int = 0
    committed: bool = False  # the documents up to its last one are on disk


class InputDigest:
    """SHA-256 of documents as they pass by: ids, texts, metadata and given vectors."""

    def __init__(self) -> None:
        """Start with none."""
        self._hash = hashlib.sha256()

    def watch(self, documents: Iterable[str | Document]) -> Iterator[str | Document]:
        """Pass ``documents`` on."""
        for item in documents:
            document = item if isinstance(item, Document) else Document(item)
            vector = None if document.vector is None else np.asarray(document.vector)
            metadata = None if document.metadata is None else dict(document.metadata)
            told = repr((document.id, document.text, metadata, None if vector is None else vector.tobytes()))
            self._hash.update(told.encode("utf-8", "surrogatepass"))
            yield item

    def hexdigest(self) -> str:
        """Of those that have passed."""
        return self._hash.hexdigest()


class Ingest:
    """The documents and vectors of one segment to be, in a folder that a journal describes."""

    def __init__(
        self,
        folder: Path,
        journal: Path,
        header: dict[str, Any],
        state: State | None,
        *,
        dimension: int,
        replace: bool,
    ) -> None:
        """Begin in the empty ``folder``, or go on from ``state``."""
        self._journal_path = journal
        self._header = header
        self._journal: Journal | None = None
        self._dimension = dimension
        self.documents = DocumentWriter(folder, replace=replace)
        spool = folder / SPOOL_FILE
        rows = 0
        if state is not None:
            self._journal = Journal(journal, header, resume=True)
            vectors = spool.stat().st_size // (4 * dimension) if spool.exists() else 0
            rows = min(state.rows, vectors, self.documents.rows)
            self.documents.rewind(rows)
        self.spool = SpoolWriter(spool, dimension, rows)
        self.resumed = rows

    def run(
        self,
        documents: Iterable[str | Document],
        encoder: TextEncoder,
        *,
        normalize: bool,
        ids_needed: bool,
        taken: Callable[[str], bool],
        on_error: OnError,
        read_ahead: bool,
        report: Callable[[Progress], None],
    ) -> None:
        """Store and encode ``documents``; what was done before an interruption is compared, not repeated.

        Whatever ends it, what is encoded by then is noted in the journal.

        Args:
            documents: the same as before an interruption.
            encoder: makes the vectors.
            normalize: scale them to length 1.
            ids_needed: a document without an id is refused; else its position becomes its id.
            taken: whether an id must not be used.
            on_error: as for `embedkit.Index.build`.
            read_ahead: iterate ``documents`` on another thread.
            report: told of each step.
        """
        chunks = self._stored_chunks(documents, ids_needed, taken, on_error, normalize=normalize)
        if read_ahead:
            chunks = prefetch(chunks, _CHUNKS_AHEAD)
        try:
            with contextlib.closing(chunks):
                if self.spool.rows:
                    report(Progress("encode", self.spool.rows, None))
                self._encode(chunks, encoder, normalize, report)
            self._commit()
        except BaseException:
            if self.spool.rows > self.resumed:
                with contextlib.suppress(sqlite3.Error, OSError):
                    self._commit()
            raise

    def _commit(self) -> None:
        self.documents.commit()
        self._note()

    def _note(self) -> None:
        """Note all vectors; their documents are on disk."""
        if self.spool.rows == 0:
            return
        self.spool.sync()
        self.journal.encoded(self.spool.rows)

    @property
    def journal(self) -> Journal:
        """The journal, begun when there is something to note."""
        if self._journal is None:
            self._journal = Journal(self._journal_path, self._header, resume=False)
        return self._journal

    def _stored_chunks(
        self,
        documents: Iterable[str | Document],
        ids_needed: bool,
        taken: Callable[[str], bool],
        on_error: OnError,
        *,
        normalize: bool,
    ) -> Generator[_Chunk, None, None]:
        """Store each document, and yield the texts to encode, in chunks of bounded size."""
        chunk = _Chunk()
        writer = self.documents
        stored = Spool(self.spool.path, self.spool.rows, self._dimension)
        replayed = 0
        committed, deadline = 0, time.monotonic() + SHARD_SECONDS
        for position, item in enumerate(documents):
            document = item if isinstance(item, Document) else Document(item)
            known = writer.replaying
            try:
                if document.id is None:
                    document = replace(document, origin=document.origin or f"document {position}")
                    if ids_needed:
                        raise InputError(
                            document.origin, "a document that is added needs an id", skippable=True
                        )
                    document = replace(document, id=str(position))
                if not known and isinstance(document.id, str) and taken(document.id):
                    raise InputError(
                        document.origin,
                        f"the id {document.id!r} is in the index already; upsert replaces documents",
                        skippable=True,
                    )
                vector = self._checked_vector(document)
                writer.add(document)
            except InputError as error:
                reject(error, on_error)
                continue
            if known:
                if vector is not None:
                    _check_same_vector(
                        document, normalize_rows(vector[None])[0] if normalize else vector, stored, replayed
                    )
                replayed += 1
                continue
            if vector is not None:
                chunk.vectors[len(chunk.texts)] = vector
            chunk.texts.append(document.text)
            chunk.origins.append(document.origin or f"document {document.id}")
            chunk.characters += len(document.text)
            chunk.position = document.position
            if len(chunk.texts) == _CHUNK_TEXTS or chunk.characters >= _CHUNK_CHARACTERS:
                if writer.rows - committed >= SHARD_ROWS or time.monotonic() > deadline:
                    writer.commit()
                    chunk.committed = True
                    committed, deadline = writer.rows, time.monotonic() + SHARD_SECONDS
                yield chunk
                chunk = _Chunk()
        if writer.replaying:
            raise ResumeError(
                "the input is shorter than what was encoded before the interruption; "
                "give the same input, or begin anew with --restart (restart=True)"
            )
        if chunk.texts:
            yield chunk

    def _checked_vector(self, document: Document) -> Float32Array | None:
        if document.vector is None:
            return None
        vector = np.asarray(document.vector, np.float32)
        if vector.shape != (self._dimension,):
            raise InputError(
                document.origin,
                f"its vector has the shape {vector.shape}, and the encoder's have ({self._dimension},)",
                skippable=True,
            )
        if not np.isfinite(vector).all():
            raise InputError(document.origin, "its vector holds NaN or infinity", skippable=True)
        return vector

    def _encode(
        self,
        chunks: Iterator[_Chunk],
        encoder: TextEncoder,
        normalize: bool,
        report: Callable[[Progress], None],
    ) -> None:
        for chunk in chunks:
            self.spool.add(self._vectors(chunk, encoder, normalize))
            if chunk.committed:
                self._note()
            report(Progress("encode", self.spool.rows, None, chunk.position))

    def _vectors(self, chunk: _Chunk, encoder: TextEncoder, normalize: bool) -> Float32Array:
        texts, given = chunk.texts, chunk.vectors
        places = [place for place in range(len(texts)) if place not in given] if given else []
        if not given or places:
            wanted = [texts[place] for place in places] if given else texts
            encoded = encoder.encode_document(wanted, normalize_embeddings=normalize)
            vectors, unusable = check_encoded(encoded, len(wanted), self._dimension)
            if len(unusable):
                origin = chunk.origins[places[unusable[0]] if given else unusable[0]]
                raise BuildError(
                    f"{origin}: the encoder returned NaN or infinity for this text; check the model's weights"
                )
            if not given:
                return vectors
        result = np.empty((len(texts), self._dimension), np.float32)
        if places:
            result[places] = vectors
        brought = np.stack(list(given.values()))
        result[list(given)] = normalize_rows(brought) if normalize else brought
        return result

    def close(self) -> None:
        """Let go of the files."""
        self.spool.close()
        self.documents.close()
        if self._journal is not None:
            self._journal.close()


def _check_same_vector(document: Document, vector: Float32Array, stored: Spool, row: int) -> None:
    if not np.allclose(vector, stored.read(row, row + 1)[0], rtol=1e-5, atol=1e-7):
        raise ResumeError(
            f"{document.origin}: its vector is not the one from before the interruption; give the same input, or "
            "begin anew with --restart (restart=True)"
        )
