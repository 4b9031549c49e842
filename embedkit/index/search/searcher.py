"""`Searcher`: the half of an `Index` that searches a generation and never writes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ...forking import fork_lock
from ..encoder import LazyEncoder, TextEncoder, check_encoder, query_steps
from ..several import several_ids
from ..storage.document_store import StoredDocument
from ..storage.faiss_gpu import faiss_gpu, gpu_number
from ..storage.faiss_index import Float32Array, Int64Array, faiss_threads
from ..storage.faiss_part import FaissPart
from ..storage.filters import Where
from ..storage.generation import Generation, open_generation
from ..storage.manifest import RAW_FILE, Manifest, truncated_of
from ..storage.search_parameters import SearchParameters
from ..words.languages import NONE
from .grouping import best_of_documents
from .hits import Hit, to_hits
from .pipeline import SearchStats, overlapped
from .prepared import Found, Hybrid, PreparedSearch, check_hybrid, prepare
from .queries import Queries, are_vectors, query_texts, query_vectors

__all__ = ["PathLike", "Searcher", "encoded"]

PathLike = str | os.PathLike[str]
_Self = TypeVar("_Self", bound="Searcher")


class _Live(NamedTuple):
    """What is searched, always replaced together: queries of one model find nothing among vectors of another."""

    generation: Generation | None  # None: the index is closed
    encoder: LazyEncoder


class Searcher:
    """Searches an index. Thread-safe; `Index` adds the methods that write."""

    def __init__(self, *_: object, **__: object) -> None:
        """Raise: whoever calls the class wants `Index.open` or `Index.build`, which say so by their names."""
        raise TypeError(
            "Index.open(path) opens an index, Index.build(path, documents) makes one; Index() does neither"
        )

    def _open(
        self,
        path: Path,
        encoder: TextEncoder | PathLike | None,
        threads: int | None,
        *,
        device: str,
        half: bool,
        force: bool,
    ) -> None:
        """Search the live generation of the index at ``path``; arguments and errors are those of `Index.open`."""

        def accept(manifest: Manifest) -> None:
            if encoder is not None and not isinstance(encoder, (str, os.PathLike)):
                check_encoder(path, manifest, encoder, force=force)

        generation = open_generation(path, accept, searches=True)
        self.path = path.absolute()  # the index stays where it is when the process goes to another folder
        self._generation_lock = fork_lock()
        self._threads = threads
        self._device = device
        self._half = half
        self._force = force
        self._live = _Live(generation, self._lazy(generation.manifest, encoder))
        self._to_device(generation, [])

    def refresh(self) -> bool:
        """Switch to the live generation; returns whether it is another one.

        Raises:
            ModelMismatchError: it has vectors of another model than the encoder in use: the index was encoded again.
            IndexDamagedError: it cannot be read. In both cases the generation that is open stays.
        """
        return self._refresh(None)

    def _refresh(
        self, given: TextEncoder | None, accept: Callable[[Manifest], None] = lambda _: None
    ) -> bool:
        """`refresh`, from now on with the encoder ``given`` unless it is ``None``; not if ``accept`` raises."""
        with self._generation_lock:  # otherwise a slow call would restore an older generation
            before, encoder = self._open_live()
            if given is not None:
                encoder = self._lazy(before.manifest, given)

            def check(manifest: Manifest) -> None:
                accept(manifest)
                encoder.check(manifest)

            generation = open_generation(self.path, check, searches=True)
            if generation.manifest == before.manifest:  # numbers start again where it was built anew
                generation.close()
                return False
            self._to_device(generation, before.faiss_parts)
            # the old one is closed when the last search that uses it has ended
            self._live = _Live(generation, encoder.following(generation.manifest))
            return True

    def _lazy(self, manifest: Manifest, encoder: TextEncoder | PathLike | None) -> LazyEncoder:
        return LazyEncoder(self.path, manifest, encoder, self._threads, self._device, force=self._force)

    def __len__(self) -> int:
        """The number of documents."""
        return self._open_generation().manifest.documents

    @property
    def dimension(self) -> int:
        """The number of columns of a vector."""
        return self._open_generation().manifest.dimension

    @property
    def generation(self) -> Generation:
        """The generation that searches see: its manifest, segments and vectors."""
        return self._open_generation()

    @property
    def encoder(self) -> TextEncoder:
        """The encoder of queries, loaded on first use (`ModelMismatchError` if the model has changed)."""
        return self._live.encoder.get()

    def info(self) -> dict[str, Any]:
        """Describe the index: ``path``, the fields of its manifest, its kind, and its ``bytes`` on disk."""
        generation = self._open_generation()
        manifest = generation.manifest
        entry = manifest.encoder
        largest = generation.largest
        return {
            "path": str(self.path),
            "documents": manifest.documents,
            **({} if manifest.passages is None else {"whole_documents": generation.whole_documents}),
            "passages": manifest.passages,
            "truncated": truncated_of(manifest.segments),
            "deleted": generation.rows - manifest.documents,
            "dimension": manifest.dimension,
            "metric": manifest.metric,
            "factory": generation.factory,
            "nlist": None if largest is None else largest.nlist,
            "nprobe": manifest.nprobe or (None if largest is None else largest.nprobe),
            "ef": manifest.ef or (None if largest is None else largest.ef),
            "rescore": manifest.rescore,
            "tuning": manifest.tuning,
            "bytes_per_vector": _bytes_per_vector(manifest),
            "kept": ", ".join(sorted({segment.raw for segment in manifest.segments})),
            "model": entry.model,
            "fingerprint": entry.fingerprint,
            "precision": entry.precision,
            "document_prompt": entry.document_prompt,
            "query_prompt": entry.query_prompt,
            "max_length": manifest.max_length,
            "on_overflow": "error" if manifest.refuses_long else manifest.on_overflow,
            "root": manifest.root,
            "words": _words_of(generation),
            "generation": manifest.generation,
            "segments": len(manifest.segments),
            "bytes": sum(file.size for segment in manifest.segments for file in segment.files.values()),
            "created": manifest.created,
            "embedkit_version": manifest.embedkit_version,
        }

    def search(
        self,
        queries: Queries,
        k: int = 10,
        *,
        nprobe: int | None = None,
        ef: int | None = None,
        rescore: int | None = None,
        where: Where | None = None,
        hybrid: Hybrid = None,
        per_document: bool = False,
    ) -> list[list[Hit]]:
        """The ``k`` best documents for each query, best first.

        Args:
            queries: a text, several texts, or vectors (n, dimension) or (dimension,).
            k: hits per query; there are fewer only if the index holds or finds fewer.
            nprobe: inverted lists to search, 1 to nlist: more lists find more and take longer. ``None``: the
                default of the index.
            ef: candidates that HNSW keeps, likewise.
            rescore: for an index of quantized codes, look up ``rescore · k`` candidates by their codes and rank
                them by their vectors; 0: do not (a refinement, ``…,RFlat``, ranks ``k``). ``None``: the default of the
                index, 4 where it has a refinement.
            where: find only documents that match a condition on their fields, such as
                ``"lang = 'en' and year > 2019"`` or ``{"lang": "en", "year": {"$gt": 2019}}``
                (`embedkit.index.storage.filters`). If at least ``k`` documents match, ``k`` are found.
            hybrid: also score documents by the words of the queries (BM25), and fuse the two scores to one from 0
                to 1 (`embedkit.index.search.hybrid`): ``True``, or the weight of the words from 0 to 1. ``False``:
                by vectors only, so that scores are cosines or dot products. ``None``: if the queries are texts and
                the index has their words.
            per_document: of an index of passages, find the best passage of each of the ``k`` best documents.

        Returns:
            A list of hits per query, in the order of the queries (one list for a single text).

        Raises:
            ValueError: an argument is out of range or does not apply to this kind of index, the condition is
                invalid, a text is empty, or the vectors have the wrong shape or hold NaN or infinity.
            TypeError: a query is neither a text nor a vector, or an argument has the wrong type, such as a float as
                ``k``.
            IndexDamagedError: a document cannot be read.
        """
        generation, encoder = self._open_live()
        texts = None if are_vectors(queries) else query_texts(queries)
        if texts is None:
            if hybrid is not None and check_hybrid(hybrid) is not False:
                raise ValueError("a hybrid search needs texts, but the queries are vectors")
            hybrid = False
        search = prepare(
            generation, k, SearchParameters.given(nprobe, ef, rescore), where=where, hybrid=hybrid
        )
        run = _run_of(search, per_document)
        vectors = query_vectors(
            encoded(encoder, texts, generation.manifest) if texts is not None else np.asarray(queries),
            generation.manifest,
        )
        with faiss_threads(self._threads, len(vectors)):
            found = run(vectors, texts)
        return to_hits(generation, found)

    def search_vectors(
        self,
        vectors: npt.NDArray[np.floating[Any]],
        k: int = 10,
        *,
        nprobe: int | None = None,
        ef: int | None = None,
        rescore: int | None = None,
        where: Where | None = None,
    ) -> tuple[Float32Array, Int64Array]:
        """Search with vectors and return rows instead of documents: the fastest search.

        Args:
            vectors: (n, dimension) or (dimension,), finite; normalized here if the metric is cosine.
            k: hits per query.
            nprobe, ef, rescore, where: as in `search`.

        Returns:
            Scores (n, min(k, len(self))) float32, best first, and rows of the same shape; row -1 where fewer
            were found. `ids` maps rows to ids.

        Raises:
            ValueError, TypeError: as in `search`.
        """
        generation = self._open_generation()
        vectors = query_vectors(vectors, generation.manifest)
        search = prepare(generation, k, SearchParameters.given(nprobe, ef, rescore), where=where)
        with faiss_threads(self._threads, len(vectors)):
            found = search.run(vectors, None)
        return found.scores, found.rows

    def search_stream(
        self,
        queries: Iterable[list[str]],
        k: int = 10,
        *,
        stats: SearchStats | None = None,
        nprobe: int | None = None,
        ef: int | None = None,
        rescore: int | None = None,
        where: Where | None = None,
        hybrid: Hybrid = None,
        per_document: bool = False,
    ) -> Iterator[list[list[Hit]]]:
        """The hits of each block of texts, while the next blocks are tokenized, encoded and searched.

        Args:
            queries: blocks of texts, iterated on another thread.
            k: hits per query.
            stats: counts how busy each stage is.
            nprobe, ef, rescore, where, hybrid, per_document: as in `search`.

        Yields:
            What `search` returns, for each block in order.
        """
        if isinstance(queries, (str, bytes)):
            raise TypeError("queries must be an iterable of lists of texts, not one text; use search")
        generation, encoder = self._open_live()
        counts = SearchStats() if stats is None else stats
        search = prepare(
            generation, k, SearchParameters.given(nprobe, ef, rescore), where=where, hybrid=hybrid
        )
        run = _run_of(search, per_document)
        manifest = generation.manifest
        steps = cache(lambda: query_steps(encoder.get(), normalize=manifest.metric == "cosine"))

        def tokenize(block: list[str]) -> tuple[list[str], Any]:
            texts = query_texts(block)
            return texts, steps()[0](texts) if texts else None

        def encode(block: tuple[list[str], Any]) -> tuple[tuple[list[str], Float32Array], float]:
            texts, tokens = block
            vectors, within = steps()[1](tokens) if texts else (np.empty((0, manifest.dimension)), 0.0)
            return (texts, query_vectors(np.asarray(vectors, np.float32), manifest)), within

        def find(block: tuple[list[str], Float32Array]) -> Found:
            texts, vectors = block
            with faiss_threads(self._threads, len(vectors)):
                return run(vectors, texts)

        return _fetched(generation, overlapped(queries, tokenize, encode, find, counts), counts)

    def ids(self, rows: Iterable[int] | Int64Array) -> list[str]:
        """The ids of ``rows`` from `search_vectors`, one query's.

        Rows are numbered anew by a change of the index: ask before the next `refresh`, and before this object adds or
        deletes.

        Raises:
            IndexError: a row does not exist.
            TypeError: the rows are not integers in one dimension.
        """
        array = np.asarray(rows if isinstance(rows, (np.ndarray, list, tuple)) else list(rows))
        if array.dtype.kind == "O":  # integers of a table's column
            array = np.asarray(array.tolist())
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError(
                f"rows must be integers in one dimension, such as rows[0] of search_vectors, not "
                f"{array.dtype} {array.shape}"
            )
        return self._open_generation().ids(array.astype(np.int64))

    def get(self, ids: str | Iterable[str]) -> list[StoredDocument]:
        """The documents with ``ids`` (one, or several), in that order, without ids that are not in the index.

        In an index of passages, the id of a document stands for all its passages.
        """
        generation = self._open_generation()
        wanted = several_ids(ids)
        places = generation.places(wanted)
        documents = generation.stored(chain.from_iterable(places.values()))
        return [documents[place] for name in wanted for place in places.get(name, ())]

    def __contains__(self, document_id: object) -> bool:
        """Whether a document with this id is in the index."""
        return isinstance(document_id, str) and bool(self.get(document_id))

    def __getitem__(self, document_id: str) -> StoredDocument:
        """The document with this id (of a passage, where texts were cut).

        Raises:
            KeyError: it is not in the index.
            TypeError: ``document_id`` is not a string.
        """
        if not isinstance(document_id, str):
            raise TypeError(f"ids are strings, not {type(document_id).__name__}")
        generation = self._open_generation()
        for number, row in generation.find([document_id]).values():
            return generation.segments[number].documents.fetch([row])[row]
        raise KeyError(document_id)

    def __iter__(self) -> Iterator[StoredDocument]:
        """All documents of the generation that is open now, in its order."""
        generation = self._open_generation()
        for segment in generation.segments:
            for _, document, _ in segment.living_documents():
                yield document

    def __getstate__(self) -> dict[str, Any]:
        """The path and the settings: the receiver opens what is live there then."""
        return {
            "path": self.path,
            "encoder": self._live.encoder.known,
            "threads": self._threads,
            "device": self._device,
            "half": self._half,
            "force": self._force,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open what is live at the path; `ModelMismatchError` if that has vectors of another model by now."""
        self._open(**state)

    def close(self) -> None:
        """Close the files; the index cannot be used afterwards."""
        with self._generation_lock:
            if self._live.generation is not None:
                self._live.generation.close()
                self._live = self._live._replace(generation=None)

    def __enter__(self: _Self) -> _Self:
        """Return the index itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the index."""
        self.close()

    def __repr__(self) -> str:
        """Path, size and kind."""
        generation = self._live.generation
        if generation is None:
            return f"{type(self).__name__}({str(self.path)!r}, closed)"
        manifest = generation.manifest
        kind = f"{generation.factory}, {manifest.metric}"
        return f"{type(self).__name__}({str(self.path)!r}, {manifest.documents} documents, {kind})"

    def _open_live(self) -> tuple[Generation, LazyEncoder]:
        generation, encoder = self._live
        if generation is None:
            raise ValueError(f"{self.path}: the index is closed")
        return generation, encoder

    def _open_generation(self) -> Generation:
        return self._open_live()[0]

    def _to_device(self, generation: Generation, before: Sequence[FaissPart]) -> None:
        if self._device != "cpu":
            gpu = faiss_gpu(gpu_number(self._device))
            for part in generation.faiss_parts:
                part.to_gpu(gpu, half=self._half, before=before)


