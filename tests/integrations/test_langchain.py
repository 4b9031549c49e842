"""`EmbedkitEmbeddings` in LangChain's standard suites, and in a store of LangChain's."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import pickle
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import EmbeddingsIntegrationTests, VectorStoreIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from embedkit import Encoder
from embedkit.index import Document as IndexDocument
from embedkit.index import Index, InputError, ModelMismatchError, ResumeError
from embedkit.index.build.resume import resumable_rows
from embedkit.integrations.langchain import EmbedkitEmbeddings, EmbedkitVectorStore


class TestStandardUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[EmbedkitEmbeddings]:
        return EmbedkitEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"threads": 1}


class TestStandardIntegration(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[EmbedkitEmbeddings]:
        return EmbedkitEmbeddings


def test_vectors_are_the_encoders() -> None:
    encoder = Encoder(prompts={"query": "question: ", "document": "answer: "}, truncate_dim=32)
    embeddings = EmbedkitEmbeddings(encoder, normalize_embeddings=True)
    assert embeddings.embed_query("a") == encoder.encode("question: a", normalize_embeddings=True).tolist()
    vectors = embeddings.embed_documents(["a", "b"])
    np.testing.assert_array_equal(
        vectors, encoder.encode(["answer: a", "answer: b"], normalize_embeddings=True)
    )
    assert embeddings.embed_documents([]) == []
    with pytest.raises(ValueError, match="truncate_dim cannot be set here"):
        EmbedkitEmbeddings(encoder, truncate_dim=3)


def test_a_text_is_no_list_and_a_list_no_text() -> None:
    embeddings = EmbedkitEmbeddings()
    with pytest.raises(TypeError, match=r"a list of texts, not str; embed_query embeds a text"):
        embeddings.embed_documents("abc")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a text, not list; embed_documents embeds several"):
        embeddings.embed_query(["abc"])  # type: ignore[arg-type]


def test_a_store_of_langchain_finds_by_meaning() -> None:
    store = InMemoryVectorStore(EmbedkitEmbeddings())
    store.add_texts(["Boil the lentils for half an hour.", "Restart the server after the update."])
    found = store.as_retriever(search_kwargs={"k": 1}).invoke("what to cook")
    assert [document.page_content for document in found] == ["Boil the lentils for half an hour."]


class TestStandardVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[EmbedkitVectorStore]:  # type: ignore[override]
        yield EmbedkitVectorStore(tmp_path / "index")


class TestStandardVectorStoreEmptied(VectorStoreIntegrationTests):
    """The same for an index whose documents were all deleted."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[EmbedkitVectorStore]:  # type: ignore[override]
        store = EmbedkitVectorStore(tmp_path / "index")
        store.add_texts(["something"])
        store.delete()
        yield store


NOTES = [
    ("Boil the lentils for half an hour.", {"topic": "food", "year": 2020, "tried": True}),
    ("Cook the lentils for thirty minutes.", {"topic": "food", "year": 2021, "tried": False}),
    ("Bake the bread until it is brown.", {"topic": "food", "year": 2022, "author's": "O'Neill"}),
    ("Restart the server after the update.", {"topic": "computers", "year": 2021}),
]


@pytest.fixture
def store(tmp_path: Path) -> EmbedkitVectorStore:
    return EmbedkitVectorStore.from_texts(
        [text for text, _ in NOTES],
        EmbedkitEmbeddings(),
        [metadata for _, metadata in NOTES],
        ids=list("abcd"),
        path=tmp_path / "index",
    )


def test_scores_are_cosines_and_the_store_lasts(store: EmbedkitVectorStore, tmp_path: Path) -> None:
    encoder = Encoder()
    expected = encoder.encode([text for text, _ in NOTES]) @ encoder.encode("cooking lentils")
    for opened in (store, EmbedkitVectorStore(tmp_path / "index")):
        found = opened.similarity_search_with_score("cooking lentils", k=4)
        assert [document.id for document, _ in found] == ["abcd"[i] for i in (-expected).argsort()]
        scores = [score for _, score in found]  # of vectors that the index holds in bytes
        np.testing.assert_allclose(scores, sorted(expected, reverse=True), atol=2e-3)
        assert opened.embeddings.embed_query("a") == encoder.encode("a").tolist()
    vector = encoder.encode("cooking lentils").tolist()
    assert store.similarity_search_by_vector(vector, k=1)[0].id == found[0][0].id


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"topic": "food"}, "abc"),
        ({"topic": "food", "year": 2021}, "b"),
        ({"tried": True}, "a"),
        ({"tried": None}, "cd"),
        ({"author's": "O'Neill"}, "c"),
        ({"year": np.int64(2021)}, "bd"),
        ({"year": np.float64(2021)}, "bd"),
        ({"tried": np.bool_(True)}, "a"),
        ({"year": True}, ""),
        ({"year": {"$gt": 2020}, "topic": "food"}, "bc"),
        ({}, "abcd"),
        ("year >= 2021 and topic <> 'food'", "d"),
        ({"topic": "nothing"}, ""),
    ],
)
def test_filters(store: EmbedkitVectorStore, condition: Any, expected: str) -> None:
    found = store.similarity_search("lentils", k=4, filter=condition)
    assert sorted(document.id or "" for document in found) == list(expected)


