"""Filters, re-ranking, hybrid search, streams of queries, devices and other models."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
from faiss_kinds import needs_rabitq
from fake_encoder import FakeEncoder

from embedkit.index import Document, Index, ModelMismatchError, SearchStats
from embedkit.index.storage import faiss_gpu, faiss_part
from embedkit.index.storage.faiss_part import bits_of, count_bits, is_set, rows_of
from embedkit.index.storage.raw import quantize
from embedkit.index.storage.where import compile_where

FIELDS = [
    {"lang": "en", "year": 2021, "tags": ["a"], "author": {"name": "Ann"}, "draft": False},
    {"lang": "de", "year": 2019, "author": {"name": "Bob"}, "draft": True},
    {"lang": "en", "year": 1999.5, "a b": "x", "größe": 3},
    {"lang": "fr", "year": "2022", "note": "it's"},
    {"lang": "en", "year": "unknown", "text": "inner", "id": 5},
    {},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    documents = [Document(f"text {n}", f"k{n}", fields) for n, fields in enumerate(FIELDS)]
    with Index.build(tmp_path_factory.mktemp("where") / "index", documents, FakeEncoder()) as index:
        yield index


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("lang = 'en'", "024"),
        ("lang = 'en' and year > 2019", "0"),
        ("LANG = 'en' or lang='en'", "024"),
        ("year > 2019", "03"),
        ("2019 < year", "03"),
        ("year between 1999 and 2019", "12"),
        ("year not between 1999 and 2019", "03"),
        ("year in (2021, 2022)", "03"),
        ("year = '2022'", "3"),
        ("lang in ('de', 'fr')", "13"),
        ("lang is null", "5"),
        ("lang is not null and not lang = 'en'", "13"),
        ("lang like 'E%'", "024"),
        ("author.name = 'Ann'", "0"),
        ("\"a b\" = 'x'", "2"),
        ("größe >= 3", "2"),
        ("note = 'it''s'", "3"),
        ("draft", "1"),
        ("draft = true or year < -1", "1"),
        ("json_is_no_function is null and id = 'k5'", "5"),
        ("text = 'text 3'", "3"),
        ('"text" = \'inner\' and "id" = 5', "4"),
        ("upper(lang) || '!' = 'DE!'", "1"),
        ("case when year > 2020 then 1 else 0 end = 1", "03"),
        ("coalesce(lang, 'none') = 'none'", "5"),
        ("missing = 1", ""),
    ],
)
def test_conditions(index: Index, where: str, found: str) -> None:
    assert sorted(hit.id for hit in index.search("text", k=10, where=where)[0]) == [f"k{n}" for n in found]


@pytest.mark.parametrize(
    "where",
    [
        "",
        "   ",
        "lang =",
        "lang = 'en",
        "lang = 'en'; drop table documents",
        "lang = 'en' -- comment",
        "lang = 'en' /* comment */",
        "1) or (1",
        "(lang = 'en'",
        "lang = 'en')",
        "key in (select key from documents)",
        "exists (select 1)",
        "load_extension('x')",
        "readfile('/etc/passwd') is null",
        "sqlite_version() = 1",
        "randomblob(1000000000) is null",
        "documents.key = 'x' union all",
        "a -> 'b'",
        "x = ?1",
        "x = :name",
        '"a""b" = 1',
        "x = 1x",
        "match('x')",
        "lang = 'en' limit 1",
        "\x00",
        "allowed(1)",
        "(" * 2000 + "1" + ")" * 2000,
    ],
)
def test_invalid_conditions_are_refused(index: Index, where: str) -> None:
    with pytest.raises(ValueError, match="condition"):
        index.search("text", where=where)
    assert len(index.search("text", k=10)[0]) == 6


def test_the_connection_reads_nothing_but_documents_for_a_condition(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = index.generation.segments[0].documents
    monkeypatch.setattr("embedkit.index.storage.document_store.compile_where", lambda where, **_: where)
    for sql in ("1) UNION SELECT sql FROM sqlite_schema WHERE (1", "row IN (SELECT rows FROM words)"):
        with pytest.raises(ValueError, match=r"prohibited|not authorized|vtable constructor failed"):
            reader.select(sql)


def test_a_condition_names_the_place() -> None:
    with pytest.raises(ValueError, match=r"invalid condition 'lang = \$', character 8: unexpected '\$'"):
        compile_where("lang = $")
    with pytest.raises(ValueError, match="unknown function exec; available functions: abs"):
        compile_where("exec(1)")


def corpus(rows: int = 3000, dimension: int = 24) -> tuple[np.ndarray, list[Document]]:
    vectors = np.random.default_rng(1).standard_normal((rows, dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    documents = [
        Document(f"number {n}", f"k{n}", {"n": n}, vector=vector) for n, vector in enumerate(vectors)
    ]
    return vectors, documents


@pytest.mark.parametrize("factory", ["PCA24,Flat", "PCAR24,IVF4,Flat", "PCA12,Flat", "OPQ4_12,Flat"])
def test_scores_of_fewer_columns_are_cosines_of_vectors_with_a_common_mean(
    tmp_path: Path, factory: str
) -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((1000, 24)) * 0.8 ** np.arange(24) + random.standard_normal(24) / 2
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    documents = [Document(f"number {n}", f"k{n}", vector=vector) for n, vector in enumerate(vectors)]
    with Index.build(tmp_path / "index", documents, FakeEncoder(truncate_dim=24), factory=factory) as index:
        scores, rows = index.search_vectors(vectors[:50], 10, nprobe=4 if "IVF" in factory else None)
    exact = vectors[:50] @ vectors.T
    best = np.argsort(-exact, axis=1)[:, :10]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, best, strict=True)])
    assert recall > (0.99 if "24" in factory else 0.8)
    error = np.abs(scores - np.take_along_axis(exact, rows, axis=1))
    assert error.max() < (1e-5 if "24" in factory else 0.05)


@pytest.mark.parametrize("kept", ["fp32", "int8"])
@pytest.mark.parametrize(
    "factory", ["IVF16,PQ12x4fs", "SQ4", pytest.param("IVF16,RaBitQ", marks=needs_rabitq)]
)
def test_rescoring_gives_the_scores_of_the_vectors(tmp_path: Path, kept: str, factory: str) -> None:
    vectors, documents = corpus()
    encoder = FakeEncoder(truncate_dim=24)
    nprobe = 16 if "IVF" in factory else None
    with Index.build(tmp_path / "index", documents, encoder, factory=factory, kept=kept) as index:
        queries = vectors[:40] + 0.02
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        scores, rows = index.search_vectors(queries, 10, rescore=30, nprobe=nprobe)
        exact = queries @ vectors.T
        np.testing.assert_allclose(
            scores, np.take_along_axis(exact, rows, axis=1), atol=1e-6 if kept == "fp32" else 0.02
        )
        best = np.argsort(-exact, axis=1)[:, :10]
        recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, best, strict=True)])
        coarse = index.search_vectors(queries, 10, rescore=0, nprobe=nprobe)[1]
        assert recall > np.mean([len(set(a) & set(b)) / 10 for a, b in zip(coarse, best, strict=True)])
        assert recall > 0.85
        assert index.info()["kept"] == kept
        # a filter that leaves few documents compares their vectors
        scores, rows = index.search_vectors(queries, 10, where="n % 50 = 7")
        some = exact[:, 7::50]
        np.testing.assert_allclose(
            scores, np.sort(some, axis=1)[:, ::-1][:, :10], atol=1e-6 if kept == "fp32" else 0.02
        )
        assert (rows % 50 == 7).all()


def test_a_filter_that_leaves_few_rows_of_one_segment_alone_gives_comparable_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.index.storage.faiss_part.EXACT_ROWS", 300)
    vectors, documents = corpus()
    encoder = FakeEncoder(truncate_dim=24)
    names = [tmp_path / "large", tmp_path / "small"]
    for name, some in zip(names, (documents[:2000], documents[2000:]), strict=True):
        Index.build(name, some, encoder, factory="SQ4").close()
    with Index.merge(tmp_path / "index", names) as index:
        where = "n < 2000 or n % 4 = 0"  # 250 of the second segment: their vectors are compared
        scores, rows = index.search_vectors(vectors[:40], 10, where=where)
        exact = vectors[:40] @ vectors.T
        np.testing.assert_allclose(scores, np.take_along_axis(exact, rows, axis=1), atol=1e-6)
        scores, rows = index.search_vectors(vectors[:40], 10, where="n >= 0")  # codes of both
        assert np.abs(scores - np.take_along_axis(exact, rows, axis=1)).max() > 0.01


@pytest.mark.parametrize(
    ("factories", "kept"),
    [
        (("SQ8", "PQ12x4fs"), None),
        (("SQ8", "PQ12x4fs"), "none"),
        pytest.param(("RaBitQ", "PQ4x4"), None, marks=needs_rabitq),
        (("PCA12,SQ8", "SQ8"), None),
        (("IVF8,PQ4x4", "PQ4x4"), None),
        (("IVF8,PQ4x4", "IVF4,PQ4x4"), None),
    ],
)
def test_merged_indexes_of_different_codes_give_comparable_scores(
    tmp_path: Path, factories: tuple[str, str], kept: Any
) -> None:
    vectors, documents = corpus()
    encoder = FakeEncoder(truncate_dim=24)
    names = [tmp_path / "first", tmp_path / "second"]
    halves = documents[:1500], documents[1500:]
    for name, some, factory, own in zip(names, halves, factories, (kept, None), strict=True):
        Index.build(name, some, encoder, factory=factory, kept=own).close()
    with Index.merge(tmp_path / "index", names) as index:
        scores, rows = index.search_vectors(vectors[:100], 10)
        exact = np.take_along_axis(vectors[:100] @ vectors.T, rows, axis=1)
        np.testing.assert_allclose(scores, exact, atol=0.02 if kept == "none" else 1e-6)
        assert 0.35 < (rows >= 1500).mean() < 0.65


def test_indexes_of_the_same_codes_are_not_rescored(tmp_path: Path) -> None:
    vectors, documents = corpus(600)
    encoder = FakeEncoder(truncate_dim=24)
    names = [tmp_path / name for name in "abc"]
    for place, (name, factory) in enumerate(zip(names, ("SQ4", "IVF4,SQ4", "IVF8,SQ4"), strict=True)):
        Index.build(name, documents[place::3], encoder, factory=factory).close()
    with Index.merge(tmp_path / "index", names) as index:
        scores, rows = index.search_vectors(vectors[:40], 10, nprobe=8)
        exact = np.take_along_axis(vectors[:40] @ vectors.T, rows, axis=1)
        assert np.abs(scores - exact).max() > 0.01


@pytest.mark.parametrize("kept", [None, "none"])
def test_rescoring_of_a_refinement(tmp_path: Path, kept: Any) -> None:
    vectors, documents = corpus()
    with Index.build(
        tmp_path / "index", documents, FakeEncoder(truncate_dim=24), factory="PQ12x4fs,RFlat", kept=kept
    ) as index:
        exact = vectors[:40] @ vectors.T
        best = np.argsort(-exact, axis=1)[:, :10]
        found = {
            factor: index.search_vectors(vectors[:40], 10, rescore=factor)[1]
            for factor in (None, 0, 1, 4, 30)
        }
        recall = {
            factor: np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, best, strict=True)])
            for factor, rows in found.items()
        }
        np.testing.assert_array_equal(found[None], found[4])
        np.testing.assert_array_equal(found[0], found[1])
        assert recall[0] + 0.1 < recall[4] < recall[30] - 0.05
        index.set_search_defaults(rescore=30)
        np.testing.assert_array_equal(index.search_vectors(vectors[:40], 10)[1], found[30])
        np.testing.assert_array_equal(index.search_vectors(vectors[:40], 10, rescore=0)[1], found[0])


def test_a_refinement_ranks_no_more_candidates_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    given = faiss_part.faiss_parameters

    def noted(index: Any, parameters: Any, selector: Any = None) -> Any:
        asked.append(parameters.rescore)
        return given(index, parameters, selector)

    monkeypatch.setattr(faiss_part, "faiss_parameters", noted)
    vectors, documents = corpus(600)
    with Index.build(
        tmp_path / "index", documents, FakeEncoder(truncate_dim=24), factory="PQ12x4fs,RFlat"
    ) as index:
        _, rows = index.search_vectors(vectors[:9], 500, rescore=10**9)  # of 12 bytes each
        assert asked == [2]
        np.testing.assert_array_equal(rows, np.argsort(-(vectors[:9] @ vectors.T), axis=1)[:, :500])


def test_kept_int8_vectors_are_within_half_a_step() -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 30)).astype(np.float32)
    vectors[3] = 0
    codes, scales = quantize(vectors)
    assert (
        np.abs(codes * scales[:, None] - vectors).max() <= np.abs(vectors).max(axis=1).max() / 127 / 2 * 1.001
    )
    assert (codes[3] == 0).all()


def test_few_added_exact_vectors_do_not_outrank_codes_by_their_kind(tmp_path: Path) -> None:
    """PQ underestimates products: that must not move the hits of an exact segment to the top."""
    vectors, documents = corpus()
    encoder = FakeEncoder(truncate_dim=24)
    with Index.build(tmp_path / "index", documents[:2900], encoder, factory="IVF16,PQ12x4fs") as index:
        index.add(documents[2900:])
        scores, rows = index.search_vectors(vectors[:50], 1, nprobe=16)
        exact = vectors[:50] @ vectors.T
        np.testing.assert_allclose(scores, np.take_along_axis(exact, rows, axis=1), atol=1e-5)
        assert (rows[:, 0] == np.arange(50)).mean() >= 0.96


def test_hybrid_finds_rare_words_and_keeps_filters(tmp_path: Path) -> None:
    documents = [Document(f"common text number {n}", f"k{n}", {"n": n}) for n in range(400)]
    documents[250] = Document("the zyzzyva beetle", "rare", {"n": 250})
    encoder = FakeEncoder()
    encode = encoder.encode_query
    encoder.encode_query = lambda texts, **options: encode(["common text number 1"] * len(texts), **options)
    with Index.build(tmp_path / "index", documents, encoder) as index:
        assert "rare" not in [hit.id for hit in index.search("zyzzyva", k=5, hybrid=False)[0]]
        hits = index.search(["zyzzyva", "common"], k=5, hybrid=True)
        assert hits[0][0].id == "rare"
        assert hits[0][0].score <= 1
        assert [hit.rank for hit in hits[1]] == [1, 2, 3, 4, 5]
        assert all(
            int(hit.id[1:]) < 100 for hit in index.search("zyzzyva", k=5, hybrid=True, where="n < 100")[0]
        )
        assert len(index.search("?", k=5, hybrid=True)[0]) == 5
        index.delete(["rare"])
        index.add([Document("another zyzzyva", "new", {"n": 1000})])
        found = [hit.id for hit in index.search("zyzzyva", k=5, hybrid=True)[0]]
        assert "new" in found[:2]
        assert "rare" not in found
        with pytest.raises(ValueError, match="a hybrid search needs texts"):
            index.search(np.ones((1, 32)), hybrid=True)


def test_a_stream_of_queries_overlaps_its_stages(tmp_path: Path) -> None:
    class Slow(FakeEncoder):
        def encode_query(self, sentences: list[str], **options: Any) -> np.ndarray:
            time.sleep(0.05)
            return super().encode_document(sentences, **options)

    texts = [f"text {n}" for n in range(200)]
    stats = SearchStats()
    with Index.build(tmp_path / "index", texts, Slow()) as index:
        blocks = [texts[at : at + 20] for at in range(0, 200, 20)]
        expected = [index.search(block, k=3) for block in blocks]

        def reading() -> Iterator[list[str]]:
            for block in blocks:
                time.sleep(0.05)
                yield block

        assert list(index.search_stream(reading(), 3, stats=stats)) == expected
        assert stats.queries == 200
        assert stats.busy["read"] > 0.45
        assert stats.busy["encode"] > 0.45
        line = str(stats)
        assert line.startswith("200 queries in ")
        assert all(f"{stage} " in line for stage in ("read", "encode", "search", "fetch"))
        assert list(index.search_stream([], 3)) == []
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            index.search_stream(blocks, nonsense=1)
        with pytest.raises(ValueError, match="nprobe does not apply"):
            index.search_stream(blocks, nprobe=1)
        with pytest.raises(TypeError, match="query 1 is int"):
            list(index.search_stream([["a"], ["b", 1]]))
    assert not [thread for thread in threading.enumerate() if thread.name == "embedkit-prefetch"]


def test_an_abandoned_stream_stops_its_threads(tmp_path: Path, encoder: FakeEncoder) -> None:
    with Index.build(tmp_path / "index", ["a", "b"], encoder) as index:
        stream = index.search_stream((["a"] for _ in iter(int, 1)), 1)
        next(stream)
        stream.close()
        del stream
        deadline = time.monotonic() + 60
        while [thread for thread in threading.enumerate() if thread.name == "embedkit-prefetch"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_ef_is_for_hnsw(tmp_path: Path, encoder: FakeEncoder) -> None:
    texts = [f"text {n} of {n % 13}" for n in range(500)]
    with Index.build(tmp_path / "index", texts, encoder, factory="HNSW8") as index:
        assert index.info()["ef"] == 64
        assert len(index.search("text 3 of 3", k=20, ef=200)[0]) == 20
        with pytest.raises(ValueError, match="ef must be at least 1, not 0"):
            index.search("x", ef=0)
        index.set_search_defaults(ef=300, tuning={"recall": 0.99})
        assert index.info()["ef"] == 300
    with Index.build(tmp_path / "flat", texts, encoder) as index:
        with pytest.raises(ValueError, match="ef does not apply: the index is Flat, not HNSW"):
            index.search("x", ef=10)
        with pytest.raises(ValueError, match="rescore must be at least 0, not -1"):
            index.search("x", rescore=-1)


@pytest.mark.parametrize(("factory", "option"), [("HNSW8", "ef"), ("IVF4,Flat", "nprobe")])
def test_an_index_whose_documents_are_deleted_is_still_of_its_kind(
    tmp_path: Path, encoder: FakeEncoder, factory: str, option: str
) -> None:
    texts = [f"text {n}" for n in range(200)]
    with Index.build(tmp_path / "index", texts, encoder, factory=factory) as index:
        index.delete(where="true")
        assert index.search("x", **{option: 3}) == [[]]
        with pytest.raises(ValueError, match=f"{option} must be at least 1, not 0"):
            index.search("x", **{option: 0})
        with pytest.raises(ValueError, match="do not apply: the index has no documents"):
            index.set_search_defaults(**{option: 3})


@pytest.mark.parametrize("factory", ["RR24,HNSW8", "OPQ4,HNSW8,RFlat"])
def test_ef_is_for_hnsw_behind_a_transform(tmp_path: Path, factory: str) -> None:
    vectors, documents = corpus(1000)
    with Index.build(tmp_path / "index", documents, FakeEncoder(truncate_dim=24), factory=factory) as index:
        assert index.info()["ef"] == 64
        best = np.argsort(-(vectors[:50] @ vectors.T), axis=1)[:, :10]
        found = {ef: index.search_vectors(vectors[:50], 10, ef=ef)[1] for ef in (10, 64, 400, None)}
        np.testing.assert_array_equal(found[None], found[64])
        assert (found[400] == best).mean() > 0.98 > (found[10] == best).mean()
        tuned = index.tune(0.95)
        assert tuned is not None and tuned.point.parameters.ef is not None
        assert index.info()["ef"] == tuned.point.parameters.ef


@pytest.mark.parametrize("factory", ["HNSW16", "HNSW16,SQ8"])
def test_hnsw_finds_k_where_vectors_repeat(tmp_path: Path, encoder: FakeEncoder, factory: str) -> None:
    texts = [f"text {n}" for n in range(40)] + ["the same"] * 60
    vectors = encoder.encode_document(texts, normalize_embeddings=True)
    with Index.build(tmp_path / "index", texts, encoder, factory=factory) as index:
        for rescore in (None, 4):
            hits = index.search("the same", k=100, hybrid=False, rescore=rescore)[0]
            assert len({hit.id for hit in hits}) == 100
            assert {hit.text for hit in hits[:60]} == {"the same"}
            exact = np.sort(vectors @ vectors[-1])[::-1]
            np.testing.assert_allclose([hit.score for hit in hits], exact, atol=0.02)


@pytest.mark.parametrize("factory", ["PQ8x4fs", "IVF4,PQ8x4fs", "IVF4,PQ8x4fs,RFlat"])
def test_fast_scan_finds_all(tmp_path: Path, factory: str) -> None:
    encoder, texts = FakeEncoder(truncate_dim=16), [f"text {n % 40}" for n in range(100)]
    with Index.build(tmp_path / "index", texts, encoder, factory=factory) as index:
        for hits in index.search(texts, k=100, hybrid=False):
            assert len({hit.id for hit in hits}) == 100
        index.delete(["99"])
        for hits in index.search(texts, k=99, hybrid=False):
            assert len({hit.id for hit in hits}) == 99


@pytest.mark.parametrize("factory", ["PQ8x4fs", "HNSW8,SQ8"])
def test_hits_that_codes_did_not_find_have_scores_comparable_with_those_of_another_segment(
    tmp_path: Path, factory: str
) -> None:
    encoder = FakeEncoder(truncate_dim=16)
    texts = [f"text {n % 10}" for n in range(200)] + [f"other {n}" for n in range(200)]
    vectors = encoder.encode_document(texts, normalize_embeddings=True)
    documents = [Document(text, str(n)) for n, text in enumerate(texts)]
    names = [tmp_path / "first", tmp_path / "second"]
    for name, some in zip(names, (documents[:200], documents[200:]), strict=True):
        Index.build(name, some, encoder, factory=factory).close()
    kinds = set()
    with Index.merge(tmp_path / "index", names) as index:
        for k in (100, 195, 300, 390):
            scores, rows = index.search_vectors(vectors[:40], k)
            assert [len(set(line)) for line in rows.tolist()] == [k] * 40
            exact = np.take_along_axis(vectors[:40] @ vectors.T, rows, axis=1)
            for line, errors in zip(rows, np.abs(scores - exact), strict=True):
                of = {bool(errors[part].max() < 1e-5) for part in (line < 200, line >= 200) if part.any()}
                assert len(of) == 1  # the scores of both segments are of vectors, or of codes
                kinds |= of
    assert kinds == {True, False}


def test_ids_of_many_rows(tmp_path: Path, encoder: FakeEncoder) -> None:
    keys = [f"{'schlüssel' if n == 70 else 'key'} {n * 7}" for n in range(200)]
    documents = [Document(f"text {n}", key) for n, key in enumerate(keys)]
    with Index.build(tmp_path / "index", documents[:150], encoder) as index:
        index.add(documents[150:])
        rows = np.random.default_rng(0).integers(0, 200, 500)
        assert index.ids(rows) == [keys[row] for row in rows]
        assert index.ids(rows[rows < 60]) == [keys[row] for row in rows[rows < 60]]
        assert index.ids(range(3)) == keys[:3]
        assert index.ids([]) == []
        for wrong in ([-1], [200], [*range(100), 200], [*range(100), -1]):
            with pytest.raises(IndexError, match="is not in the index of 200 documents"):
                index.ids(wrong)


def test_bitmaps() -> None:
    rows = np.array([0, 3, 8, 17])
    bits = bits_of(rows, 18)
    assert rows_of(bits).tolist() == rows.tolist()
    assert count_bits(bits) == 4
    assert is_set(bits, np.array([0, 1, 8, 17])).tolist() == [True, False, True, True]


def test_cuda_is_refused_without_a_faiss_for_it(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Index.build(tmp_path / "index", ["a"], encoder).close()
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    with pytest.raises(
        ImportError, match=r"the installed one is for the CPU only: .*pip install 'embedkit\[gpu\]'"
    ):
        Index.open(tmp_path / "index", encoder, device="cuda")
    with pytest.raises(ValueError, match=r"device must be 'cpu', 'cuda' or .*, not 'tpu'"):
        Index.open(tmp_path / "index", encoder, device="tpu")
    with pytest.raises(
        ValueError, match="half=True stores vectors in float16 on a GPU: give device='cuda', too"
    ):
        Index.open(tmp_path / "index", encoder, half=True)
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0, raising=False)
    with pytest.raises(RuntimeError, match="Faiss finds no GPU"):
        Index.open(tmp_path / "index", encoder, device="cuda")


class GpuFaiss:
    """Stands in for faiss-gpu: no selectors, not every kind, at most 2,048 hits and lists, one call at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved: list[int] = []
        self.temporary: list[int] = []
        self.options: list[Any] = []
        self.searches: list[tuple[int, int | None]] = []
        self._one = threading.Lock()

        self.resources: list[Any] = []
        self.full = False

        class Resources:
            def setTempMemory(resources, size: int) -> None:
                self.resources.append(resources)
                self.temporary.append(size)

        class OnGpu:
            def __init__(index, inner: Any) -> None:
                index.inner = inner

            def search(index, queries: np.ndarray, k: int, *, params: Any = None) -> Any:
                assert params is None or params.sel is None
                nprobe = None if params is None else params.nprobe
                if k > 2048 or (nprobe or 0) > 2048:
                    raise RuntimeError(
                        f"GPU index only supports k and nprobe <= 2048 (requested {k}, {nprobe})"
                    )
                with self.alone():
                    self.searches.append((k, nprobe))
                    return index.inner.search(queries, k, params=params)

        def move(resources: Resources, device: int, index: Any, options: Any) -> OnGpu:
            if isinstance(index, faiss.IndexScalarQuantizer | faiss.IndexHNSW):
                raise RuntimeError("This index type is not implemented on GPU.")
            if self.full:
                raise RuntimeError(
                    "StandardGpuResources: alloc fail type FlatData dev 0 space Device size 1024 bytes"
                )
            with self.alone():
                self.moved.append(device)
                self.options.append(options)
                return OnGpu(index)

        monkeypatch.setattr(faiss, "StandardGpuResources", Resources, raising=False)
        monkeypatch.setattr(faiss, "GpuClonerOptions", SimpleNamespace, raising=False)
        monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2, raising=False)
        monkeypatch.setattr(faiss, "index_cpu_to_gpu", move, raising=False)
        monkeypatch.setattr("embedkit.index.storage.faiss_gpu._opened", {})

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        assert self._one.acquire(blocking=False), "StandardGpuResources are not thread-safe"
        try:
            time.sleep(0.001)
            yield
        finally:
            self._one.release()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> GpuFaiss:
    return GpuFaiss(monkeypatch)


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "SQ8"])
def test_cuda_uses_what_faiss_moves_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: GpuFaiss, factory: str
) -> None:
    vectors, documents = corpus(600)
    encoder = FakeEncoder(truncate_dim=24)
    Index.build(tmp_path / "index", documents, encoder, factory=factory).close()
    monkeypatch.setattr("embedkit.index.storage.faiss_part.EXACT_ROWS", 0)
    tolerance = 0.01 if factory == "SQ8" else 1e-5
    nprobe = 8 if factory == "IVF8,Flat" else None
    with Index.open(tmp_path / "index", encoder, device="cuda:1", half=True) as index:
        assert gpu.moved == [1] and gpu.options[0].useFloat16 and gpu.temporary[0] <= 1 << 28
        scores, rows = index.search_vectors(vectors[:20], 5, nprobe=nprobe, where="n % 3 = 0")
        exact = vectors[:20] @ vectors[::3].T
        np.testing.assert_allclose(scores, np.sort(exact, axis=1)[:, ::-1][:, :5], atol=tolerance)
        index.delete([f"k{n}" for n in range(0, 600, 2)])
        index.add([Document("new", "new")])
        assert len(gpu.moved) == 2  # only the new segment
        _, rows = index.search_vectors(vectors[:20], 5, nprobe=nprobe)
        assert (rows % 2 == 1).all() or (rows[rows % 2 == 0] == 600).all()
        gpu.resources[0].thisown = True
        for one in faiss_gpu._opened.values():  # as in a forked child
            one.leave()
        assert not gpu.resources[0].thisown
        with pytest.raises(RuntimeError, match="CUDA does not survive a fork: the parent process searches"):
            index.search_vectors(vectors[:1], 5)
        with pytest.raises(RuntimeError, match="CUDA does not survive a fork"):
            Index.open(tmp_path / "index", encoder, device="cuda:1")
    monkeypatch.setattr("embedkit.index.storage.faiss_gpu._opened", {})
    gpu.full = True
    with pytest.raises(
        MemoryError, match=f"no memory for the vectors of {factory}; open the index with half=True"
    ):
        Index.open(tmp_path / "index", encoder, device="cuda")
    gpu.full = False
    Index.build(tmp_path / "hnsw", documents, encoder, factory="HNSW8").close()
    with pytest.raises(ValueError, match="Faiss cannot search HNSW8 on a GPU; use device='cpu'"):
        Index.open(tmp_path / "hnsw", encoder, device="cuda")
    with pytest.raises(ValueError, match="device='cuda:2': Faiss finds 2 GPUs, 'cuda:0' to 'cuda:1'"):
        Index.open(tmp_path / "index", encoder, device="cuda:2")