def encoded(encoder: LazyEncoder, texts: list[str], manifest: Manifest) -> npt.NDArray[np.floating[Any]]:
    """The vectors of the queries ``texts``, to be compared with those of ``manifest``: (n, dimension)."""
    if not texts:
        return np.empty((0, manifest.dimension), np.float32)
    vectors = encoder.get().encode_query(texts, normalize_embeddings=manifest.metric == "cosine")
    return np.asarray(vectors, np.float32)


def _run_of(search: PreparedSearch, per_document: bool) -> Callable[[Float32Array, list[str] | None], Found]:
    # where documents are whole, each is its own best passage
    if not per_document or search.generation.manifest.passages is None:
        return search.run
    return partial(best_of_documents, search)


def _bytes_per_vector(manifest: Manifest) -> float | None:
    """Bytes on disk for a vector: its codes, what is kept beside them, and its share of the index's own structures."""
    rows = sum(segment.rows for segment in manifest.segments)
    size = sum(
        segment.files[name].size
        for segment in manifest.segments
        for name in (*(part.file for part in segment.parts), RAW_FILE)
        if name in segment.files
    )
    return round(size / rows, 1) if rows else None


def _words_of(generation: Generation) -> str | None:
    """What ``info`` says of the words: their languages; ``None`` if there are none."""
    segments = generation.manifest.segments
    if not all(segment.keywords for segment in segments):
        return None
    if any(segment.has_old_words for segment in segments):
        return "of an earlier version: compact renews them"
    if not generation.searches_words:
        return None
    languages = {segment.words.language for segment in segments if segment.words}
    return ", ".join(sorted("not stemmed" if name == NONE else name for name in languages)) or None


def _fetched(generation: Generation, found: Iterator[Found], stats: SearchStats) -> Iterator[list[list[Hit]]]:
    begin = time.perf_counter()
    for block in found:
        with stats.timed("fetch"):
            hits = to_hits(generation, block)
        stats.queries += len(hits)
        stats.wall = time.perf_counter() - begin
        yield hits