def test_retrievers_of_every_kind(store: EmbedkitVectorStore) -> None:
    def ids(search_type: str, **options: Any) -> list[str | None]:
        retriever = store.as_retriever(search_type=search_type, search_kwargs=options)
        return [document.id for document in retriever.invoke("cooking lentils")]

    assert set(ids("similarity", k=2)) == {"a", "b"}
    assert ids("similarity", k=1, filter={"year": 2022}) == ["c"]
    diverse = ids("mmr", k=2, fetch_k=4, lambda_mult=0.1)
    assert diverse[0] in ("a", "b") and diverse[1] not in ("a", "b")
    assert set(ids("mmr", k=2, lambda_mult=1.0, hybrid=False)) == {"a", "b"}
    assert set(ids("similarity_score_threshold", score_threshold=0.5)) == {"a", "b"}
    assert ids("similarity", k=1, hybrid=True)[0] in ("a", "b")


def test_the_last_text_with_an_id_wins(store: EmbedkitVectorStore) -> None:
    assert store.add_texts(["one", "two"], ids=["x", "x"]) == ["x", "x"]
    assert store.get_by_ids(["x", "none", "d"]) == [
        Document(id="x", page_content="two"),
        Document(id="d", page_content=NOTES[3][0], metadata=NOTES[3][1]),
    ]
    assert len(store.index) == 5
    assert store.add_texts([]) == []


def test_what_does_not_fit_is_refused(store: EmbedkitVectorStore, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="metadata"):
        store.add_texts(["a"], [{"field": {1, 2}}])
    with pytest.raises(ValueError, match="1 texts and 2 ids"):
        store.add_texts(["a"], ids=["x", "y"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'batch'"):
        store.add_texts(["a"], batch=3)
    with pytest.raises(InputError, match=r"metadatas\[1\]: it is NoneType, not a dict"):
        store.add_texts(["a", "b"], [{}, None])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="the field 'year' can be compared with"):
        store.similarity_search("a", filter={"year": [1]})
    with pytest.raises(ValueError, match="the keys of a condition are names of fields, not 1"):
        store.similarity_search("a", filter={1: 2})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="use EmbedkitEmbeddings or an Encoder"):
        EmbedkitVectorStore(tmp_path / "other", TestStandardVectorStore.get_embeddings())  # type: ignore[arg-type]
    with pytest.raises(ModelMismatchError):
        EmbedkitVectorStore(tmp_path / "index", Encoder(truncate_dim=8))
    with pytest.raises(ValueError, match="leave hybrid out"):
        store.max_marginal_relevance_search("a", hybrid=True)
    dot = EmbedkitVectorStore(tmp_path / "dot", metric="dot")
    dot.add_texts(["a"])
    with pytest.raises(ValueError, match="metric='cosine'"):
        dot.similarity_search_with_relevance_scores("a")


@pytest.mark.parametrize("way", ["index", "aindex"])
def test_langchains_indexing(tmp_path: Path, way: str) -> None:
    store = EmbedkitVectorStore(tmp_path / "index")
    records = InMemoryRecordManager(namespace="notes")
    records.create_schema()

    def indexed(texts: list[str]) -> tuple[int, int, int]:
        documents = [Document(page_content=text, metadata={"source": text}) for text in texts]
        options: dict[str, Any] = {"cleanup": "full", "source_id_key": "source", "key_encoder": "sha256"}
        done = (
            index(documents, records, store, **options)
            if way == "index"
            else asyncio.run(aindex(documents, records, store, **options))
        )
        return done["num_added"], done["num_skipped"], done["num_deleted"]

    assert indexed(["one", "two"]) == (2, 0, 0)
    assert indexed(["one", "two"]) == (0, 2, 0)
    assert indexed(["two", "three"]) == (1, 1, 1)
    assert len(store.index) == 2


