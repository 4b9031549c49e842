"""The files of a segment in the making: documents, vectors, and the journal that says how many are on disk.

Documents are stored on one thread and vectors written on another; after each shard of some thousand documents, the
documents are committed, and once their vectors are written as well, that is recorded in the journal.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from ...documents.document import Document
from ..storage.document_store import DocumentWriter, OtherInputError
from ..storage.faiss_index import Float32Array
from ..storage.journal import Header, Journal, State
from ..storage.spool import SPOOL_FILE, Spool, SpoolWriter
from ..storage.vectors import normalize_rows
from .check import has_given_vector

__all__ = ["SHARD_ROWS", "Staging"]

SHARD_ROWS = 16_384
SHARD_SECONDS = 10.0


class Staging:
    """Documents and vectors of one segment, in a folder described by a journal.

    Attributes:
        documents: where documents are stored.
        spool: where vectors are appended.
        resumed: documents and vectors on disk from before an interruption.
        truncated: texts that the model cut; ``None`` if that is unknown.
        given: documents whose vectors the caller has given.
    """

    def __init__(
        self,
        folder: Path,
        journal: Path,
        header: Header,
        state: State | None,
        *,
        replace: bool,
        passages: bool = False,
    ) -> None:
        """Start in the empty ``folder``, or resume from ``state``; the rest is as in `DocumentWriter`."""
        self._journal_path = journal
        self._header = header
        self._journal: Journal | None = None
        self.documents = DocumentWriter(folder, replace=replace, passages=passages)
        path = folder / SPOOL_FILE
        self.resumed = 0
        self.truncated: int | None = 0 if state is None else state.truncated
        self.given = 0
        self._given_before: int | None = None  # unknown of other rows, and of those of an earlier embedkit
        if state is not None:
            self._journal = Journal(journal, header, resume=True)
            vectors = path.stat().st_size // (4 * header.dimension) if path.exists() else 0
            self.resumed = min(state.rows, vectors, self.documents.rows)
            self.documents.rewind(self.resumed)
            if self.resumed == state.rows:
                self._given_before = state.given
        self.spool = SpoolWriter(path, header.dimension, self.resumed)
        self._replayed = 0
        self._committed = 0
        self._deadline = time.monotonic() + SHARD_SECONDS

    @property
    def vectors(self) -> Spool:
        """The vectors written so far."""
        return Spool(self.spool.path, self.spool.rows, self._header.dimension)

    def replay(self, document: Document, vector: Float32Array | None) -> None:
        """Compare the vector given with a document that was stored before an interruption.

        Raises:
            OtherInputError: it is another one, or the last of fewer that are given than before.
        """
        row = self._replayed
        self._replayed += 1
        self.given += has_given_vector(document)
        if vector is not None:
            self._compare(document, vector, row)
        # a vector that was given and is missing now cannot be told from one that the model computed
        if self._replayed == self.resumed and self.given < (self._given_before or 0):
            raise OtherInputError(
                f"{self._given_before:,} of the {self.resumed:,} documents from before the interruption came with "
                f"their vectors, and now {self.given:,} do; give the same vectors, or start over with --restart "
                "(restart=True)"
            )

    def _compare(self, document: Document, vector: Float32Array, row: int) -> None:
        if self._header.metric == "cosine":
            vector = normalize_rows(vector[None])[0]
        before = Spool(self.spool.path, self.resumed, self._header.dimension).read(row, row + 1)[0]
        if not np.allclose(vector, before, rtol=1e-5, atol=1e-7):
            raise OtherInputError(
                f"{document.origin}: its vector is not the one from before the interruption; give the same input, "
                "or start over with --restart (restart=True)"
            )

    def commit_if_due(self) -> bool:
        """Commit the documents if a shard of them is complete; returns whether it was."""
        if self.documents.rows - self._committed < SHARD_ROWS and time.monotonic() <= self._deadline:
            return False
        self.documents.commit()
        self._committed, self._deadline = self.documents.rows, time.monotonic() + SHARD_SECONDS
        return True

    def commit(self) -> None:
        """Commit the documents, and record all vectors."""
        self.documents.commit()
        self.record()

    def record(self) -> None:
        """Record all vectors in the journal; their documents are on disk."""
        if self.spool.rows == 0:
            return
        self.spool.sync()
        self.journal.encoded(self.spool.rows, self.truncated, self.given)

    @property
    def journal(self) -> Journal:
        """The journal, started when there is something to record."""
        if self._journal is None:
            self._journal = Journal(self._journal_path, self._header, resume=False)
        return self._journal

    def close(self) -> None:
        """Close the files."""
        self.spool.close()
        self.documents.close()
        if self._journal is not None:
            self._journal.close()
