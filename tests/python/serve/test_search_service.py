"""Searches of a served index, in this process: what other processes write, and how much one request may ask for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_encoder import FakeEncoder
from running_server import RunningServer  # noqa: F401  (skips where the server's packages are missing)

from embedkit import Encoder, Index
from embedkit.index import Document, IndexDamagedError
from embedkit.serve.bodies import SearchRequest
from embedkit.serve.errors import ApiError
from embedkit.serve.opening import Options, open_state
from embedkit.serve.search import SearchService, _check
from embedkit.serve.settings import Limits


@pytest.fixture
def service(tmp_path: Path) -> Iterator[SearchService]:
    documents = [Document(f"text number {number}", str(number)) for number in range(30)]
    made = SearchService(Index.build(tmp_path / "index", documents, FakeEncoder()))
    yield made
    made.close()


def test_what_another_process_writes_is_found_after_a_while(
    service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> str:
        return asyncio.run(service.search(SearchRequest(query="a zyzzyva"), 1))[0][0].id

    with Index.open(service.index.path, FakeEncoder()) as other:
        other.add([Document("a zyzzyva", "new")])
    assert found() != "new"  # it looks every ten seconds
    monkeypatch.setattr("embedkit.serve.search._REFRESH_SECONDS", -1.0)
    assert found() == "new"


@pytest.mark.parametrize(
    "error", [OSError("disk"), IndexDamagedError("damaged"), ValueError("another model")], ids=repr
)
def test_the_index_that_is_open_serves_where_a_newer_one_cannot_be_read(
    service: SearchService, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried = []

    def fails(*_: object) -> None:
        tried.append(error)
        raise error

    monkeypatch.setattr("embedkit.serve.search._REFRESH_SECONDS", -1.0)
    monkeypatch.setattr(service.index, "_refresh", fails)
    (hits,) = asyncio.run(service.search(SearchRequest(query="text number 7"), 1))
    assert (hits[0].id, tried) == ("7", [error])


def test_an_index_whose_words_are_not_read_is_named_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "index"
    Index.build(path, ["one", "two"], Encoder(threads=1)).close()
    open_state(Options(index=str(path), threads=1)).close()
    assert "compact" not in caplog.text
    monkeypatch.setattr("embedkit.index.storage.generation.Generation.has_old_words", True)
    open_state(Options(index=str(path), threads=1)).close()
    assert caplog.text.count(f"made the words of {path}, which this one does not read") == 1


@pytest.mark.parametrize(
    "options",
    [{"prompts": {"query": "it: "}}, {"prompts": {"document": "it: "}}, {"max_length": 16}],
    ids=str,
)
def test_what_the_model_cannot_be_compared_with_is_not_searched_before_a_restart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    path = tmp_path / "index"
    Index.build(path, ["one", "two"], Encoder(threads=1)).close()
    state = open_state(Options(index=str(path), threads=1))
    monkeypatch.setattr("embedkit.serve.search._REFRESH_SECONDS", -1.0)
    service, body = state.search, SearchRequest(query="two", hybrid=False)
    assert service is not None
    before = asyncio.run(service.search(body, 3))
    Index.build(path, ["one", "two", "three"], Encoder(threads=1, **options), overwrite=True).close()
    assert asyncio.run(service.search(body, 3)) == before
    assert asyncio.run(service.search(body, 3)) == before
    assert caplog.text.count("restart the server") == 1
    Index.build(path, ["one", "two", "three"], Encoder(threads=1), overwrite=True).close()
    assert len(asyncio.run(service.search(body, 3))[0]) == 3
    state.close()


def test_like_takes_the_stored_vector(service: SearchService, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text number {number}" for number in range(30)]
    vectors = FakeEncoder().encode_document(texts, normalize_embeddings=True)
    best = np.sort(vectors @ vectors[7])[::-1][1:4]
    # a long document would keep the model from all other requests
    monkeypatch.delattr(FakeEncoder, "encode_document")
    (hits,) = asyncio.run(service.search(SearchRequest(like="7"), 3))
    assert [hit.score for hit in hits] == pytest.approx(best.tolist(), abs=1e-3)
    assert "7" not in {hit.id for hit in hits}


def test_slow_conditions_leave_threads_to_other_searches(
    service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun = threading.Event(), threading.Semaphore(0)
    search = service.index.search

    def slow(queries: list[str], k: int, where: str | None, **options: Any) -> Any:
        if where is not None:
            begun.release()
            release.wait(30)
        return search(queries, k, where=where, **options)

    monkeypatch.setattr(service.index, "search", slow)

    async def ask() -> None:
        conditions = [{"where": f"id != '{number}'"} for number in range(4)] + [{"filter": {"a": 1}}]
        waiting = [
            asyncio.create_task(service.search(SearchRequest(query="text", **one), 1)) for one in conditions
        ]
        await asyncio.to_thread(begun.acquire)
        (hits,) = await asyncio.wait_for(service.search(SearchRequest(query="text number 7"), 1), 20)
        assert hits[0].id == "7"
        release.set()
        assert [len(hits) for (hits,) in await asyncio.gather(*waiting)] == [1, 1, 1, 1, 0]

    try:
        asyncio.run(ask())
    finally:
        release.set()


@pytest.mark.parametrize(
    ("body", "limits"),
    [
        (SearchRequest(query=["a"] * 4), Limits(texts=3)),
        (SearchRequest(query=["a"] * 101, k=1000), Limits()),
        (SearchRequest(query=["a"] * 2001, rerank=True), Limits()),  # which orders 50 of each
    ],
    ids=["queries", "hits", "candidates"],
)
def test_queries_of_a_request_and_their_hits_are_bounded(body: SearchRequest, limits: Limits) -> None:
    with pytest.raises(ApiError) as error:
        _check(body, limits)
    assert error.value.status == 413
    assert isinstance(body.query, list)
    fewer = body.model_copy(update={"query": body.query[:-1]})
    assert len(_check(fewer, limits)) == len(body.query) - 1


def test_where_and_filter_must_both_match(tmp_path: Path) -> None:
    documents = [
        Document(f"text number {number}", str(number), {"topic": "xyz"[number % 3], "lang": lang})
        for number, lang in enumerate(["en", "de"] * 15)
    ]
    service = SearchService(Index.build(tmp_path / "index", documents, FakeEncoder()))
    try:
        body = SearchRequest(query="text", where="topic = 'x' or topic = 'y'", filter={"lang": "en"})
        (hits,) = asyncio.run(service.search(body, 30))
    finally:
        service.close()
    expected = {number for number in range(0, 30, 2) if number % 3 < 2}
    assert {int(hit.id) for hit in hits} == expected