def test_blank_texts_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = EmbedkitVectorStore(tmp_path / "index")
    for blank in ("", " \n"):
        with pytest.raises(InputError, match=r"texts\[1\]: the text is blank"):
            store.add_texts(["one", blank])
    assert not (tmp_path / "index").exists()
    assert store.add_texts(["one"], ids=["x"]) == ["x"]
    with pytest.raises(InputError, match=r"texts\[0\]"):
        store.add_texts(["  ", "two"], ids=["x", "y"])
    with pytest.raises(InputError, match="the id is empty"):  # None alone asks for a random one
        store.add_texts(["two"], ids=[""])
    assert [document.page_content for document in store.get_by_ids(["x", "y"])] == ["one"]


def test_normalized_embeddings(tmp_path: Path) -> None:
    encoder = Encoder(truncate_dim=32)  # vectors that are not of length 1
    embeddings = EmbedkitEmbeddings(encoder, normalize_embeddings=True)
    texts = [text for text, _ in NOTES]
    store = EmbedkitVectorStore.from_texts(texts, embeddings, path=tmp_path / "cosine")
    assert store.embeddings.normalize_embeddings
    expected = np.array(embeddings.embed_documents(texts)) @ embeddings.embed_query("lentils")
    scores = [score for _, score in store.similarity_search_with_score("lentils")]
    np.testing.assert_allclose(scores, sorted(expected, reverse=True), atol=5e-3)
    with pytest.raises(ValueError, match="use metric='cosine'"):
        EmbedkitVectorStore(tmp_path / "dot", embeddings, metric="dot")
    EmbedkitVectorStore.from_texts(texts, encoder, path=tmp_path / "dot", metric="dot")
    with pytest.raises(ValueError, match="use metric='cosine'"):  # the metric of the index there counts
        EmbedkitVectorStore(tmp_path / "dot", embeddings)


def test_an_addition_that_failed_is_in_nobodys_way(tmp_path: Path) -> None:
    store = EmbedkitVectorStore(tmp_path / "index", EmbedkitEmbeddings())
    for _ in range(2):  # of a new index, and of one that is there
        with pytest.raises(InputError):
            store.add_texts([f"text {n}" for n in range(2049)], [{}] * 2048 + [{"x": {1}}])
        store.add_texts(["fine"], ids=["1"])
    assert [found.id for found in store.similarity_search("fine", k=2)] == ["1"]


def interrupted(documents: list[IndexDocument]) -> Iterator[IndexDocument]:
    yield from documents
    raise KeyboardInterrupt


@pytest.mark.parametrize("mode", ["build", "upsert"])
def test_what_others_have_encoded_is_not_discarded(tmp_path: Path, mode: str) -> None:
    encoder = Encoder()
    vector = encoder.encode("text")
    others = [IndexDocument(f"text {n}", str(n), vector=vector) for n in range(2100)]
    path = tmp_path / "index"
    if mode == "upsert":
        EmbedkitVectorStore(path, encoder).add_texts(["one"], ids=["one"])
    write: Any = (
        Index.open(path, encoder).upsert if mode == "upsert" else partial(Index.build, path, encoder=encoder)
    )
    with pytest.raises(KeyboardInterrupt):
        write(documents=interrupted(others))
    encoded = resumable_rows(path)
    assert encoded == 2048
    store = EmbedkitVectorStore(path, encoder)
    for metadata, error in (({"x": {1}}, InputError), ({}, ResumeError), ({}, ResumeError)):
        with pytest.raises(error):  # also where an addition of the store's own has failed before
            store.add_texts(["mine"], [metadata])
        assert resumable_rows(path) == encoded
    with pytest.raises(ResumeError, match="restart=True"):
        store.add_texts(["mine"], ids=["mine"])
    assert store.add_texts(["mine"], ids=["mine"], restart=True) == ["mine"]
    assert len(store.index) == (2 if mode == "upsert" else 1)


