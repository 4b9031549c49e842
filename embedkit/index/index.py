"""`Index`: a folder of vectors and documents, opened for searching."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.arguments import check_threads
from embedkit.index import build as building
from embedkit.index.build import OnError, Progress, TextEncoder
from embedkit.index.documents import Document
from embedkit.index.errors import IndexDamagedError, ModelMismatchError
from embedkit.index.faiss_index import Float32Array, Int64Array, faiss_threads
from embedkit.index.generation import Generation, open_generation
from embedkit.index.manifest import Manifest, Metric


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer to a query.

    Attributes:
        rank: 1 for the best.
        score: cosine or dot product, as the index' metric says.
        id: the document's key.
        text: the document's text.
        metadata: what else was stored with it.
    """

    rank: int
    score: float
    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


class Index:
    """An index of texts, read from its folder; a whole generation of it, whatever is built there meanwhile.

    Searching is thread-safe. The Faiss index is held in memory; texts stay on disk and are read for hits
    only.

    >>> index = Index.build("cities", ["Paris is in France.", "Rome is in Italy."], encoder)
    >>> index.search("Where is Rome?", k=1)[0][0].text
    'Rome is in Italy.'
    """

    def __init__(
        self,
        path: Path,
        generation: Generation,
        encoder: TextEncoder | str | os.PathLike[str] | None,
        threads: int | None,
    ) -> None:
        """Use `Index.open` or `Index.build`."""
        self.path = path
        self._generation: Generation | None = generation
        self._manifest = generation.manifest
        self._encoder = encoder
        self._encoder_lock = threading.Lock()
        self._threads = threads

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        encoder: TextEncoder | str | os.PathLike[str] | None = None,
        *,
        threads: int | None = None,
    ) -> Index:
        """Open the live generation of the index at ``path``.

        Args:
            path: the index folder.
            encoder: encodes queries. ``None``: the model that the index names, loaded when the first text is
                searched; a path or name: where that model is now. An `embedkit.Encoder` is needed only where
                its settings are not the model's own (prompts, max_length); it must have the fingerprint and
                the dimension of the one that built the index.
            threads: threads of Faiss (and of an encoder loaded here); ``None``: all.

        Raises:
            IndexNotFoundError: no finished index is there.
            IndexDamagedError: a file is missing, has the wrong size, or cannot be read. (`verify` also
                hashes.)
            ModelMismatchError: ``encoder`` is another model.
            ImportError: Faiss is not installed.
        """
        if threads is not None:
            check_threads(threads)
        root = Path(path)

        def accept(manifest: Manifest) -> None:
            if encoder is not None and not isinstance(encoder, (str, os.PathLike)):
                _check_encoder(root, manifest, encoder)

        return cls(root, open_generation(root, accept), encoder, threads)

    @classmethod
    def build(
        cls,
        path: str | os.PathLike[str],
        documents: Iterable[str | Document],
        encoder: TextEncoder,
        *,
        factory: str = "auto",
        metric: Metric = "cosine",
        overwrite: bool = False,
        threads: int | None = None,
        on_error: OnError = "stop",
        progress: Callable[[Progress], None] | None = None,
    ) -> Index:
        """Encode ``documents`` and write an index of them to the folder ``path``, then open it.

        Documents stream: memory holds a few thousand texts, and at the end the Faiss index itself (4 bytes ×
        dimension × documents for Flat and ``IVF…,Flat``; an inverted file is trained on a sample of at most
        256 MiB or 39 vectors a list). While building, the vectors also lie on disk.

        Args:
            path: a new or empty folder, or with ``overwrite`` an index, whose former generation stays
                readable until the new one is complete.
            documents: texts (their ids are "0", "1", …) or `Document` objects.
            encoder: makes the vectors.
            factory: a Faiss index factory string; ``auto`` is exact search (``Flat``) below 20,000 documents,
                and from there an inverted file ``IVF{4·√n},Flat`` of which a search visits a sixteenth.
            metric: "cosine" (vectors are normalised) or "dot".
            overwrite: replace an existing index.
            threads: threads of Faiss; ``None``: all.
            on_error: "stop" raises at the first document that cannot be used, "skip" leaves it out, a
                callable is called with the `InputError` and the document is left out if it returns.
            progress: called after each step, on the caller's thread.

        Raises:
            InputError: a document cannot be used (not a string, a NUL, a lone surrogate, an id used twice,
                metadata that is not JSON), or there is none at all.
            IndexExistsError: ``path`` holds an index, or something else.
            BuildError: the disk is full, the encoder returned NaN, or Faiss cannot build ``factory`` from so
                few vectors. Nothing of the new index is left.
            ValueError: ``factory`` or ``metric`` is unknown.
            ImportError: Faiss is not installed.
        """
        from embedkit.readers import Corpus

        root = Path(path)
        building.build(
            root,
            documents,
            encoder,
            factory=factory,
            metric=metric,
            overwrite=overwrite,
            threads=threads,
            on_error=on_error,
            progress=progress,
            # A generator of the caller's may be tied to its thread (a database cursor), these are not.
            read_ahead=isinstance(documents, (list, tuple, Corpus)),
        )
        return cls.open(root, encoder, threads=threads)

    def __len__(self) -> int:
        """The number of documents."""
        return self._manifest.documents

    @property
    def dimension(self) -> int:
        """The number of columns of a vector."""
        return self._manifest.dimension

    @property
    def encoder(self) -> TextEncoder:
        """The encoder of queries, loaded on first use (`ModelMismatchError` if the model has changed)."""
        with self._encoder_lock:
            if self._encoder is None or isinstance(self._encoder, (str, os.PathLike)):
                encoder = _load_encoder(self._manifest, self._encoder, self._threads)
                _check_encoder(self.path, self._manifest, encoder)
                self._encoder = encoder
            return self._encoder

    def info(self) -> dict[str, Any]:
        """What the index is: the manifest's fields without the files, ``path``, and ``bytes`` on disk."""
        manifest = self._manifest
        entry = manifest.encoder
        return {
            "path": str(self.path),
            "documents": manifest.documents,
            "dimension": manifest.dimension,
            "metric": manifest.metric,
            "factory": manifest.factory,
            "nlist": manifest.nlist,
            "nprobe": manifest.nprobe,
            "model": entry.model,
            "fingerprint": entry.fingerprint,
            "precision": entry.precision,
            "document_prompt": entry.document_prompt,
            "generation": manifest.generation,
            "segments": len(manifest.segments),
            "bytes": sum(file.size for segment in manifest.segments for file in segment.files.values()),
            "created": manifest.created,
            "embedkit_version": manifest.embedkit_version,
        }

    def search(
        self,
        queries: str | Sequence[str] | npt.NDArray[np.floating[Any]],
        k: int = 10,
        *,
        nprobe: int | None = None,
    ) -> list[list[Hit]]:
        """The ``k`` best documents for each query, best first; fewer where the index holds or finds fewer.

        Args:
            queries: a text, several texts, or vectors (n, dimension) or (dimension,).
            k: hits a query.
            nprobe: inverted lists to visit, 1 to nlist (more is slower and finds more); ``None``: as built.

        Returns:
            A list of hits for each query, in the order of the queries (one list for a single text).

        Raises:
            ValueError: ``k`` or ``nprobe`` is out of range, ``nprobe`` is given for an index without lists,
                or the vectors have the wrong shape or hold NaN or infinity.
            TypeError: a query is neither text nor vector.
            IndexDamagedError: a document cannot be read.
        """
        scores, rows = self.search_vectors(self._encode_queries(queries), k, nprobe=nprobe)
        documents = self._open_generation().fetch(rows)
        return [
            [
                Hit(rank, float(score), document.key, document.text, document.metadata)
                for rank, (score, document) in enumerate(
                    (
                        (score, documents[row])
                        for score, row in zip(line_scores, line, strict=True)
                        if row >= 0
                    ),
                    1,
                )
            ]
            for line_scores, line in zip(scores.tolist(), rows.tolist(), strict=True)
        ]

    def search_vectors(
        self, vectors: npt.NDArray[np.floating[Any]], k: int = 10, *, nprobe: int | None = None
    ) -> tuple[Float32Array, Int64Array]:
        """Search with vectors, and read no text: the fastest way.

        Args:
            vectors: (n, dimension) or (dimension,), finite; normalised here when the metric is cosine.
            k: hits a query.
            nprobe: as in `search`.

        Returns:
            Scores (n, min(k, len(self))) float32, best first, and rows of the same shape; row -1 where an
            inverted file found fewer. `keys` turns rows into ids.

        Raises:
            ValueError: as in `search`.
        """
        generation = self._open_generation()
        vectors = self._check_vectors(vectors)
        self._check_limits(k, nprobe)
        with faiss_threads(self._threads):
            return generation.search(vectors, min(k, len(self)), nprobe)

    def keys(self, rows: Iterable[int]) -> list[str]:
        """The ids of ``rows`` (from `search_vectors`); ``IndexError`` for a row that is not there."""
        generation = self._open_generation()
        return [generation.key(row) for row in rows]

    def verify(self) -> None:
        """Hash every file and compare it with the manifest (reads the whole index).

        Raises:
            IndexDamagedError: names the first file that differs.
        """
        for segment in self._open_generation().segments:
            try:
                segment.verify()
            except FileNotFoundError as error:
                raise IndexDamagedError(
                    f"{error.filename}: missing; the index was rebuilt or damaged since it was opened"
                ) from None

    def close(self) -> None:
        """Close the files. The index cannot be searched afterwards."""
        if self._generation is not None:
            self._generation.close()
            self._generation = None

    def __enter__(self) -> Index:
        """Return the index itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the index."""
        self.close()

    def __repr__(self) -> str:
        """Path, size and kind."""
        manifest = self._manifest
        kind = f"{manifest.factory}, {manifest.metric}"
        return f"Index({str(self.path)!r}, {manifest.documents} documents, {kind})"

    def _open_generation(self) -> Generation:
        if self._generation is None:
            raise ValueError(f"{self.path}: the index is closed")
        return self._generation

    def _encode_queries(
        self, queries: str | Sequence[str] | npt.NDArray[np.floating[Any]]
    ) -> npt.NDArray[np.floating[Any]]:
        if isinstance(queries, np.ndarray):
            return queries
        texts = [queries] if isinstance(queries, str) else list(queries)
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(
                    f"query {position} is {type(text).__name__}; give texts, or vectors as one NumPy array"
                )
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        encoded = self.encoder.encode_query(texts, normalize_embeddings=self._manifest.metric == "cosine")
        return np.asarray(encoded, np.float32)

    def _check_vectors(self, vectors: npt.NDArray[np.floating[Any]]) -> Float32Array:
        array = np.ascontiguousarray(np.atleast_2d(vectors), np.float32)
        if array.ndim != 2 or array.shape[1] != self.dimension:
            raise ValueError(
                f"query vectors have the shape {np.shape(vectors)}, the index needs (n, {self.dimension})"
            )
        if not np.isfinite(array).all():
            raise ValueError("a query vector holds NaN or infinity")
        if self._manifest.metric == "cosine":
            norms = np.linalg.norm(array, axis=1, keepdims=True)
            array = array / np.maximum(norms, np.finfo(np.float32).tiny)
        return array

    def _check_limits(self, k: int, nprobe: int | None) -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        nlist = self._manifest.nlist
        if nprobe is None:
            return
        if nlist is None:
            raise ValueError(
                f"nprobe does not apply: the index is {self._manifest.factory}, without inverted lists"
            )
        if not 1 <= nprobe <= nlist:
            raise ValueError(f"nprobe must be from 1 to {nlist} (the lists of this index), not {nprobe}")