@pytest.mark.parametrize("factory", ["Flat", "IVF2100,Flat"])
def test_cuda_finds_as_much_as_the_cpu_beyond_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: GpuFaiss, factory: str
) -> None:
    if factory != "Flat":
        monkeypatch.setattr("embedkit.index.storage.faiss_index.MIN_POINTS_PER_LIST", 1)
        monkeypatch.setattr("embedkit.index.storage.faiss_index.default_nprobe", lambda nlist: nlist)
    vectors, documents = corpus(4200)
    encoder = FakeEncoder(truncate_dim=24)
    path = tmp_path / "index"
    built = faiss.index_factory(24, factory, faiss.METRIC_INNER_PRODUCT)
    built.train(vectors)
    built.add(vectors)
    if factory != "Flat":
        built.nprobe = built.nlist
    faiss.write_index(built, str(tmp_path / "file.faiss"))
    Index.import_faiss(path, tmp_path / "file.faiss", encoder, documents).close()
    monkeypatch.setattr("embedkit.index.storage.faiss_part.EXACT_ROWS", 0)
    with Index.open(path, encoder) as cpu, Index.open(path, encoder, device="cuda") as index:
        for k, where in (
            (5, None),
            (2100, None),
            (5, "n % 500 = 0"),
            (2100, "n % 2 = 0"),
            (2000, "n % 2 = 0"),
        ):
            scores, _ = index.search_vectors(vectors[:4], k, where=where)
            expected, _ = cpu.search_vectors(vectors[:4], k, where=where)
            missing = ((scores < -1) & (expected > -1)).mean()
            assert missing == 0
            assert np.isclose(scores, expected, atol=1e-4).mean() > 0.9, (k, where)
        assert max(nprobe or 0 for _, nprobe in gpu.searches) == (0 if factory == "Flat" else 2048)
        assert max(k for k, _ in gpu.searches) <= 2048