@pytest.mark.parametrize("texts", [1, 2049])
def test_what_others_encode_after_an_addition_that_failed_is_kept(tmp_path: Path, texts: int) -> None:
    path, encoder = tmp_path / "index", Encoder()
    store = EmbedkitVectorStore.from_texts(["one"], encoder, ids=["one"], path=path)
    with pytest.raises(InputError):  # which leaves nothing, or what nobody resumes
        store.add_texts([f"text {n}" for n in range(texts)], [{}] * (texts - 1) + [{"x": {1}}])
    others = [IndexDocument(f"text {n}", str(n), vector=encoder.encode("text")) for n in range(2100)]
    with pytest.raises(KeyboardInterrupt):
        Index.open(path, encoder).upsert(interrupted(others), restart=True)
    with pytest.raises(ResumeError):
        store.add_texts(["mine"])
    assert resumable_rows(path) == 2048


def test_a_store_sees_the_index_that_another_has_made(tmp_path: Path) -> None:
    first, second = (EmbedkitVectorStore(tmp_path / "index", Encoder()) for _ in range(2))
    assert second.similarity_search("one") == [] and second.get_by_ids(["1"]) == []
    first.add_texts(["one"], ids=["1"])
    assert [found.page_content for found in second.get_by_ids(["1"])] == ["one"]
    second.add_texts(["two"], ids=["2"])
    assert len(second.index) == 2


def test_a_store_sees_what_others_change(tmp_path: Path) -> None:
    first = EmbedkitVectorStore.from_texts(["one"], Encoder(), ids=["1"], path=tmp_path / "index")
    second = EmbedkitVectorStore(tmp_path / "index", Encoder())
    assert len(second.similarity_search("one")) == 1
    first.add_texts(["two"], ids=["2"])
    first.delete(["1"])
    assert [found.id for found in second.similarity_search("one")] == ["2"]
    assert second.get_by_ids(["1"]) == [] and len(second.index) == 1
    first.delete()
    assert second.max_marginal_relevance_search("one") == []


def test_an_index_that_was_removed_is_built_anew(tmp_path: Path) -> None:
    store = EmbedkitVectorStore.from_texts(["one"], Encoder(), ids=["1"], path=tmp_path / "index")
    shutil.rmtree(tmp_path / "index")
    assert store.similarity_search("one") == [] and store.get_by_ids(["1"]) == []
    assert store.add_texts(["two"], ids=["2"]) == ["2"]
    assert [found.id for found in store.similarity_search("one")] == ["2"]


def test_a_retriever_before_the_first_document_decides_on_no_model(tmp_path: Path) -> None:
    store = EmbedkitVectorStore(tmp_path / "index")
    retriever = store.as_retriever(search_kwargs={"k": 1})
    EmbedkitVectorStore(tmp_path / "index", Encoder(truncate_dim=32)).add_texts(["one"], ids=["1"])
    assert [found.id for found in retriever.invoke("one")] == ["1"]
    assert len(store.embeddings.embed_query("one")) == 32


def test_copies_and_pickles_open_the_index_again(
    store: EmbedkitVectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(store.index.path).parent)
    relative = EmbedkitVectorStore("index", EmbedkitEmbeddings(normalize_embeddings=True))
    pickled = pickle.dumps(relative)
    retriever = store.as_retriever(search_kwargs={"k": 1})
    monkeypatch.chdir("/")
    for copied in (pickle.loads(pickled), copy.deepcopy(store), copy.copy(store)):
        assert copied.similarity_search("cooking lentils", k=1) == store.similarity_search(
            "cooking lentils", k=1
        )
    assert pickle.loads(pickled).embeddings.normalize_embeddings
    for again in (pickle.loads(pickle.dumps(retriever)), copy.deepcopy(retriever)):
        assert again.invoke("cooking lentils") == retriever.invoke("cooking lentils")


def test_embeddings_that_an_index_would_not_call_are_refused(tmp_path: Path) -> None:
    class Prompted(EmbedkitEmbeddings):
        def embed_query(self, text: str) -> list[float]:
            return super().embed_query(f"question: {text}")

    with pytest.raises(TypeError, match="Prompted overrides embed_query, which an index does not call"):
        EmbedkitVectorStore(tmp_path / "index", Prompted())


def test_arguments_of_another_type_are_refused(store: EmbedkitVectorStore, tmp_path: Path) -> None:
    empty = EmbedkitVectorStore(tmp_path / "empty")
    for one in (store, empty):
        for search in (
            one.similarity_search,
            one.similarity_search_with_relevance_scores,
            one.max_marginal_relevance_search,
        ):
            for query in (["a", "b"], None):
                with pytest.raises(TypeError, match="query is one text, not"):
                    search(query)  # type: ignore[operator]
            with pytest.raises(ValueError, match="query is empty"):
                search(" ")  # type: ignore[operator]
        with pytest.raises(InputError, match=r"texts\[1\]: it is Document, not a text; add_documents takes"):
            one.add_texts(["a", Document("b")])  # type: ignore[list-item]


