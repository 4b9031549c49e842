"""LangChain: embeddings, and a vector store on an index folder."""

from __future__ import annotations

import inspect
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import numpy.typing as npt

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore
    from langchain_core.vectorstores.utils import maximal_marginal_relevance
except ImportError as error:
    raise ImportError(
        "EmbedkitEmbeddings and EmbedkitVectorStore need langchain-core: pip install 'embedkit[langchain]'"
    ) from error

from ..arguments import check_positive
from ..documents import Document as IndexDocument
from ..encoder import Encoder
from ..files import expanded
from ..forking import cached_property, fork_lock
from ..index import BuildSettings, Index, IndexNotFoundError, InputError, ResumeError
from ..index.search.hits import split_fields
from ..index.search.prepared import check_hybrid
from ..index.search.queries import query_rows
from ..index.storage.document_store import StoredDocument
from ..index.storage.factory import check_factory
from ..index.storage.faiss_index import AUTOMATIC
from ..index.storage.filters import Where, condition_of
from ..index.storage.layout import CURRENT_FILE, JOURNAL_FILE
from ..index.storage.manifest import Metric
from ..index.storage.search_parameters import SearchParameters
from ..index.storage.where import compile_where
from .opening import encoder_of

__all__ = ["EmbedkitEmbeddings", "EmbedkitVectorStore"]

Stamp = tuple[int, int] | None

_ANY_DIMENSION = 2**31 - 1  # that of the vectors is known when the model is, with the first documents


class EmbedkitEmbeddings(Embeddings):
    """LangChain's `Embeddings` over an `Encoder`.

    Documents are encoded with the model's prompt "document", queries with "query". Asynchronous methods run in
    LangChain's thread pool; the encoder releases the GIL.

    Args:
        model: as in `Encoder`, or an `Encoder`.
        normalize_embeddings: scale every vector to length 1.
        options: further arguments of `Encoder`, unless ``model`` is one.

    Attributes:
        encoder: the `Encoder`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Encoder | None = None,
        *,
        normalize_embeddings: bool = False,
        **options: Any,
    ) -> None:
        """Open the model."""
        self.encoder = encoder_of(model, options)
        self.normalize_embeddings = normalize_embeddings

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vectors of documents, in their order."""
        if isinstance(texts, str):
            raise TypeError("embed_documents expects a list of texts, not str; embed_query embeds a text")
        vectors = self.encoder.encode_document(texts, normalize_embeddings=self.normalize_embeddings)
        return cast(list[list[float]], vectors.tolist())

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        if not isinstance(text, str):
            raise TypeError(
                f"embed_query expects a text, not {type(text).__name__}; embed_documents embeds several"
            )
        vector = self.encoder.encode_query(text, normalize_embeddings=self.normalize_embeddings)
        return cast(list[float], vector.tolist())