def test_cuda_serves_one_thread_at_a_time(tmp_path: Path, gpu: GpuFaiss) -> None:
    """Indexes share the resources of their GPU."""
    vectors, documents = corpus(60)
    encoder = FakeEncoder(truncate_dim=24)
    for name in "ab":
        Index.build(tmp_path / name, documents, encoder, factory="Flat").close()
    indexes = [Index.open(tmp_path / name, encoder, device="cuda") for name in "ab"]
    assert len(gpu.temporary) == 1
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(indexes[n % 2].search_vectors, vectors[:2], 3) for n in range(24)]
        for future in futures:
            assert future.result()[1][:, 0].tolist() == [0, 1]
    for index in indexes:
        index.close()


def test_another_model_is_refused_or_forced_with_a_warning(tmp_path: Path) -> None:
    Index.build(tmp_path / "index", ["a cat", "a dog"], FakeEncoder()).close()
    other = FakeEncoder("other")
    with pytest.raises(ModelMismatchError, match=f"{FakeEncoder().fingerprint}.*{other.fingerprint}"):
        Index.open(tmp_path / "index", other)
    with pytest.warns(
        UserWarning, match=f"{FakeEncoder().fingerprint}.*{other.fingerprint}.*may be meaningless"
    ):
        index = Index.open(tmp_path / "index", other, force=True)
    assert len(index.search("cat")[0]) == 2
    with pytest.raises(ModelMismatchError):  # what it would write could no longer be distinguished
        index.add([Document("x", "x")])
    with pytest.raises(ModelMismatchError, match="32 dimensions, but the encoder returns 16"):
        Index.open(tmp_path / "index", FakeEncoder(truncate_dim=16), force=True)