def test_arguments_are_checked_before_the_first_document(store: EmbedkitVectorStore, tmp_path: Path) -> None:
    for options, message in (
        ({"metric": "euclid"}, "metric must be 'cosine' or 'dot'"),
        ({"factory": "Flatt"}, "unknown factory 'Flatt'"),
    ):
        with pytest.raises(ValueError, match=message):
            EmbedkitVectorStore(tmp_path / "none", **options)
    for factory in ("auto", "auto-int8", "HNSW32,SQ8", "OPQ64,PQ64"):
        EmbedkitVectorStore(tmp_path / "none", factory=factory)
    store.delete()
    for one in (store, EmbedkitVectorStore(tmp_path / "none")):
        for search, k in ((one.similarity_search, "k"), (one.max_marginal_relevance_search, "fetch_k")):
            assert search("a", filter={}) == []  # type: ignore[operator]
            with pytest.raises(ValueError, match="k must be"):
                search("a", **{k: 0})  # type: ignore[operator]
            with pytest.raises(TypeError, match="k must be"):
                search("a", **{k: 2.5})  # type: ignore[operator]
            for condition in ("topic = (", {"year": {"$near": 3}}):
                with pytest.raises(ValueError, match=r"topic|\$near"):
                    search("a", filter=condition)  # type: ignore[operator]
            with pytest.raises(TypeError, match="nonsense"):
                search("a", nonsense=1)  # type: ignore[operator]
            with pytest.raises(TypeError, match="nprobe must be an integer"):
                search("a", nprobe="many")  # type: ignore[operator]
            assert search("a", ef=50) == search("a", nprobe=4) == []  # type: ignore[operator]
            for wrong in ({"ef": 0}, {"nprobe": 0}, {"rescore": -1}):
                with pytest.raises(ValueError, match=r"must be at least [01], not"):
                    search("a", **wrong)  # type: ignore[operator]
        assert one.similarity_search("a", hybrid=True) == []
        with pytest.raises(ValueError, match=r"must be from 0 to 1, not 7"):
            one.similarity_search("a", hybrid=7)
        for search in (one.similarity_search_by_vector, one.max_marginal_relevance_search_by_vector):
            with pytest.raises(ValueError, match=r"have the shape \(3,\)"):
                search([1.0, 2.0, 3.0])  # type: ignore[operator]
            assert search(one.embeddings.embed_query("a")) == []  # type: ignore[operator]


def test_a_search_does_not_wait_for_an_addition(tmp_path: Path) -> None:
    store = EmbedkitVectorStore(tmp_path / "index", Encoder())
    store.add_texts(["one", "two"], ids=["1", "2"])
    with ThreadPoolExecutor(1) as another, store._lock:
        found = another.submit(store.max_marginal_relevance_search, "one", k=1).result(60)
    assert [document.id for document in found] == ["1"]


def test_a_child_adds_that_is_forked_during_an_addition(tmp_path: Path) -> None:
    store = EmbedkitVectorStore(tmp_path / "index", Encoder())
    store.add_texts(["one"], ids=["1"])
    began, ended = threading.Event(), threading.Event()

    def add() -> None:
        with store._lock:
            began.set()
            ended.wait()

    child = multiprocessing.get_context("fork").Process(
        target=store.add_texts, args=(["two"],), kwargs={"ids": ["2"]}
    )
    with ThreadPoolExecutor(1) as another:
        another.submit(add)
        began.wait()
        child.start()
        ended.set()
    child.join(60)
    child.kill()
    assert child.exitcode == 0
    assert [document.id for document in store.get_by_ids(["1", "2"])] == ["1", "2"]


def test_passages_have_the_same_metadata_from_every_method(tmp_path: Path) -> None:
    text = "The weather is lovely today. " * 40
    Index.build(tmp_path / "index", [IndexDocument(text, "a", {"k": 1})], Encoder(), passages=64).close()
    store = EmbedkitVectorStore(tmp_path / "index")
    found = store.similarity_search("weather", k=1)[0]
    assert found.metadata == {"k": 1}
    assert store.get_by_ids([str(found.id)]) == [found]
    assert found in store.max_marginal_relevance_search("weather", k=9)