def _load_encoder(
    manifest: Manifest, model: str | os.PathLike[str] | None, threads: int | None
) -> TextEncoder:
    """The encoder that the index names, or the one at ``model``, with the numerics of the index."""
    from embedkit import Encoder
    from embedkit.folder import BUILTIN

    entry = manifest.encoder
    if model is None and entry.model != BUILTIN.name:
        model = entry.model
    encoder = Encoder(model, precision=entry.precision, threads=threads)
    if encoder.get_embedding_dimension() > manifest.dimension:
        encoder.truncate_dim = manifest.dimension
    return encoder


def _check_encoder(root: Path, manifest: Manifest, encoder: TextEncoder) -> None:
    """Refuse an encoder whose vectors cannot be compared with those of the index."""
    entry = manifest.encoder
    if encoder.fingerprint != entry.fingerprint:
        raise ModelMismatchError(
            f"{root} was built with {entry.model} (fingerprint {entry.fingerprint}), and the encoder is "
            f"{encoder.describe()['model']} (fingerprint {encoder.fingerprint}); "
            "open it with the first, or build it again"
        )
    dimension = encoder.get_embedding_dimension()
    if dimension != manifest.dimension:
        raise ModelMismatchError(
            f"{root} holds vectors of {manifest.dimension} dimensions, and the encoder makes {dimension} "
            "(truncate_dim?); open it with an encoder of the same dimension, or build it again"
        )
