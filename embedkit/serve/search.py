"""``/v1/search``: an open index, whose queries are encoded by the batcher of its model."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ..encoder import prompt_of
from ..index import Hit, Index, IndexDamagedError, ModelMismatchError
from ..index.encoder import reading_of
from ..index.search.hits import hit_fields
from ..index.search.rerank import CANDIDATES, reordered
from ..index.storage.filters import equal
from ..index.storage.manifest import Manifest
from ..index.storage.where import compile_where
from ..index.words.analyzer import Analyzer, analyzer
from ..index.words.languages import AUTO, NONE
from .bodies import LONGEST_CONDITION, SearchRequest
from .errors import ApiError, busy, gone
from .models import EmbeddingModel, Form
from .rendering import dumps
from .requests import check_count, in_time, read
from .settings import Limits
from .state import State

__all__ = ["BatchedEncoder", "SearchService", "search"]

logger = logging.getLogger("embedkit.serve")

_T = TypeVar("_T")

_THREADS = 4
# More would wait for each other, and hold hits: a segment looks up one condition at a time, Python writes one hit.
_CONDITION_THREADS = 2
_REFRESH_SECONDS = 10.0
_BLOCK = 512  # queries of a request between two looks at whether somebody waits for them
_HITS = 5000  # of several queries that are read before the size of their texts is known
_ANSWER = 64 << 20  # bytes of an answer's hits, all of which the server, proxies and clients hold


class BatchedEncoder:
    """An encoder for `Index.open` whose texts join the batches of a served model; of queries alone."""

    def __init__(self, model: EmbeddingModel) -> None:
        """Encode with ``model``."""
        self._model = model

    @property
    def fingerprint(self) -> str:
        """Of the model."""
        return self._model.encoder.fingerprint

    @property
    def prompts(self) -> Mapping[str, str]:
        """Of the model."""
        return self._model.encoder.prompts

    def get_embedding_dimension(self) -> int:
        """Of the model."""
        return self._model.dimension

    def describe(self) -> dict[str, Any]:
        """Of the model."""
        return self._model.documents.describe()

    def encode_query(self, sentences: list[str], *, normalize_embeddings: bool) -> Any:
        """As `Encoder.encode_query`."""
        model = self._model
        form = Form(prompt_of(model.encoder, "query") or "", None, normalize_embeddings, model.route("query"))
        return model.embed_here(sentences, form)


class SearchService:
    """An index that is served."""

    def __init__(self, index: Index) -> None:
        """Search ``index`` on threads of its own."""
        self.index = index
        self._reading = reading_of(index.generation.manifest)
        self._pool = ThreadPoolExecutor(_THREADS, "embedkit-search")
        # Conditions may take long, and must not keep all threads from searches without one.
        self._conditions = ThreadPoolExecutor(_CONDITION_THREADS, "embedkit-condition")
        self._running = {self._pool: 0, self._conditions: 0}  # waiting ones included
        self._refreshed = time.monotonic()
        self._problem = ""  # of the last refresh, which is told once

    @property
    def running(self) -> int:
        """Searches, waiting ones included."""
        return sum(self._running.values())

    def waiting(self, body: SearchRequest) -> int:
        """Searches that wait for the threads that ``body`` needs."""
        pool = self._pool_of(body)
        return self._running[pool] - (_THREADS if pool is self._pool else _CONDITION_THREADS)

    def _pool_of(self, body: SearchRequest) -> ThreadPoolExecutor:
        return self._conditions if body.where is not None or body.filter else self._pool

    def about(self) -> dict[str, Any]:
        """What the index is, without its place on this machine."""
        generation = self.index.generation
        manifest = generation.manifest
        names = ("documents", "dimension", "metric", "generation", "created")
        return {
            **{name: getattr(manifest, name) for name in names},
            "factory": generation.factory,
            "fingerprint": manifest.encoder.fingerprint,
        }

    async def search(self, body: SearchRequest, k: int, begin: int = 0) -> list[list[Hit]]:
        """Hits of each query from number ``begin`` on; to be reranked, of as many as fit into the memory of an answer.

        Raises:
            ApiError: 400, 404: of the request; 413, they take too many bytes.
        """
        return await self._run(self._pool_of(body), lambda left: self._search(body, k, begin, left))

    async def answer(self, body: SearchRequest, queries: list[str]) -> bytes:
        """The hits of each query as JSON, which are not kept until other searches that wait have been done.

        Raises:
            ApiError: 400, 404: of the request; 413, they take too many bytes.
        """

        def work(left: threading.Event) -> bytes:
            return self._write(body, queries, self._search(body, body.k, 0, left), left)

        return await self._run(self._pool_of(body), work)

    async def written(self, body: SearchRequest, queries: list[str], found: list[list[Hit]]) -> bytes:
        """The hits ``found`` of each query as JSON.

        Raises:
            ApiError: 413, they take too many bytes.
        """
        return await self._run(self._pool, lambda left: self._write(body, queries, found, left))

    def _write(
        self, body: SearchRequest, queries: list[str], found: list[list[Hit]], left: threading.Event
    ) -> bytes:
        words = self._analyzers(found) if body.words else None
        return _written(queries, found, body.explain, words, left)

    def _analyzers(self, found: list[list[Hit]]) -> dict[str, Analyzer]:
        """By the id of each hit, that of its segment's language; not of those that another process has deleted now."""
        generation = self.index.generation
        # the first embedkit did not record the words with their segment
        own = generation.manifest.language
        words = [segment.entry.words for segment in generation.segments]
        analyzers = [_analyzer(own if made is None else made.language) for made in words]
        places = generation.find({hit.id for hits in found for hit in hits})
        return {name: analyzers[number] for name, (number, _) in places.items()}

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[threading.Event], _T]) -> _T:
        """What ``work`` returns; if this is cancelled, it is not begun any more, or told so by its event."""
        left = threading.Event()
        self._running[pool] += 1
        waiting = pool.submit(work, left)
        done: asyncio.Future[_T] = asyncio.wrap_future(waiting)
        done.add_done_callback(partial(self._ended, pool))
        try:
            await asyncio.wait({done})  # which leaves it running
        finally:
            waiting.cancel()  # no effect on one that runs or is done
            left.set()
        return done.result()

    def _ended(self, pool: ThreadPoolExecutor, work: asyncio.Future[Any]) -> None:
        self._running[pool] -= 1
        if not work.cancelled():
            work.exception()  # read, so that one that nobody waits for any more is not logged

    def _search(self, body: SearchRequest, k: int, begin: int, left: threading.Event) -> list[list[Hit]]:
        self._refresh()
        where = _condition(body)
        options: dict[str, Any] = {"where": where, "nprobe": body.nprobe, "ef": body.ef}
        try:
            if body.like is not None:
                return [self._like(body.like, k, options)]
            if body.vector is not None:
                vector = np.asarray(body.vector, np.float64)
                if len(vector) != self.index.dimension or np.abs(vector).max(initial=0) > 1e30:
                    raise ApiError(
                        400,
                        f"vector must hold {self.index.dimension} numbers of a size that float32 has, "
                        f"it holds {len(vector)}",
                        param="vector",
                    )
                return self.index.search(vector.astype(np.float32), k, **options)
            queries = [body.query] if isinstance(body.query, str) else body.query[begin:]
            found: list[list[Hit]] = []
            size = 0
            # one query tells the size: the blocks of a reranker begin anew
            step = 1 if body.rerank else max(1, min(_BLOCK, _HITS // max(1, min(k, len(self.index)))))
            while (start := len(found)) < len(queries):
                if left.is_set():  # the client has gone, its time is over, or the server ends
                    raise gone()
                found += self.index.search(queries[start : start + step], k, hybrid=body.hybrid, **options)
                size += sum(map(_size_of, found[start:]))
                if size > _ANSWER:
                    if body.rerank:  # which leaves most of them out
                        break
                    raise _too_large()
                # as many as fit into the answer, as far as those before tell: each block reads its documents again
                step = max(1, min(_BLOCK, (_ANSWER - size) * len(found) // max(1, size)))
            return found
        except ValueError as error:
            raise ApiError(400, str(error), param=_param_of(str(error), body)) from None

    def _like(self, document_id: str, k: int, options: dict[str, Any]) -> list[Hit]:
        generation = self.index.generation
        places = generation.places([document_id]).get(document_id)
        if places is None:
            raise ApiError(404, f"there is no document {document_id!r:.1000}", param="like", code="not_found")
        # a document of passages is all of them
        own = {generation.segments[number].ids[row] for number, row in places}
        number, row = places[0]
        # the stored one: encoding a long text once more would keep the model from all other requests
        vector = generation.segments[number].raw.gather(np.array([row]))
        (hits,) = self.index.search(vector, k + len(own), **options)
        others = [hit for hit in hits if hit.id not in own][:k]
        return [replace(hit, rank=rank) for rank, hit in enumerate(others, 1)]

    def _refresh(self) -> None:
        """Go over to what another process wrote, looked at from time to time."""
        now = time.monotonic()
        if now - self._refreshed > _REFRESH_SECONDS:
            self._refreshed = now
            problem = ""
            try:
                self.index._refresh(None, self._accept)
            except (OSError, ValueError, IndexDamagedError) as error:
                # the generation that is open stays searchable
                problem = str(error)
                if problem != self._problem:
                    logger.warning("the index is searched as it was: %s", error)
            self._problem = problem

    def _accept(self, manifest: Manifest) -> None:
        """Raise `ModelMismatchError` for vectors that the model, loaded at the start, cannot be compared with."""
        if reading_of(manifest) != self._reading:
            raise ModelMismatchError(
                f"{self.index.path} was encoded again with another model, or other prompts, precision or lengths; "
                "restart the server to search that"
            )

    def close(self) -> None:
        """Close the index, which ends what still looks for documents, and wait for the threads."""
        pools = (self._pool, self._conditions)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self.index.close()
        for pool in pools:
            pool.shutdown()


async def search(request: Request) -> Response:
    """Hits of texts or a vector in the index."""
    begin = time.monotonic()
    state = State.of(request)
    if state.search is None:
        raise ApiError(404, "no index is open; start the server with --index", code="no_index")
    limits = state.settings.limits
    body = await read(request, SearchRequest, limits)
    queries = _check(body, limits)
    if state.search.waiting(body) >= limits.queue_requests:
        raise busy("too many searches are waiting; try again later", 1)
    data = await in_time(request, _answer(state, state.search, body, queries), time.monotonic())
    tail = {
        "documents": len(state.search.index),
        "took_ms": round((time.monotonic() - begin) * 1000, 2),
    }
    return Response(b'{"object":"list","data":%b,%b' % (data, dumps(tail)[1:]), media_type="application/json")


async def _answer(state: State, service: SearchService, body: SearchRequest, queries: list[str]) -> bytes:
    """The hits of each query as JSON."""
    if not body.rerank:
        return await service.answer(body, queries)
    name = body.rerank if isinstance(body.rerank, str) else None
    state.rerankers.find(name, "rerank")  # an unknown name needs no search
    # before a model is loaded in place of another: the search may be refused
    block = await service.search(body, _fetched(body))
    found: list[list[Hit]] = []
    size = 0
    async with state.rerankers.use(name, "rerank") as (_, model):
        while len(found) < len(queries):
            for hits in block or await service.search(body, _fetched(body), len(found)):
                texts = [hit.text for hit in hits]
                scores = await model.score(queries[len(found)], texts, False)
                found.append(reordered(hits, scores, body.k))
                size += _size_of(found[-1])
                if size > _ANSWER:
                    raise _too_large()
            block = []  # not held beside the next
    return await service.written(body, queries, found)


def _size_of(hits: list[Hit]) -> int:
    """About how many bytes they take."""
    return sum(len(hit.text) + len(dumps(hit.metadata)) for hit in hits)


def _written(
    queries: list[str],
    found: list[list[Hit]],
    explain: bool,
    words: Mapping[str, Analyzer] | None,
    left: threading.Event,
) -> bytes:
    """The hits of each query as JSON; hit by hit, so that others get the interpreter in between.

    Raises:
        ApiError: 499, whoever waited has ``left``; 413, they take too many bytes.
    """
    data = []
    size = 0
    for at, hits in enumerate(found):
        finders: dict[Analyzer, Callable[[str], list[str]]] = {}
        shown = []
        for hit in hits:
            if left.is_set():
                raise gone()
            fields = hit_fields(hit, explain=explain)
            if words is not None:
                own = words.get(hit.id) or _analyzer(NONE)
                if own not in finders:
                    finders[own] = own.finder(queries[at] if queries else "")
                fields["words"] = finders[own](hit.text)
            shown.append(dumps(fields))
            size += len(shown[-1])
            if size > _ANSWER:
                raise _too_large()
        data.append(b'{"index":%d,"hits":[%b]}' % (at, b",".join(shown)))
    return b"[%b]" % b",".join(data)


def _too_large() -> ApiError:
    return ApiError(
        413,
        f"the hits take more than {_ANSWER:,} bytes; send fewer queries a request, or ask for fewer hits with k",
        param="k",
        code="answer_too_large",
    )


def _analyzer(language: str) -> Analyzer:
    try:
        return analyzer(NONE if language == AUTO else language)
    except ImportError:  # of the language's stemmer
        return analyzer(NONE)


def _check(body: SearchRequest, limits: Limits) -> list[str]:
    """The queries' texts, after a check of how the fields fit together."""
    given = [name for name in ("query", "vector", "like") if getattr(body, name) is not None]
    if len(given) != 1:
        raise ApiError(400, "give one of query, vector and like", param=given[1] if given else "query")
    if body.k > limits.hits:
        raise ApiError(400, f"k must be at most {limits.hits}, not {body.k}", param="k")
    for name in ("hybrid", "rerank"):
        if getattr(body, name) and body.query is None:
            raise ApiError(400, f"{name} needs a query that is text", param=name)
    if body.query is None:
        return []
    single = isinstance(body.query, str)
    queries = [body.query] if single else list(body.query)
    check_count(len(queries), limits, "query")
    for at, query in enumerate(queries):
        if not query.strip():
            param = "query" if single else f"query[{at}]"
            raise ApiError(400, f"{param} is empty; give a text to look for", param=param)
    if len(queries) * _fetched(body) > 100 * limits.hits:
        raise ApiError(413, f"{len(queries)} queries with {_fetched(body)} hits each are too many", param="k")
    return queries


def _fetched(body: SearchRequest) -> int:
    """Hits of a query that are looked for: a reranker orders more than are answered."""
    return max(body.k, CANDIDATES) if body.rerank else body.k


def _param_of(message: str, body: SearchRequest) -> str | None:
    """The field that a message of `Index.search` is about."""
    if message.startswith(("invalid condition", "the condition")):
        return "where" if body.where else "filter"
    named = message.partition(" ")[0]
    return named if named in ("nprobe", "ef", "hybrid") else None


def _condition(body: SearchRequest) -> str | None:
    """``where`` and ``filter`` as one condition for `Index.search`.

    Raises:
        ApiError: 400, ``where`` is invalid: checked alone, as its parentheses must not end those around it; or a
            value of ``filter`` cannot be compared exactly, or all of it is too long.
    """
    parts = []
    if body.where is not None:
        try:
            compile_where(body.where)
        except ValueError as error:
            raise ApiError(400, str(error), param="where") from None
        if not body.filter:
            return body.where
        parts.append(f"({body.where})")
    try:
        wanted = " and ".join(equal(field, value) for field, value in (body.filter or {}).items())
    except ValueError as error:
        raise ApiError(400, str(error), param="filter") from None
    if len(wanted) > LONGEST_CONDITION:
        raise ApiError(
            400,
            f"filter makes a condition of {len(wanted):,} characters, at most {LONGEST_CONDITION:,} are taken",
            param="filter",
        )
    return " and ".join(filter(None, (*parts, wanted))) or None