class EmbedkitVectorStore(VectorStore):
    """LangChain's `VectorStore` over an `Index`: a folder that keeps texts, metadata and vectors.

    The first documents create the index. Every call that adds documents writes a segment, so add many at once, and
    call ``store.index.compact()`` after many small additions.

    A store sees what other stores and processes have added and deleted. Copies and pickles of a store hold its path,
    and open the index again.

    A filter is a condition of `Index.search`: ``"lang = 'en' and year > 2019"``, or a dict, such as
    ``{"lang": "en", "year": {"$gt": 2019}}``. An empty dict holds for every document.

    Args:
        path: the index folder; an existing index is opened.
        embedding: an `EmbedkitEmbeddings` or an `Encoder`. None: the model of the index, or the built-in model
            for a new one.
        metric: of a new index, "cosine" or "dot".
        factory: of a new index, as in `Index.build`.

    Raises:
        ModelMismatchError: the index was built with another model.
        ValueError: ``embedding`` normalizes, and the index is one of dot products, which keeps the model's own lengths;
            or there is no index yet, and the metric or the factory is unknown.
        TypeError: ``embedding`` is of another library, or overrides how texts are encoded: an index stores the
            fingerprint of its model, and encodes with that.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        embedding: EmbedkitEmbeddings | Encoder | None = None,
        *,
        metric: Metric = "cosine",
        factory: str = "auto",
    ) -> None:
        """Open the index if there is one."""
        self._path = expanded(path).absolute()
        self._metric: Metric = metric
        self._factory = factory
        if embedding is not None and not isinstance(embedding, EmbedkitEmbeddings | Encoder):
            raise TypeError(
                f"embedding is {type(embedding).__name__}; an index stores the fingerprint of its model, "
                "so use EmbedkitEmbeddings or an Encoder"
            )
        self._given = embedding if isinstance(embedding, Encoder) else None
        self._normalizes = False
        if isinstance(embedding, EmbedkitEmbeddings):
            for method in ("embed_documents", "embed_query"):
                if getattr(type(embedding), method) is not getattr(EmbedkitEmbeddings, method):
                    raise TypeError(
                        f"{type(embedding).__name__} overrides {method}, which an index does not call: it encodes "
                        "texts itself; give prompts to Encoder(prompts=...)"
                    )
            self._given, self._normalizes = embedding.encoder, embedding.normalize_embeddings
        self._closed()
        if self._opened() is None:
            BuildSettings(factory, metric)  # raises for a metric that there is not
            if factory not in AUTOMATIC:
                check_factory(factory, _ANY_DIMENSION)
            self._check_metric(metric)

    def _closed(self) -> None:
        """What a copy does not inherit: locks, the open index, and what an addition that failed has left."""
        self._lock = fork_lock()
        self._opening = fork_lock()
        self._index: Index | None = None
        self._seen: Stamp = None
        self._left: Stamp = None

    def __getstate__(self) -> dict[str, Any]:
        """The path and the arguments; a copy opens the index again."""
        own = ("_lock", "_opening", "_index", "_seen", "_left")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the index when it is needed."""
        self.__dict__.update(state)
        self._closed()

    @property
    def index(self) -> Index:
        """The index (`IndexNotFoundError` before the first document)."""
        index = self._opened()
        if index is None:
            raise IndexNotFoundError(f"{self._path}: no documents have been added yet")
        return index

    @property
    def embeddings(self) -> EmbedkitEmbeddings:
        """The embeddings of queries and documents."""
        index = self._opened()
        encoder = self._encoder_of_new if index is None else cast(Encoder, index.encoder)
        return EmbedkitEmbeddings(encoder, normalize_embeddings=self._normalizes)

    @cached_property
    def _encoder_of_new(self) -> Encoder:
        """That of an index which is made here; one that another store has made may have another model."""
        return Encoder() if self._given is None else self._given

    def _opened(self) -> Index | None:
        """The index as it is now, by whichever store or process; None if nobody has made it yet."""
        index = self._index
        try:
            stamp = self._stamp()
        except OSError:  # of a moment, on a network's file system
            stamp = self._seen
        if index is not None and stamp is not None:  # without a lock: nobody waits for an addition
            if stamp != self._seen:
                index.refresh()
                self._seen = stamp
            return index
        with self._opening:
            if stamp is None:
                self._index = None  # its folder was removed
            if self._index is None:
                with suppress(IndexNotFoundError):
                    index = Index.open(self._path, self._given)
                    self._check_metric(str(index.info()["metric"]))
                    self._index, self._seen = index, stamp
            return self._index

    def _stamp(self, name: str = CURRENT_FILE) -> Stamp:
        """What every change of the index changes, in some microseconds; None if there is none."""
        try:
            at = (self._path / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return at.st_mtime_ns, at.st_ino

    def _check_metric(self, metric: str) -> None:
        if self._normalizes and metric == "dot":
            raise ValueError(
                "normalize_embeddings=True has no effect on an index with metric='dot', which keeps the model's own "
                "lengths; use metric='cosine', whose scores are the dot products of vectors of length 1"
            )

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int | None = None,
        restart: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """Encode and add texts; a text whose id exists replaces that document.

        Args:
            texts: the texts.
            metadatas: of each text, stored as JSON.
            ids: of each text; None is replaced by a random id.
            batch_size: ignored; LangChain's ``index`` passes it, and the encoder chooses its own batches.
            restart: discard what an interrupted build or addition has encoded there. One that failed in this store is
                discarded in any case.
            kwargs: must be empty.

        Returns:
            The ids.

        Raises:
            InputError: a text is blank, or it or its metadata cannot be stored; nothing was added.
            ResumeError: a build or addition of another store or process was interrupted there.
            ValueError: the numbers of texts, metadatas and ids differ.
        """
        _refuse("add_texts", kwargs)
        for name, value in (("texts", texts), ("ids", ids)):
            if isinstance(value, str):
                raise TypeError(f"{name} must be a list of texts, not one text")
        given = list(texts)
        fields = [{} for _ in given] if metadatas is None or not len(metadatas) else metadatas
        named: list[str | None] = [None] * len(given) if ids is None or not len(ids) else list(ids)
        own = [str(uuid.uuid4()) if document_id is None else document_id for document_id in named]
        for name, values in (("metadatas", fields), ("ids", own)):
            if len(values) != len(given):
                raise ValueError(f"{len(given)} texts and {len(values)} {name} were given")
        for number, text in enumerate(given):
            if not isinstance(text, str):
                raise InputError(
                    f"texts[{number}]",
                    f"it is {type(text).__name__}, not a text; add_documents takes documents",
                )
            if not text.strip():  # an index leaves these out
                raise InputError(f"texts[{number}]", "the text is blank; leave it out")
        for number, field in enumerate(fields):
            if not isinstance(field, Mapping):
                raise InputError(
                    f"metadatas[{number}]",
                    f"it is {type(field).__name__}, not a dict; give {{}} for no metadata",
                )
        # The last of several texts with the same id wins, as if they had been added one by one.
        documents = {
            document_id: IndexDocument(text, document_id, dict(field))
            for document_id, text, field in zip(own, given, fields, strict=True)
        }
        if documents:
            with self._lock:
                self._add(list(documents.values()), restart)
        return own

    def _add(self, documents: list[IndexDocument], restart: bool) -> None:
        index = self._opened()
        # Nobody can resume an addition that failed here: random ids differ the next time. What others have encoded is
        # hours of their work, perhaps.
        before = self._stamp(JOURNAL_FILE)
        if before is not None and before == self._left:
            restart = True
        try:
            if index is not None:
                index.upsert(documents, restart=restart)
            else:
                self._index = Index.build(
                    self._path,
                    documents,
                    self.embeddings.encoder,
                    metric=self._metric,
                    factory=self._factory,
                    restart=restart,
                )
        except (BlockingIOError, ResumeError):  # another process writes, or has written
            raise
        except BaseException:
            left = self._stamp(JOURNAL_FILE)
            if left != before and (before is None or restart):
                self._left = left
            raise

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete the documents with ``ids``, ignoring unknown ones; None deletes all."""
        _refuse("delete", kwargs)
        with self._lock:
            if (index := self._opened()) is not None:
                if ids is None:
                    index.delete(where="id is not null")
                else:
                    index.delete(ids, missing_ok=True)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with ``ids``, in that order, without unknown ones."""
        if (index := self._opened()) is None:
            return []
        return [_document(found.id, found.text, _own_fields(index, found)) for found in index.get(ids)]

    def similarity_search(
        self, query: str, k: int = 4, *, filter: Where | None = None, **kwargs: Any
    ) -> list[Document]:
        """The ``k`` documents closest to ``query``, best first."""
        return [
            document for document, _ in self.similarity_search_with_score(query, k, filter=filter, **kwargs)
        ]

    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Where | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The ``k`` documents closest to ``query`` and their scores: cosines or dot products, best first.

        Args:
            query: a text.
            k: most documents.
            filter: which documents to search.
            kwargs: further arguments of `Index.search`: ``nprobe``, ``ef``, ``rescore``, and ``hybrid``, which is False
                here unless it is given, so that scores are similarities.
        """
        return self._search(_text(query), k, filter, kwargs)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Where | None = None, **kwargs: Any
    ) -> list[Document]:
        """The ``k`` documents closest to a vector; arguments as in `similarity_search_with_score`."""
        return [document for document, _ in self._search(_vector(embedding), k, filter, kwargs)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Where | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """``k`` of the ``fetch_k`` documents closest to ``query``, chosen for relevance and diversity.

        Args:
            query: a text.
            k: most documents.
            fetch_k: candidates to choose from.
            lambda_mult: 1 for relevance only, 0 for diversity only.
            filter, kwargs: as in `similarity_search_with_score`, without ``hybrid``: candidates are chosen by vectors.
        """
        embedding = self.embeddings.embed_query(_text(query))
        return self.max_marginal_relevance_search_by_vector(
            embedding, k, fetch_k, lambda_mult, filter=filter, **kwargs
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Where | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """`max_marginal_relevance_search` for a vector."""
        if kwargs.pop("hybrid", False):
            raise ValueError("maximal marginal relevance compares vectors alone; leave hybrid out")
        query = _vector(embedding)
        if (index := self._opened()) is None:
            self._check_search(Index.search_vectors, query, fetch_k, filter, kwargs)
            return []
        while True:  # rows are those of one generation
            generation = index.generation
            _, rows = index.search_vectors(query, fetch_k, where=_where(filter), **kwargs)
            if index.generation is generation:
                break
        rows = rows[0][rows[0] >= 0]
        found, vectors = generation.fetch(rows), generation.vectors(rows)
        chosen = maximal_marginal_relevance(query, list(vectors), lambda_mult=lambda_mult, k=k)
        documents = (found[int(rows[at])] for at in chosen)
        return [_document(item.id, item.text, _own_fields(index, item)) for item in documents]

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: EmbedkitEmbeddings | Encoder,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | os.PathLike[str],
        **kwargs: Any,
    ) -> EmbedkitVectorStore:
        """A store of ``texts`` in the folder ``path``; ``kwargs`` are further arguments of the store."""
        store = cls(path, embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def _search(
        self, query: str | npt.NDArray[np.float32], k: int, filter: Where | None, options: Mapping[str, Any]
    ) -> list[tuple[Document, float]]:
        if (index := self._opened()) is None:
            self._check_search(Index.search, query, k, filter, options)
            return []
        (hits,) = index.search(query, k, where=_where(filter), **{"hybrid": False, **options})
        return [(_document(hit.id, hit.text, hit.metadata), hit.score) for hit in hits]

    def _check_search(
        self,
        method: Callable[..., Any],
        query: str | npt.NDArray[np.float32],
        k: int,
        filter: Where | None,
        options: Mapping[str, Any],
    ) -> None:
        """Refuse without an index unknown names, wrong types, ranges and widths, as ``method`` does with one."""
        inspect.signature(method).bind(self, query, k, where=filter, **options)  # raises for unknown names
        check_positive("k", k)
        SearchParameters.given(*map(options.get, ("nprobe", "ef", "rescore")))
        check_hybrid(options.get("hybrid"))
        if not isinstance(query, str):
            query_rows(query, self._encoder_of_new.get_embedding_dimension())
        if (where := _where(filter)) is not None:
            compile_where(condition_of(where))

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        index = self._opened()
        if (self._metric if index is None else index.info()["metric"]) != "cosine":
            raise ValueError(
                "relevance scores lie between 0 and 1, which dot products do not; build the index with metric='cosine'"
            )
        return lambda cosine: min(max(cosine, 0.0), 1.0)


def _document(document_id: str, text: str, metadata: dict[str, Any]) -> Document:
    return Document(id=document_id, page_content=text, metadata=metadata)


def _own_fields(index: Index, document: StoredDocument) -> dict[str, Any]:
    """The metadata without the place of a passage, which an index of passages keeps there."""
    cut = index.generation.manifest.passages is not None
    return split_fields(document.metadata)[0] if cut else document.metadata


def _text(query: str) -> str:
    if not isinstance(query, str):
        raise TypeError(f"query is one text, not {type(query).__name__}")
    if not query.strip():
        raise ValueError("query is empty; give a text to look for")
    return query


def _vector(embedding: Sequence[float]) -> npt.NDArray[np.float32]:
    return np.asarray(embedding, np.float32)


def _where(filter: Where | None) -> Where | None:
    """``filter`` for `Index.search`, which refuses an empty condition."""
    return None if isinstance(filter, Mapping) and not filter else filter


def _refuse(method: str, options: Mapping[str, Any]) -> None:
    if options:
        raise TypeError(f"{method}() got an unexpected keyword argument {next(iter(options))!r}")
