"""/v1/search over an open index."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fake_encoder import FakeEncoder
from running_server import RunningServer, eventually

from embedkit import CrossEncoder, Encoder, Index
from embedkit.index import Document, Hit
from embedkit.index.words import analyzer
from embedkit.index.words.analyzer import Analyzer
from embedkit.serve import search as search_module
from embedkit.serve.app import create_app
from embedkit.serve.bodies import SearchRequest, parse
from embedkit.serve.errors import ApiError
from embedkit.serve.metrics import Metrics
from embedkit.serve.models import Memory, Pool, Served
from embedkit.serve.opening import Options, open_state
from embedkit.serve.search import SearchService, _condition
from embedkit.serve.settings import Limits, Settings
from embedkit.serve.state import State

QUERIES = ["why is the sky blue", "cooking lentils"]


def hits_of(server: RunningServer, **body: Any) -> list[list[dict[str, Any]]]:
    response = server.post("/v1/search", body)
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return [item["hits"] for item in data]


def expected_of(found: list[list[Any]]) -> list[list[tuple[Any, ...]]]:
    return [[(hit.rank, hit.score, hit.id, hit.text, hit.metadata) for hit in hits] for hits in found]


def compared(found: list[list[dict[str, Any]]]) -> list[list[tuple[Any, ...]]]:
    names = ("rank", "score", "id", "text", "metadata")
    return [[tuple(hit[name] for name in names) for hit in hits] for hits in found]


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    "where", [None, "topic = 'science' and number < 50", "number < 0"], ids=["all", "some", "none"]
)
def test_hits_are_those_of_the_index(
    searching: RunningServer, index_folder: Path, hybrid: bool, where: str | None
) -> None:
    with Index.open(index_folder) as index:
        expected = expected_of(index.search(QUERIES, 5, where=where, hybrid=hybrid))
        assert compared(hits_of(searching, query=QUERIES, k=5, where=where, hybrid=hybrid)) == expected
        # Faiss adds up in another order for one vector than for two.
        alone = expected_of(index.search(QUERIES[:1], 5, where=where, hybrid=hybrid))
        assert compared(hits_of(searching, query=QUERIES[0], k=5, where=where, hybrid=hybrid)) == alone


def test_vectors_and_filters(searching: RunningServer, index_folder: Path) -> None:
    vector = Encoder().encode_query(QUERIES[0])
    with Index.open(index_folder) as index:
        expected = index.search(vector, 3, where="topic = 'science' and lang = 'en'")
    found = hits_of(searching, vector=vector.tolist(), k=3, filter={"topic": "science", "lang": "en"})
    assert compared(found) == expected_of(expected)
    assert hits_of(searching, query="a", filter={"topic": "it's", "number": None}) == [[]]
    assert [hit["metadata"]["number"] for hit in hits_of(searching, query="a", filter={"number": 7})[0]] == [
        7
    ]


def test_what_a_score_is_made_of_if_asked(searching: RunningServer, index_folder: Path) -> None:
    with Index.open(index_folder) as index:
        expected = [asdict(hit.parts) for hit in index.search(QUERIES[0], 3, hybrid=True)[0] if hit.parts]
    (hits,) = hits_of(searching, query=QUERIES[0], k=3, hybrid=True, explain=True)
    assert [hit["parts"] for hit in hits] == expected and len(expected) == 3
    assert not any("parts" in hit for hit in hits_of(searching, query=QUERIES[0], k=3, hybrid=True)[0])


def test_more_like_a_document(searching: RunningServer, index_folder: Path) -> None:
    with Index.open(index_folder) as index:
        text = index.get(["en-science-001"])[0].text
        others = index.search(Encoder().encode_document(text), 4)[0][1:]
    (hits,) = hits_of(searching, like="en-science-001", k=3)
    assert [hit["id"] for hit in hits] == [hit.id for hit in others]
    assert [hit["rank"] for hit in hits] == [1, 2, 3]
    assert searching.post("/v1/search", {"like": "none"}).status_code == 404


def test_passages_and_large_integers(start: Callable[..., RunningServer], tmp_path: Path) -> None:
    order = 123456789012345678901  # JSON allows it, and orjson does not
    documents = [
        Document("The sky is blue because of scattering. " * 20, "sky", {"order": order}),
        Document("Lentils cook in half an hour.", "soup"),
    ]
    Index.build(tmp_path / "index", documents, Encoder(), passages=40).close()
    with start("--index", str(tmp_path / "index")) as server:
        (hits,) = hits_of(server, like="sky", k=5)
        assert [hit["id"] for hit in hits] == ["soup#1"]  # none of its own passages
        (hits,) = hits_of(server, query="blue sky", k=1)
        assert hits[0]["metadata"]["order"] == order


def test_reranked(searching: RunningServer, index_folder: Path, reranker: Path) -> None:
    with Index.open(index_folder) as index:
        candidates = index.search(QUERIES[0], 50)[0]
    scores = CrossEncoder(reranker).predict([(QUERIES[0], hit.text) for hit in candidates])
    expected = [candidates[i].id for i in np.argsort(-scores, kind="stable")[:4]]
    for name in (True, "tiny"):
        (hits,) = hits_of(searching, query=QUERIES[0], k=4, rerank=name)
        assert [hit["id"] for hit in hits] == expected


@pytest.mark.parametrize("options", [{"rerank": True}, {"words": True}], ids=str)
def test_each_of_several_queries_has_its_own_scores_and_words(
    searching: RunningServer, options: dict[str, Any]
) -> None:
    together = hits_of(searching, query=QUERIES, k=4, **options)
    for found, query in zip(together, QUERIES, strict=True):
        (alone,) = hits_of(searching, query=query, k=4, **options)
        for name in ("id", "words"):
            assert [hit.get(name) for hit in found] == [hit.get(name) for hit in alone]
        assert [hit["score"] for hit in found] == pytest.approx([hit["score"] for hit in alone], abs=1e-5)


def test_words_are_found_in_the_language_of_each_hit(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    pytest.importorskip("snowballstemmer")
    texts = {"english": "The dogs run", "german": "Die Häuser stehen"}
    for language, text in texts.items():
        Index.build(tmp_path / language, [Document(text, language)], FakeEncoder(), language=language).close()
    Index.merge(tmp_path / "both", [tmp_path / language for language in texts]).close()
    index = Index.open(tmp_path / "both", FakeEncoder())
    service = SearchService(index)
    query = "dog Haus"
    written = asyncio.run(service.written(SearchRequest(words=True), [query], index.search([query], 2)))
    service.close()
    found = {hit["id"]: hit["words"] for hit in json.loads(written)[0]["hits"]}
    assert found == {"english": ["dogs"], "german": ["Häuser"]}


def test_words_found() -> None:
    english, none = Analyzer("english"), Analyzer("none")
    assert none.finder("Café sky  blue")("The SKY over cafe; skyline, sky") == ["SKY", "cafe"]
    assert none.finder("")("text") == []
    assert english.finder("restart the server")("the end of restarting servers; a server") == [
        "restarting",
        "servers",
    ]
    assert none.finder("日本 family")("家族: 日本語の本, a family") == ["日本", "family"]


@pytest.mark.parametrize(
    ("query", "text", "found"),
    [
        ("怎么买苹果手机", "我想买一个苹果手机，谢谢", ["苹果手机"]),
        ("苹果手机壳", "苹果，手机壳，苹果手机", ["苹果", "手机壳", "苹果手机"]),
        ("東京の天気", "東京は今日晴れ、天気がいい", ["東京", "天気"]),
        ("果 juice", "苹果汁 Juice", ["果", "Juice"]),
        ("사과를", "나는 사과가 좋다", ["사과"]),
        ("사과", unicodedata.normalize("NFD", "나는 사과가 좋다"), [unicodedata.normalize("NFD", "사과")]),
        ("タワー", "東京ﾀﾜｰ", ["ﾀﾜｰ"]),
        ("ガス", "カ\u3099スの", ["カ\u3099ス"]),
        ("葛飾", "葛\U000e0100飾区", ["葛\U000e0100飾"]),
        ("ก", "กุข", ["กุ"]),
        ("กี", "กี่", ["กี่"]),
        ("แอปเปิ้ล", "ฉันชอบกินแอปเปิ้ลมาก", ["แอปเปิ้ล"]),
        ("datenbank", "Die Daten\u00adbank ist voll", ["Daten\u00adbank"]),
        ("unplug", "1️⃣Unplug ⚠️it", ["Unplug"]),
        ("lipitor", "Lipitor™", ["Lipitor"]),
    ],
)
def test_words_found_as_they_are_written(query: str, text: str, found: list[str]) -> None:
    assert Analyzer("none").finder(query)(text) == found
    assert all(one in text for one in found)


def test_words_are_found_in_the_beginning_of_a_text_and_cut_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyzer, "_CACHED_STEMS", 4)
    cuts = []
    cut = analyzer._Cutter._cut
    monkeypatch.setattr(analyzer._Cutter, "_cut", lambda self, words: cuts.append(words) or cut(self, words))
    none = Analyzer("none")
    text = " ".join(f"word{number}" for number in range(5000))
    assert none.finder("sky word1 word400 word4999")(text) == ["word1", "word400"]
    assert len(cuts) < 10
    cuts.clear()
    assert none.finder("word1 word2")(text) == ["word1", "word2"]
    assert len(cuts) == 2  # of the query, and of the first words alone


class _Slow:
    """Finds the words of a text in 20 ms; ``calls`` counts them."""

    calls = 0

    def finder(self, query: str) -> Callable[[str], list[str]]:
        def found(text: str) -> list[str]:
            self.calls += 1
            time.sleep(0.02)
            return [query]

        return found


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> _Slow:
    made = _Slow()
    monkeypatch.setattr("embedkit.serve.search.analyzer", lambda _: made)
    return made


@pytest.fixture
def service(tmp_path: Path) -> Iterator[SearchService]:
    pytest.importorskip("faiss")
    documents = [Document(f"text number {number}", str(number)) for number in range(300)]
    made = SearchService(Index.build(tmp_path / "index", documents, FakeEncoder()))
    yield made
    made.close()


def test_hits_are_written_within_the_timeout(service: SearchService, slow: _Slow) -> None:
    nothing: Pool[Any] = Pool([], Memory(None))

    async def ask(k: int, timeout: float) -> httpx.Response:
        state = State(Settings(Limits(timeout=timeout)), nothing, nothing, service, Metrics())
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/search", json={"query": "text", "k": k, "words": True})

    answer = asyncio.run(ask(3, 60)).json()
    assert [hit["words"] for hit in answer["data"][0]["hits"]] == [["text"]] * 3
    assert answer["documents"] == 300
    late = asyncio.run(ask(300, 0.5))
    assert late.status_code == 504
    assert late.json()["error"]["code"] == "timeout"
    service.close()  # waits for what runs
    assert slow.calls < 100


@pytest.mark.parametrize("metadata", ["", "of a long document " * 10])
def test_hits_of_too_many_bytes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr("embedkit.serve.search._ANSWER", 20_000)
    monkeypatch.setattr("embedkit.serve.search._HITS", 20)
    documents = [Document("text " * 40, str(number), {"about": metadata}) for number in range(10)]
    service = SearchService(Index.build(tmp_path / "index", documents, FakeEncoder()))
    searched = []
    search = service.index.search

    def counted(queries: list[str], k: int, **options: Any) -> Any:
        searched.append(len(queries))
        return search(queries, k, **options)

    monkeypatch.setattr(service.index, "search", counted)
    nothing: Pool[Any] = Pool([], Memory(None))
    state = State(Settings(), nothing, nothing, service, Metrics())

    async def ask(queries: int, k: int) -> httpx.Response:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/search", json={"query": ["text"] * queries, "k": k})

    few = asyncio.run(ask(4, 10))
    assert few.status_code == 200 and len(few.content) < 20_500
    assert [len(row["hits"]) for row in few.json()["data"]] == [10] * 4
    searched.clear()
    many = asyncio.run(ask(20 if not metadata else 9, 10))
    assert many.status_code == 413
    assert many.json()["error"]["code"] == "answer_too_large"
    assert sum(searched) < (9 if metadata else 20)  # before all are read
    service.close()


@pytest.mark.filterwarnings("ignore:.* of the first .* pairs are longer")
def test_few_candidates_of_a_reranker_are_held_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reranker: Path
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr("embedkit.serve.search._ANSWER", 100_000)
    documents = [Document(f"text {number} " * 100, str(number)) for number in range(60)]
    Index.build(tmp_path / "index", documents, Encoder(threads=1)).close()
    options = Options(rerankers=(f"tiny={reranker}",), index=str(tmp_path / "index"), threads=1)
    state = open_state(options)
    assert state.search is not None
    held = []
    search = state.search.search

    async def noted(body: SearchRequest, k: int, begin: int = 0) -> list[list[Hit]]:
        found = await search(body, k, begin)
        held.append(sum(map(len, found)))
        return found

    monkeypatch.setattr(state.search, "search", noted)

    async def ask(queries: list[str], k: int) -> httpx.Response:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/search", json={"query": queries, "k": k, "rerank": True})

    queries = [f"text {number}" for number in range(9)]
    answer = asyncio.run(ask(queries, 1)).json()["data"]
    assert max(held) <= 150 and sum(held) == 9 * 50
    alone = [asyncio.run(ask([query], 1)).json()["data"][0]["hits"][0]["id"] for query in queries]
    assert [row["hits"][0]["id"] for row in answer] == alone
    held.clear()
    assert asyncio.run(ask(queries, 40)).status_code == 413
    assert sum(held) < 9 * 50  # before all are read
    state.close()


def test_searches_that_wait_are_counted(service: SearchService) -> None:
    nothing: Pool[Any] = Pool([], Memory(None))
    state = State(Settings(Limits(queue_requests=3)), nothing, nothing, service, Metrics())
    service._running[service._pool] = 7  # four of them run

    async def ask() -> str:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (await client.post("/v1/search", json={"query": "text"})).status_code == 429
            beside = await client.post("/v1/search", json={"query": "text", "where": "id = '1'"})
            assert beside.status_code == 200
            return (await client.get("/metrics")).text

    text = asyncio.run(ask())
    assert "embedkit_searches 7.0" in text
    assert 'embedkit_rejected_total{reason="queue_full"} 1.0' in text


def test_a_server_without_a_reranker_says_so(service: SearchService) -> None:
    nothing: Pool[Any] = Pool([], Memory(None))
    state = State(
        Settings(Limits()), nothing, Pool([], Memory(None), "reranker", "--rerank"), service, Metrics()
    )

    async def ask(path: str, **body: Any) -> Any:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.post(path, json=body)
            assert answer.status_code == 404
            return answer.json()["error"]

    for rerank in (True, "tiny"):
        error = asyncio.run(ask("/v1/search", query="text", rerank=rerank))
        assert error["message"] == "no reranker is served; start the server with --rerank MODEL"
        assert error["param"] == "rerank"
    error = asyncio.run(ask("/rerank", query="text", documents=["a"]))
    assert error == "no reranker is served; start the server with --rerank MODEL"


def test_no_reranker_is_loaded_for_a_search_that_is_refused(service: SearchService) -> None:
    def load() -> Any:
        raise AssertionError

    nothing: Pool[Any] = Pool([], Memory(None))
    rerankers: Pool[Any] = Pool([Served("tiny", load)], Memory(None), "reranker", "--rerank")
    state = State(Settings(), nothing, rerankers, service, Metrics())

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"query": "text", "rerank": True, "where": "number >"}
            return await client.post("/v1/search", json=body)

    answer = asyncio.run(ask())
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "where"


def test_a_client_that_has_gone_is_not_searched_for(
    service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.serve.search._BLOCK", 2)
    texts = [f"text number {number}" for number in range(7)]
    body = SearchRequest(query=texts)
    gone, searched = threading.Event(), []
    search = service.index.search

    def counted(queries: list[str], k: int, **options: Any) -> Any:
        searched.append(len(queries))
        if slowly:
            gone.set()
            time.sleep(0.3)
        return search(queries, k, **options)

    async def leave() -> None:
        search = asyncio.create_task(service.search(body, 3))
        while not gone.is_set():
            await asyncio.sleep(0.01)
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search

    monkeypatch.setattr(service.index, "search", counted)
    slowly = False
    found = asyncio.run(service.search(body, 3))
    assert [hits[0].text for hits in found] == texts and searched == [2, 2, 2, 1]
    slowly = True
    searched.clear()
    asyncio.run(leave())
    service.close()  # waits for what runs
    assert searched == [2]


def test_hits_are_written_before_other_searches_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr("embedkit.serve.search._THREADS", 1)
    service = SearchService(Index.build(tmp_path / "index", ["one", "two"], FakeEncoder()))
    done: list[str] = []
    search, hit_fields = service.index.search, search_module.hit_fields

    def searched(*given: Any, **options: Any) -> Any:
        done.append("searched")
        return search(*given, **options)

    def written(hit: Hit, *, explain: bool) -> dict[str, Any]:
        done.append("written")
        return hit_fields(hit, explain=explain)

    monkeypatch.setattr(service.index, "search", searched)
    monkeypatch.setattr(search_module, "hit_fields", written)
    nothing: Pool[Any] = Pool([], Memory(None))
    state = State(Settings(), nothing, nothing, service, Metrics())

    async def ask() -> None:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await asyncio.gather(
                *(client.post("/v1/search", json={"query": "one", "k": 1}) for _ in range(4))
            )

    asyncio.run(ask())
    service.close()
    assert done == ["searched", "written"] * 4


def test_hits_are_not_written_for_a_client_that_has_gone(service: SearchService, slow: _Slow) -> None:
    found = service.index.search(["text"], 300)

    async def write() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(service.written(SearchRequest(words=True), ["text"], found), 0.2)

    asyncio.run(write())
    service.close()
    assert 0 < slow.calls < 100


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "query"),
        ({"query": "a", "vector": [1.0]}, "vector"),
        ({"query": ["a", 1]}, "query[1]"),
        ({"vector": [1.0, 2.0]}, "vector"),
        ({"vector": [1e39] * 256}, "vector"),
        ({"vector": [1.0, "a"]}, "vector[1]"),
        ({"query": "a", "k": 0}, "k"),
        ({"query": "a", "k": 1001}, "k"),
        ({"query": "a", "where": "number >"}, "where"),
        ({"query": "a", "where": "number = (select 1)"}, "where"),
        ({"query": "a", "where": "1) or (1"}, "where"),
        ({"query": "a", "where": "topic = '", "filter": {"a": 1}}, "where"),
        ({"query": "a", "filter": {"a": [1]}}, "filter.a"),
        ({"query": "a", "filter": {"a": 2**64 - 1}}, "filter"),  # cannot be compared exactly
        ({"query": "a", "nprobe": 4}, "nprobe"),
        ({"query": "a", "ef": 4}, "ef"),
        ({"query": "a", "nprobe": 4, "where": "number > 1"}, "nprobe"),
        ({"query": "a", "where": "left ="}, "where"),
        ({"vector": [1.0] * 256, "hybrid": True}, "hybrid"),
        ({"query": ""}, "query"),
        ({"query": ["a", " "]}, "query[1]"),
        ({"query": "", "hybrid": False}, "query"),
    ],
)
def test_errors(searching: RunningServer, body: Any, param: str | None) -> None:
    response = searching.post("/v1/search", body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    if param is not None:
        assert error["param"] == param
    assert "/" not in error["message"].replace("1/", "")


@pytest.mark.parametrize("others", [{}, {"filter": {"lang": "en"}}])
def test_an_invalid_condition_is_quoted_as_it_was_written(
    searching: RunningServer, index_folder: Path, others: dict[str, Any]
) -> None:
    for where in ("lang =", "lang = 'en')", "(lang = 'en'", "lang = 'en'' or ("):
        with Index.open(index_folder) as index, pytest.raises(ValueError, match="invalid condition") as told:
            index.search("a", where=where)
        response = searching.post("/v1/search", {"query": "a", "where": where, **others})
        assert response.status_code == 400
        assert response.json()["error"]["message"] == str(told.value)


@pytest.mark.parametrize(
    ("body", "param", "told"),
    [
        (
            '{"filter": {"minutes": {"$lte": 10}}}',
            "filter.minutes",
            "must be a string, a number, true, false or null, which the field must equal, not an object; other "
            "conditions go in where",
        ),
        ('{"filter": {"minutes": [10]}}', "filter.minutes", "not a list; other conditions go in where"),
        ('{"filter": {"minutes": 1e999}}', "filter.minutes", "must be a finite number"),
        ('{"filter": {"lang": "a\\u0000"}}', "filter.lang", "holds a null character"),
        ('{"filter": {"lang": "a\\ud800"}}', "filter.lang", "holds a lone surrogate at character 1"),
        ('{"filter": {"\\ud800": 1}}', "filter", "holds a lone surrogate at character 0"),
        ('{"filter": {"": 1}}', "filter", "holds a field without a name"),
        ('{"filter": "a = 1"}', "filter", "not a string; conditions go in where"),
        (
            '{"where": {"lang": "en"}}',
            "where",
            "must be a condition as text, such as lang = 'en' and year > 2019, not an object; fields and the values "
            "that they must equal go in filter",
        ),
        ('{"where": ""}', "where", "is empty; leave it out"),
        ('{"where": "\\t "}', "where", "is empty; leave it out"),
        ('{"rerank": ""}', "rerank", "is empty; give the name of a reranker, or true for the first"),
        ('{"where": "a\\ud800"}', "where", "holds a lone surrogate at character 1"),
        ('{"hybrid": 0.5}', "hybrid", "must be true or false, not a number"),
        ('{"rerank": 1}', "rerank", "must be true, false or the name of a reranker, not a number"),
        (
            '{"rerank": "%s"}' % ("a" * 1001),
            "rerank",
            "is longer than any name of a reranker: 1,001 characters",
        ),
        ('{"query": "a", "filtre": {"lang": "en"}}', "filtre", "is unknown; did you mean filter?"),
        (
            '{"query": "a", "colour": 1}',
            "colour",
            "is unknown; known are query, vector, like, k, where, filter",
        ),
    ],
)
def test_a_wrong_field_is_named_as_it_was_written_and_what_it_takes(body: str, param: str, told: str) -> None:
    with pytest.raises(ApiError) as error:
        parse(SearchRequest, body.encode())
    assert error.value.param == param
    assert error.value.message.startswith(f"{param} ")
    assert told in error.value.message


def test_a_filter_is_as_long_as_a_condition_may_be() -> None:
    wanted = _condition(SearchRequest(filter={"a": "'" * 4000, "b": 1}))
    assert wanted is not None
    assert 8000 < len(wanted) < 10_000
    for long in ({"a": "x" * 10_000}, {"a": "'" * 4998}, {f"field{number}": number for number in range(800)}):
        with pytest.raises(ApiError, match="filter makes a condition") as error:
            _condition(SearchRequest(filter=long))
        assert (error.value.status, error.value.param) == (400, "filter")


def test_the_id_of_a_document_may_be_long() -> None:
    assert SearchRequest(like="i" * 5000).like == "i" * 5000


def test_fields_may_be_null_and_a_filter_of_any_value() -> None:
    wanted = {"lang": "en", "year": 2019, "score": 0.5, "new": True, "tag": None, "large": 10**30}
    assert parse(SearchRequest, json.dumps({"filter": wanted}).encode()).filter == wanted
    body = parse(SearchRequest, b'{"query": "a", "where": null, "filter": null, "hybrid": null}')
    assert (body.where, body.filter, body.hybrid, body.rerank) == (None, None, None, False)


def test_nan_in_a_vector_is_refused(searching: RunningServer) -> None:
    for number in ("NaN", "Infinity", "1e999"):
        body = '{"vector": [' + ",".join([number] * 256) + "]}"
        response = searching.client.post("/v1/search", content=body)
        assert response.status_code == 400
        assert "vector[0]" in response.json()["error"]["message"]


def test_without_an_index(server: RunningServer) -> None:
    assert server.post("/v1/search", {"query": "a"}).json()["error"]["code"] == "no_index"


def test_the_index_needs_no_second_copy_of_a_served_model(
    start: Callable[..., RunningServer], index_folder: Path
) -> None:
    with Index.open(index_folder) as index:
        expected = [hit.id for hit in index.search("lentils", 3)[0]]
    with start("--index", str(index_folder), "--threads", "1") as running:
        (model,) = running.client.get("/v1/models").json()["data"]
        assert model["id"] == "embedkit-256-int8"
        before = running.metric("embedkit_texts_total", model=model["id"])
        assert [hit["id"] for hit in hits_of(running, query="lentils", k=3)[0]] == expected
        eventually(lambda: running.metric("embedkit_texts_total", model=model["id"]) > before)
        assert running.metric("embedkit_texts_total", model=model["id"]) == before + 1


@pytest.mark.parametrize("options", [{"max_length": 16}, {"max_length": 16, "on_overflow": "window"}])
def test_a_served_model_that_reads_texts_otherwise_is_not_the_indexs(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    short = Encoder(threads=1)
    short.max_seq_length = options["max_length"]
    Index.build(tmp_path / "index", ["one", "two"], short).close()
    state = open_state(Options(models=("",), index=str(tmp_path / "index"), threads=1))
    assert [name for name, _, _ in state.queues()] == ["embedkit-256-int8", "index"]
    state.close()


def test_a_served_model_serves_an_index_that_refuses_long_texts(tmp_path: Path) -> None:
    Index.build(tmp_path / "index", ["one", "two"], Encoder(threads=1, on_overflow="error")).close()
    state = open_state(Options(models=("",), index=str(tmp_path / "index"), threads=1))
    assert [name for name, _, _ in state.queues()] == ["embedkit-256-int8"]
    state.close()


def test_the_indexs_model_takes_the_device_and_refuses_another_precision(index_folder: Path) -> None:
    wanted = {"index": str(index_folder), "threads": 1}
    with pytest.raises(ValueError, match=r"--precision fp32: .* encoded in int8.*leave --precision out"):
        open_state(Options(precision="fp32", **wanted))
    for models in ((), ("embedkit-256-int8",)):  # the index's own model is loaded beside another one, too
        with pytest.raises((ImportError, RuntimeError, ValueError), match="cuda"):
            open_state(Options(device="cuda:99", models=models, **wanted))
    state = open_state(Options(precision="int8", device="cpu", **wanted))
    (served,) = state.embedders.distinct
    assert served.loaded is not None
    assert served.loaded.encoder.describe()["device"] == "cpu"
    state.close()


def test_an_indexs_own_model_is_seen_by_metrics_and_health_and_closed(
    index_folder: Path, tmp_path: Path
) -> None:
    Encoder(truncate_dim=16).save(tmp_path / "small")
    state = open_state(Options(models=(str(tmp_path / "small"),), index=str(index_folder), threads=1))
    assert [name for name, _, _ in state.queues()] == ["small", "index"]
    assert state.problem() is None
    assert state.search is not None
    model = state.search.index.encoder._model
    model.batcher.close()
    assert state.problem() == "the thread of index has ended"
    state.close()
    assert list(state.queues()) == []
    with pytest.raises(Exception, match="closed"):
        model.encoder.encode(["a"])
